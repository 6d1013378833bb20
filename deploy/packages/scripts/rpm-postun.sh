# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %postun: $1 is the number of remaining versions. A changed configuration is kept as config.toml.rpmsave; so is the outbox.
if command -v systemctl >/dev/null && running_systemd; then
    systemctl daemon-reload || true
    if [ "$1" -ge 1 ]; then restart_if_valid; fi
fi
exit 0
