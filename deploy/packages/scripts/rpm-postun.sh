# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %postun: $1 is how many versions stay. Configuration that somebody changed stays as config.toml.rpmsave, the outbox stays.
if command -v systemctl >/dev/null && running_systemd; then
    systemctl daemon-reload || true
    if [ "$1" -ge 1 ]; then restart_if_valid; fi
fi
exit 0
