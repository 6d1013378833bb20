# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# prerm remove | upgrade NEW | failed-upgrade OLD NEW | deconfigure … During an upgrade, the agent runs until it is
# restarted, so that it misses no poll, and a rejected upgrade changes nothing.
if [ "$1" = remove ] && running_systemd; then
    if command -v deb-systemd-invoke >/dev/null; then
        deb-systemd-invoke stop "$unit" >/dev/null || true
    else
        systemctl stop "$unit" || true
    fi
fi
exit 0
