# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# postinst configure [OLD] | abort-upgrade NEW | abort-remove | abort-deconfigure
case $1 in
configure | abort-upgrade | abort-remove | abort-deconfigure) ;;
*) exit 0 ;;
esac

# Whether it is an installation. Without an older version it is one, too, that was interrupted, and the mark is gone since a
# reboot.
installs=no
if [ -e "/run/$name.install" ] || { [ "$1" = configure ] && [ -z "${2:-}" ]; }; then installs=yes; fi

# Enabled as Debian's own packages do it: also where no systemd runs, and somebody's `systemctl disable` stays.
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

tell_of_another_unit
if running_systemd; then
    systemctl daemon-reload || true
    case $1 in
    configure)
        if [ "$installs" = yes ]; then start_if_valid; else restart_if_valid; fi
        ;;
    abort-remove) start_if_valid ;; # prerm has stopped it
    esac
fi
rm -f "/run/$name.install"
exit 0
