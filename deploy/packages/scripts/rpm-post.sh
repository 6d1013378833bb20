# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %post: $1 is how many versions there are now. After an upgrade %postun of the one that goes restarts it, once its files are
# gone. Enabled whatever the distribution's presets say of packages that they don't know; later `systemctl disable` stays.
command -v systemctl >/dev/null || exit 0
if running_systemd; then systemctl daemon-reload || true; fi
if [ "$1" -eq 1 ]; then
    systemctl enable "$unit" >/dev/null 2>&1 || say "could not be enabled: systemctl enable $name"
    if running_systemd; then start_if_valid; fi
fi
exit 0
