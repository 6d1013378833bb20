# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# postinst configure [OLD] | abort-upgrade NEW | abort-remove | abort-deconfigure
case $1 in
configure | abort-upgrade | abort-remove | abort-deconfigure) ;;
*) exit 0 ;;
esac

# Whether this is a first installation. Without an older version it is one too: it was interrupted, and a reboot removed the
# mark.
installs=no
if [ -e "/run/$name.install" ] || { [ "$1" = configure ] && [ -z "${2:-}" ]; }; then installs=yes; fi

# Enable the unit as Debian's packages do: also if systemd is not running, and without undoing `systemctl disable`.
if command -v deb-systemd-helper >/dev/null; then
    deb-systemd-helper unmask "$unit" >/dev/null || true
    if deb-systemd-helper --quiet was-enabled "$unit"; then
        deb-systemd-helper enable "$unit" >/dev/null || true
    else
        deb-systemd-helper update-state "$unit" >/dev/null || true
    fi
elif [ "$installs" = yes ] && command -v systemctl >/dev/null; then
    systemctl enable "$unit" || true
fi

warn_about_local_unit
if running_systemd; then
    systemctl daemon-reload || true
    case $1 in
    configure)
        if [ "$installs" = yes ]; then start_if_valid; else restart_if_valid; fi
        ;;
    abort-remove) start_if_valid ;; # prerm stopped it
    esac
fi
rm -f "/run/$name.install"
exit 0
