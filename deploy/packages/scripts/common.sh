# shellcheck shell=sh disable=SC2034,SC2317  # each script uses some of what is here
# The beginning of every script of the packages: `deploy.packages.build` puts it before each and writes the version in.
set -eu
name=azure-scheduled-events-exporter
unit=$name.service
program=/usr/bin/$name
settings=/etc/$name
local_units=/etc/systemd/system
version='@VERSION@'

say() { printf '%s: %s\n' "$name" "$*" >&2; }

running_systemd() { [ -d /run/systemd/system ]; }

# How the agent would be told its settings by the unit: config.toml, and what `environment` says, of which nothing is run.
# Blanks around names and values, ends of lines as Windows has them, and lines that go on are read as systemd reads them.
# Nobody's rights, with the groups that a drop-in gives the unit, are those of the unit's own user: a file that only root can
# read is then told of here, and not by a service that does not start. Variables are exported, and no secret among them stands in a list of processes.
check() (
    SCHEDULED_EVENTS_CONFIG_FILE=$settings/config.toml
    export SCHEDULED_EVENTS_CONFIG_FILE
    if [ -r "$settings/environment" ]; then
        while IFS= read -r line || [ -n "$line" ]; do
            case $line in SCHEDULED_EVENTS_*=* | OTEL_*=*) ;; *) continue ;; esac
            variable=${line%%=*}
            value=${line#*=}
            case $variable in *[!A-Z0-9_]*) continue ;; esac
            case $value in
            \"*\") value=${value#\"} && value=${value%\"} ;;
            \'*\') value=${value#\'} && value=${value%\'} ;;
            esac
            export "$variable=$value"
        done <<EOF
$(sed -e ':next' -e '/\\$/{N;s/\\\n//;b next' -e '}' \
            -e 's/^[[:space:]]*//; s/[[:space:]]*$//; s/[[:space:]]*=[[:space:]]*/=/' "$settings/environment")
EOF
    fi
    if command -v setpriv >/dev/null; then
        groups=
        for group in $(systemctl show --property=SupplementaryGroups --value "$unit" 2>/dev/null || true); do
            number=$(getent group "$group" | cut -d: -f3)
            [ -n "$number" ] || continue
            groups=$groups${groups:+,}$number
        done
        if [ -n "$groups" ]; then groups=--groups=$groups; else groups=--clear-groups; fi
        exec setpriv --reuid=65534 --regid=65534 "$groups" --no-new-privs "$program" check
    fi
    exec "$program" check
)

# Whether the agent may be started. What systemd hands over as a credential is not there yet: then the unit itself says
# what is wrong, since it begins with the same check.
is_valid() {
    if grep -qs /run/credentials/ "$settings/config.toml" "$settings/environment"; then
        return 0
    fi
    if said=$(check 2>&1); then
        return 0
    fi
    say "the configuration is not valid, so the service is not $1:"
    printf '%s\n' "$said" | sed 's/^/    /' >&2
    say "mend $settings/config.toml or $settings/environment, then: systemctl restart $name"
    return 1
}

# start or restart, through what a Debian asks for permission, where there is one. Never a reason for an installation to fail.
systemd() {
    if command -v deb-systemd-invoke >/dev/null; then
        deb-systemd-invoke "$1" "$unit" >/dev/null && return 0
    else
        systemctl "$1" "$unit" && return 0
    fi
    say "the service did not $1; why: systemctl status $name; journalctl --unit $name"
}

# A unit that somebody made, as one with the agent from pip has it, goes before the package's: its sandbox and its settings,
# also after each upgrade. A masked one is a link to /dev/null, and no file.
tell_of_another_unit() {
    [ -f "$local_units/$unit" ] || return 0
    say "$local_units/$unit is used in place of the package's unit. If that is not meant, remove it (what it changes" \
        "belongs into: systemctl edit $name), then: systemctl daemon-reload; systemctl restart $name"
}

start_if_valid() {
    is_valid started || return 0
    systemd start
}

# After an upgrade. A service that somebody has stopped stays so; one that ended by itself may have waited for just this.
restart_if_valid() {
    case $(systemctl show --property=ActiveState --value "$unit" 2>/dev/null || true) in
    active | activating | reloading | failed) ;;
    *) return 0 ;;
    esac
    is_valid "restarted, and goes on as it was" || return 0
    systemd restart
}

refuse_downgrade() { # refuse_downgrade INSTALLED
    say "version $1 is installed, and $version is older, so it is not installed and nothing was changed. It could not" \
        "read the outbox of $1: it would begin a new one, and records not yet delivered and the memory of what was" \
        "approved would be set aside. To go back all the same, remove the package first, which keeps configuration and" \
        "outbox, then install $version."
    exit 1
}
