# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %pre: $1 is the number of versions after the installation. rpm rejects an older version itself, except with --oldpackage
# and `dnf downgrade`.
rm -f "/run/$name.restore"
if [ "$1" -eq 1 ] && [ -e "$settings/config.toml.rpmsave" ] && [ ! -e "$settings/config.toml" ]; then
    mkdir -p /run
    : >"/run/$name.restore" # for %post
fi
if [ "$1" -gt 1 ] && [ -r "/opt/$name/package-version" ]; then
    installed=$(cat "/opt/$name/package-version")
    if [ "$installed" != "$version" ] &&
        [ "$(printf '%s\n' "$installed" "$version" | sort -V | tail -n 1)" = "$installed" ]; then
        refuse_downgrade "$installed"
    fi
fi
exit 0
