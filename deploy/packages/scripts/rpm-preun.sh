# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %preun: $1 is the number of versions that remain.
if [ "$1" -eq 0 ] && command -v systemctl >/dev/null; then
    if running_systemd; then systemctl stop "$unit" || true; fi
    systemctl disable "$unit" >/dev/null 2>&1 || true
fi
exit 0
