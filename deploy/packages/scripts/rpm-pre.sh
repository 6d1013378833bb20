# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %pre: $1 is how many versions there will be. rpm refuses an older one by itself; with --oldpackage and by `dnf downgrade`
# it does not.
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
