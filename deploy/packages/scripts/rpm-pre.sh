# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %pre: $1 is how many versions there will be. rpm refuses an older one by itself; with --oldpackage and by `dnf downgrade`
# it does not.
if [ "$1" -gt 1 ] && [ -r "/opt/$name/package-version" ]; then
    installed=$(cat "/opt/$name/package-version")
    if [ "$installed" != "$version" ] &&
        [ "$(printf '%s\n' "$installed" "$version" | sort -V | tail -n 1)" = "$installed" ]; then
        refuse_downgrade "$installed"
    fi
fi
exit 0
