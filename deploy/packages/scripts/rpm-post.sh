# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %post: $1 is how many versions there are now. After an upgrade %postun of the one that goes restarts it, once its files are
# gone. Enabled whatever the distribution's presets say of packages that they don't know; later `systemctl disable` stays.
# %pre has seen what an earlier `rpm --erase` set aside, and no newer file: these are this host's settings. `environment`, which
# stays, may say "enforce", and never with the rules and the hold file of the shipped file in place of theirs.
if [ -e "/run/$name.restore" ]; then
    rm -f "/run/$name.restore"
    mv -f "$settings/config.toml" "$settings/config.toml.rpmnew"
    mv -f "$settings/config.toml.rpmsave" "$settings/config.toml"
    say "config.toml is again what it was when the package was removed; the shipped one is config.toml.rpmnew"
fi
command -v systemctl >/dev/null || exit 0
if running_systemd; then systemctl daemon-reload || true; fi
tell_of_another_unit
if [ "$1" -eq 1 ]; then
    systemctl enable "$unit" >/dev/null 2>&1 || say "could not be enabled: systemctl enable $name"
    if running_systemd; then start_if_valid; fi
fi
exit 0
