# shellcheck shell=sh source=deploy/packages/scripts/common.sh
# %post: $1 is the number of installed versions. After an upgrade, %postun of the old version restarts the service, once its
# files are removed. A first installation enables the unit regardless of the distribution's presets; later `systemctl
# disable` is kept.
# If %pre found the settings that an earlier `rpm --erase` saved, restore them: `environment`, which was kept, may set
# "enforce", and must not apply with the rules and the hold file of the shipped settings.
if [ -e "/run/$name.restore" ]; then
    rm -f "/run/$name.restore"
    mv -f "$settings/config.toml" "$settings/config.toml.rpmnew"
    mv -f "$settings/config.toml.rpmsave" "$settings/config.toml"
    say "restored the config.toml of the removed package; the shipped one is config.toml.rpmnew"
fi
command -v systemctl >/dev/null || exit 0
if running_systemd; then systemctl daemon-reload || true; fi
warn_about_local_unit
if [ "$1" -eq 1 ]; then
    systemctl enable "$unit" >/dev/null 2>&1 || say "the service could not be enabled; run: systemctl enable $name"
    if running_systemd; then start_if_valid; fi
fi
exit 0
