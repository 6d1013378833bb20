# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# preinst install [OLD NEW] | upgrade OLD NEW | abort-upgrade NEW. Nothing has been unpacked yet.
case $1 in
upgrade)
    if dpkg --compare-versions "$2" gt "$version"; then
        refuse_downgrade "$2"
    fi
    ;;
install)
    # Also after a removal that kept the configuration, which postinst cannot distinguish from an upgrade.
    mkdir -p /run
    : >"/run/$name.install"
    ;;
esac
exit 0
