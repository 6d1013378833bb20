# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# prerm remove | upgrade NEW | failed-upgrade OLD NEW | deconfigure … An upgrade lets the agent run until it is restarted: no
# poll is missed, and nothing has changed where the upgrade is refused.
if [ "$1" = remove ] && running_systemd; then
    if command -v deb-systemd-invoke >/dev/null; then
        deb-systemd-invoke stop "$unit" >/dev/null || true
    else
        systemctl stop "$unit" || true
    fi
fi
exit 0
