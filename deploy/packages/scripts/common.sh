# shellcheck shell=sh disable=SC2034,SC2317  # each script uses some of what is here
# The first part of every maintainer script: `deploy.packages.build` prepends it and inserts the version.
set -eu
name=azure-scheduled-events-exporter
unit=$name.service
program=/usr/bin/$name
settings=/etc/$name
local_units=/etc/systemd/system
version='@VERSION@'

say() { printf '%s: %s\n' "$name" "$*" >&2; }

running_systemd() { [ -d /run/systemd/system ]; }

# Run `check` with the unit's settings: config.toml and the variables in `environment`, which is not executed. Blanks around
# names and values, Windows line ends, and continued lines are read as systemd reads them. `check` runs as user 65534 with
# the groups that a drop-in gives the unit, so that it reports a file that only root can read. The variables are exported,
# so no secret appears in the process list.
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

# Whether the configuration is valid. If a line that is no comment uses systemd credentials, which do not exist yet, the
# check is left to the agent, which validates the settings when it starts.
is_valid() { # is_valid started|restarted
    if grep -qs '^[^#]*/run/credentials/' "$settings/config.toml" "$settings/environment"; then
        return 0
    fi
    if said=$(check 2>&1); then
        return 0
    fi
    say "the configuration is not valid, so the service was not $1:"
    printf '%s\n' "$said" | sed 's/^/    /' >&2
    say "correct $settings/config.toml or $settings/environment, then run: systemctl restart $name"
    return 1
}

# Start or restart the service, through deb-systemd-invoke (which obeys policy-rc.d) if it exists. A failure does not fail
# the installation.
systemd() {
    if command -v deb-systemd-invoke >/dev/null; then
        deb-systemd-invoke "$1" "$unit" >/dev/null && return 0
    else
        systemctl "$1" "$unit" && return 0
    fi
    say "the service did not $1; to find the reason, run: systemctl status $name; journalctl --unit $name"
}

# A local unit of the same name, for example from an installation with pip, overrides the package's unit, also after each
# upgrade. A masked unit is a link to /dev/null, not a file.
warn_about_local_unit() {
    [ -f "$local_units/$unit" ] || return 0
    say "$local_units/$unit overrides the package's unit. If you do not want this, remove it (to keep its changes, use:" \
        "systemctl edit $name), then run: systemctl daemon-reload; systemctl restart $name"
}

start_if_valid() {
    is_valid started || return 0
    systemd start
}

# After an upgrade. A stopped service stays stopped; a failed one is restarted, because the upgrade may have fixed it.
restart_if_valid() {
    case $(systemctl show --property=ActiveState --value "$unit" 2>/dev/null || true) in
    active | activating | reloading | failed) ;;
    *) return 0 ;;
    esac
    is_valid "restarted and continues unchanged" || return 0
    systemd restart
}

refuse_downgrade() { # refuse_downgrade INSTALLED
    say "$version is older than the installed version $1, so it was not installed and nothing was changed. It could not" \
        "read the outbox of $1 and would start a new one, without the undelivered records and the approvals that were" \
        "sent. To downgrade anyway, first remove the package, which keeps the configuration and the outbox, then install" \
        "$version."
    exit 1
}
