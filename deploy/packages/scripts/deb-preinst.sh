# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# preinst install [OLD NEW] | upgrade OLD NEW | abort-upgrade NEW. Nothing was unpacked yet.
case $1 in
upgrade)
    if dpkg --compare-versions "$2" gt "$version"; then
        refuse_downgrade "$2"
    fi
    ;;
install)
    # Also after a removal that kept the configuration: for postinst that is the same as an upgrade.
    mkdir -p /run
    : >"/run/$name.install"
    ;;
esac
exit 0
