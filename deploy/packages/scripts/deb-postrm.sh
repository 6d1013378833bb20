# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# postrm remove | purge | upgrade NEW | disappear … | abort-install … | abort-upgrade … | failed-upgrade …
case $1 in
remove)
    if running_systemd; then systemctl daemon-reload || true; fi
    ;;
purge)
    # The outbox with its undelivered records, in the directory of DynamicUser= and in that of an agent started by hand; hold
    # and ready files; `environment` and secrets in the configuration directory. Drop-ins in /etc/systemd/system stay.
    rm -rf /var/lib/private/azure-scheduled-events-exporter /var/lib/azure-scheduled-events-exporter \
        /etc/azure-scheduled-events-exporter /run/azure-scheduled-events-exporter
    if command -v deb-systemd-helper >/dev/null; then
        deb-systemd-helper purge "$unit" >/dev/null || true
        deb-systemd-helper unmask "$unit" >/dev/null || true
    fi
    if running_systemd; then systemctl daemon-reload || true; fi
    ;;
abort-install)
    rm -f "/run/$name.install"
    ;;
esac
exit 0
