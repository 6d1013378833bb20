"""The checks of the installed unit, each proof a function that prints its verdicts; in the order of `BEFORE`, a
shutdown, and `AFTER`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

from tests.systemd import handshake
from tests.systemd.environment import ENFORCE, ETC, NAME, PATIENCE, STATE, GuestEnvironment, until

KILL: Final = "[Service]\nSystemCallErrorNumber=kill\n"
"""The shipped filter returns EPERM, which a program may ignore; here the process is killed instead."""
SLOW: Final = "[Manager]\nDefaultTimeoutStartSec=900\n"
"""How long systemd waits for a start: on an emulated, busy processor a start has taken 90 s."""
STOP_SECONDS: Final = 5.0
WATCHDOG_SECONDS: Final = 60.0
FREEZE_SECONDS: Final = 6.0
QUIET_SECONDS: Final = 6.0
"""Seconds in which an approval without a hold is sent: polls come once a second."""
DEB: Final = "/mnt/files/new.deb"
UNIT: Final = f"/lib/systemd/system/{NAME}.service"
OLD_DEB: Final = "/mnt/files/old.deb"


def installed(environment: GuestEnvironment) -> None:
    """The package without further settings gives a running, enabled, scraped agent."""
    guest = environment.guest
    state = guest.run("systemctl is-system-running --wait").text
    environment.say(
        state == "running", f"the guest: systemd {guest.run('systemctl --version | head -n 1').text}, {state}"
    )
    pythons = guest.run("find / -xdev -name 'python3*' -type f -perm /1 ! -path '/opt/*'").text
    environment.say(
        not pythons and not guest.run("command -v python3"), f"no Python in the guest: {pythons or 'none found'}"
    )
    guest.run("mount -o ro /dev/vdb /mnt/files")
    guest.write("/etc/systemd/system.conf.d/emulated.conf", SLOW)
    guest.run("systemctl daemon-reload")
    done = guest.run(f"DEBIAN_FRONTEND=noninteractive apt-get install -y {OLD_DEB}")
    environment.say(bool(done), f"apt-get install: {_last(done.text)}")
    until(lambda: environment.ready)
    enabled, version = guest.run(f"systemctl is-enabled {NAME}").text, guest.run(f"{NAME} --version").text
    found = f"{environment.shown('ActiveState')}, {enabled}, restarts {environment.shown('NRestarts')}, {version}"
    good = environment.active and enabled == "enabled" and environment.shown("NRestarts") == "0"
    environment.say(good, f"after only the installation: {found}; {environment.shown('StatusText')}")
    environment.say(
        "azure_scheduled_events_build_info" in environment.get("/metrics"), "scraped from outside of the guest"
    )


def sandboxed(environment: GuestEnvironment) -> None:
    """The process matches the unit: a separate user, no capability, a filter; its files are private."""
    guest = environment.guest
    environment.say(environment.start(), f"started with settings: {environment.shown('StatusText')}")
    until(lambda: "vm_info{" in environment.get("/metrics"))
    status = guest.run(f"cat /proc/{environment.shown('MainPID')}/status").text
    seen = {name: value.split()[0] for name, value in re.findall(r"^(\w+):\t(.+)$", status, re.MULTILINE)}
    good = seen["Uid"] != "0" and int(seen["CapEff"], 16) == int(seen["CapBnd"], 16) == 0
    good = good and (seen["Seccomp"], seen["NoNewPrivs"]) == ("2", "1")
    memory, tasks = int(environment.shown("MemoryCurrent")) / 2**20, environment.shown("TasksCurrent")
    facts = (
        f"uid {seen['Uid']}, capabilities {seen['CapEff']}, seccomp {seen['Seccomp']}, {memory:.0f} MiB, {tasks} tasks"
    )
    environment.say(good, f"the process: {facts}")
    files = guest.run(f"stat -c '%a %u %n' {STATE} {STATE}/*").text.splitlines()
    good = all(line.split()[:2] == ["700" if line.endswith(STATE) else "600", seen["Uid"]] for line in files)
    environment.say(
        good and len(files) > 1,
        f"its state: {', '.join(line.rsplit('/', 1)[0][:3] + line.rsplit('/', 1)[1] for line in files)}",
    )
    pid = environment.shown("MainPID")
    apart = [
        kind
        for kind in ("mnt", "ipc", "user")
        if guest.run(f"test $(readlink /proc/{pid}/ns/{kind}) != $(readlink /proc/1/ns/{kind})")
    ]
    environment.say(apart == ["mnt", "ipc", "user"], f"its own namespaces: {', '.join(apart)}")
    exposure = guest.run(f"systemd-analyze security --no-pager {NAME} | tail -n 1").text
    found = re.search(r"(\d+\.\d+)", exposure)
    environment.say(found is not None and float(found[1]) <= 1.1, f"systemd-analyze security: {exposure}")
    strange = guest.run(
        f"journalctl --no-pager -b -o cat -p warning _PID=1 | grep -i '{NAME}' | grep -iv 'watchdog\\|kill'"
    ).text
    environment.say(not strange, f"systemd logs no warning about the unit: {strange or 'none'}")


def recorded_and_approved(environment: GuestEnvironment) -> None:
    """A whole scenario runs with a filter that kills on a forbidden call; and such a call does kill."""
    started = environment.start(ENFORCE, KILL)
    environment.play()
    until(environment.azure.finished)
    time.sleep(2)
    restarts, seen = environment.shown("NRestarts"), int(environment.metric("events_observed_total"))
    good = started and environment.approved >= 2 and restarts == "0" and seen >= 4
    environment.say(
        good,
        f"a forbidden call would kill it: {seen} events seen, {environment.approved} approved, {restarts} restarts",
    )
    took = _stop(environment)
    environment.say(
        took < STOP_SECONDS and environment.shown("Result") == "success",
        f"and a stop: {took:.1f} s, {environment.shown('Result')}",
    )
    environment.end_events()
    forbidden = "ExecStart=\nExecStart=/usr/bin/taskset 1 /bin/true\nType=oneshot\nRestart=no\nWatchdogSec=0\n"
    environment.start(drop_in=KILL + forbidden)
    code = environment.shown("ExecMainStatus")
    environment.say(
        code == "31",
        f"control case, sched_setaffinity: killed by signal {code} (SIGSYS is 31), {environment.shown('Result')}",
    )


def stops(environment: GuestEnvironment) -> None:
    """`systemctl stop` ends it within 5 s, also while the source hangs."""
    environment.start()
    took = _stop(environment)
    environment.say(
        took < STOP_SECONDS and environment.shown("Result") == "success",
        f"stopped in {took:.1f} s: {environment.shown('Result')}",
    )
    environment.start()
    environment.azure.fault("hang")
    asked = len(environment.azure.requests)
    until(lambda: len(environment.azure.requests) > asked)
    took = _stop(environment)
    environment.azure.fault()
    environment.say(
        took < STOP_SECONDS and environment.shown("Result") == "success",
        f"stopped in {took:.1f} s while the source hangs: {environment.shown('Result')}",
    )


def comes_back(environment: GuestEnvironment) -> None:
    """Killed, it is restarted; suspended, the watchdog ends it, and it is restarted."""
    environment.start()
    for signal, limit in (("KILL", PATIENCE), ("STOP", WATCHDOG_SECONDS + PATIENCE)):
        old = environment.shown("MainPID")
        environment.guest.run(f"kill -{signal} {old}")
        took = until(lambda: environment.shown("MainPID") not in ("0", old) and environment.ready, limit)  # noqa: B023  # called here
        said = [line for line in environment.log("_PID=1").splitlines() if "atchdog" in line or "code=" in line]
        good = took < limit and (signal == "KILL" or any("atchdog" in line for line in said))
        environment.say(good, f"SIG{signal}: ready again after {took:.0f} s; {said[-1] if said else 'no log line'}")


def delivers(environment: GuestEnvironment) -> None:
    """Event Hubs with a credential and OTLP work within the addresses of network.conf."""
    environment.guest.write(f"{ETC}/event-hubs", environment.connection_string, "0600")
    drop_in = environment.guest.run("cat /mnt/files/event-hubs.conf /mnt/files/network.conf").text
    before = len(environment.broker.messages()), len(environment.collector.ids)
    environment.start(f"SCHEDULED_EVENTS_OTLP_ENDPOINT={environment.otlp}\n", drop_in)
    environment.announce()
    until(lambda: len(environment.broker.messages()) > before[0] + 1 and len(environment.collector.ids) > before[1] + 1)
    recorded = len(environment.broker.messages()) - before[0], len(environment.collector.ids) - before[1]
    environment.say(
        min(recorded) > 1,
        f"LoadCredential: {recorded[0]} messages in Event Hubs, {recorded[1]} records in the collector",
    )
    key = re.search("SharedAccessKey=([^;]+)", environment.connection_string)
    leaked = key is None or bool(
        environment.guest.run(
            "grep -rFq",
            key[1],
            "/proc/1/environ",
            f"/proc/{environment.shown('MainPID')}/cmdline",
            ETC + "/environment",
        )
    )
    environment.say(not leaked, "its key is in no command line and no environment file")
    environment.end_events()


def holds(environment: GuestEnvironment) -> None:
    """A hold file holds if the service sees the operator's file; a path elsewhere is rejected."""
    guest = environment.guest
    seen = (f"{ETC}/hold", "/run/hold")
    own = (
        "/tmp/hold",
        "/var/tmp/folder/hold",
        "/dev/shm/hold",
        "/root/hold",
        "/home/operator/hold",
        f"{ETC}/link/hold",
    )
    guest.run(f"mkdir -p /home/operator /run/user /var/tmp/folder; ln -sfn /tmp {ETC}/link")
    for path in seen:
        guest.run(f"touch {path}")
        started = environment.start(f"{ENFORCE}SCHEDULED_EVENTS_APPROVAL_HOLD_FILE={path}\n")
        held, sent = _held(environment)
        environment.say(started and held and not sent, f"{path} holds: {sent} approvals")
        _stop(environment)
        guest.run(f"rm -f {path}")
    for path in own:
        guest.run(f"touch {path}")
        before = environment.approved
        environment.announce()
        started = environment.start(f"{ENFORCE}SCHEDULED_EVENTS_APPROVAL_HOLD_FILE={path}\n")
        time.sleep(QUIET_SECONDS)
        sent, code = environment.approved - before, environment.shown("ExecMainStatus")
        good = not started and not sent and code == "2" and environment.shown("NRestarts") == "0"
        said = _last(environment.log("-p err"), "expected a path")
        recorded = f"exit code {code}, {environment.shown('NRestarts')} restarts, {sent} approvals; {said}"
        environment.say(good and bool(said), f"{path} is rejected: {recorded}")
        guest.run(f"rm -f {path}")
    before = environment.approved
    environment.announce()
    environment.start(f"{ENFORCE}SCHEDULED_EVENTS_APPROVAL_HOLD_FILE={ETC}/hold\n")
    took = until(lambda: environment.approved > before)
    environment.say(
        took < PATIENCE, f"without a hold file the same event is approved: {environment.approved - before} approvals"
    )
    guest.run(f"touch {ETC}/hold")
    until(lambda: environment.metric("approval_held") == 1)
    held, sent = _held(environment)
    environment.say(held and not sent, f"made while it runs, {ETC}/hold holds later events: {sent} approvals")
    before = environment.approved
    guest.run(f"rm -f {ETC}/hold {ETC}/link")
    took = until(lambda: environment.approved > before)
    environment.say(took < PATIENCE, f"removed, the held event is approved {took:.1f} s later")
    environment.end_events()


def explained(environment: GuestEnvironment) -> None:
    """Wrong settings end it with exit code 2 and an error in the journal; a missing credential is systemd's own
    error."""
    guest = environment.guest
    cases = {
        "an unknown mode": ("SCHEDULED_EVENTS_APPROVAL_MODE=nonsense\n", "", "nonsense"),
        "a settings file that only root can read": (
            f"SCHEDULED_EVENTS_CONFIG_FILE={ETC}/closed.toml\n",
            "",
            "closed.toml",
        ),
        "a secret's file that only root can read": (
            f"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING_FILE={ETC}/event-hubs\n",
            "",
            "event-hubs",
        ),
        "a settings file that is missing": (f"SCHEDULED_EVENTS_CONFIG_FILE={ETC}/missing.toml\n", "", "missing.toml"),
    }
    guest.write(f"{ETC}/closed.toml", "", "0600")
    guest.write(f"{ETC}/event-hubs", environment.connection_string, "0600")
    for what, (environ, drop_in, named) in cases.items():
        started = environment.start(environ, drop_in)
        time.sleep(7)  # longer than RestartSec=
        code, restarts = environment.shown("ExecMainStatus"), environment.shown("NRestarts")
        said = _last(environment.log("-p err"), named)
        good = not started and (code, restarts) == ("2", "0") and named in said
        environment.say(good, f"{what}: exit code {code}, {restarts} restarts; {said}")
    guest.run(f"mv {ETC}/event-hubs {ETC}/elsewhere")
    environment.start(drop_in=guest.run("cat /mnt/files/event-hubs.conf").text, wait=False)
    until(lambda: "redential" in environment.log())
    said = _last(environment.log(), "redential")
    code = environment.shown("ExecMainStatus")
    environment.say(
        "redential" in said and code == "243", f"a credential's file that is missing: exit code {code}; {said}"
    )
    guest.run(f"mv {ETC}/elsewhere {ETC}/event-hubs")
    took = until(lambda: environment.ready)
    environment.say(took < PATIENCE, f"and once the file exists: ready {took:.0f} s later, without a restart by hand")


def has_priorities(environment: GuestEnvironment) -> None:
    """`journalctl -p warning` shows only the warnings."""
    for name in ("logfmt", "json"):
        environment.start(f"SCHEDULED_EVENTS_LOG_FORMAT={name}\n")
        environment.azure.fault("500")
        until(lambda: "poll.failed" in environment.log("-p warning"))
        own = f"_PID={environment.shown('MainPID')}"
        warned, rest = environment.log(f"-p warning {own}").splitlines(), environment.log(f"-p 7..5 {own}").splitlines()
        good = bool(warned) and bool(rest) and all(re.search('level"?[=:] ?"?(warn|error)', line) for line in warned)
        good = good and not any(re.search('level"?[=:] ?"?(warn|error)', line) for line in rest)
        good = good and not any(line.startswith("<") for line in (*warned, *rest))
        environment.say(
            good, f"journal, {name}: {len(warned)} lines of priority warning, {len(rest)} of info; {warned[:1]}"
        )
        environment.azure.fault()


def takes_over_from_root(environment: GuestEnvironment) -> None:
    """Files that root's own `run` left in the state directory are private; the service reports it until it may use
    them."""
    guest = environment.guest
    _stop(environment)
    guest.run(
        f"rm -rf {STATE}/*; umask 022; timeout 20 {NAME} run --source.url={environment.source} "
        f"--outbox.path={STATE}/outbox.db --recording.path={STATE}/recording.jsonl"
    )
    left = guest.run(f"stat -c '%a %U %n' {STATE}/*").text.splitlines()
    good = bool(left) and all(line.startswith("600 root ") for line in left)
    environment.say(
        good, f"files of root's own run: {', '.join(line.split()[0] + ' ' + line.rsplit('/', 1)[1] for line in left)}"
    )
    guest.run(f"rm {STATE}/recording.jsonl; chmod 644 {STATE}/*")  # as a copy leaves them
    started = environment.start()
    said = _last(environment.log("-p warning"), "outbox.db")
    environment.say(
        started and "Permission denied" in said, f"the service can't use them, continues, and logs a warning: {said}"
    )
    guest.run(f"chown --reference={STATE} {STATE}/*")
    uid = guest.run(f"stat -c %u /proc/{environment.shown('MainPID')}").text

    def narrowed() -> bool:
        return set(guest.run(f"stat -c '%a %u' {STATE}/outbox.db*").text.splitlines()) == {f"600 {uid}"}

    took = until(narrowed)
    found = guest.run(f"stat -c '%a %u' {STATE}/outbox.db*").text.splitlines()
    good = took < PATIENCE and environment.metric("outbox_writable") == 1
    environment.say(
        good, f"after chown they are used {took:.0f} s later, with restricted permissions: {', '.join(found)}"
    )
    if not good:
        guest.run(f"systemctl stop {NAME}; rm -rf {STATE}/*")


def observes_a_freeze(environment: GuestEnvironment) -> None:
    """After a pause of the machine, a record and a metric have its duration."""
    environment.start()
    time.sleep(5)
    before, known = (
        environment.metric("observed_interruption_seconds_sum"),
        len(environment.records("interruption.observed")),
    )
    environment.guest.freeze(FREEZE_SECONDS)
    until(lambda: len(environment.records("interruption.observed")) > known)
    observed = environment.metric("observed_interruption_seconds_sum") - before
    records = len(environment.records("interruption.observed")) - known
    good = records >= 1 and abs(observed - FREEZE_SECONDS) < 1.5
    environment.say(good, f"frozen for {FREEZE_SECONDS:.0f} s: {observed:.1f} s observed, {records} records")


def upgraded(environment: GuestEnvironment) -> None:
    """Another version continues with the outbox, full of undelivered records."""
    guest = environment.guest
    drop_in = guest.run("cat /mnt/files/event-hubs.conf").text
    environment.broker.stop()
    environment.start("# kept over the upgrade\n", drop_in)
    for _ in range(10):
        environment.announce()
        time.sleep(1.5)
    environment.end_events()
    before, old = (
        int(environment.metric('outbox_records{destination="event_hubs"')),
        guest.run(f"dpkg-query -W -f '${{Version}}' {NAME}").text,
    )
    done = guest.run(f"DEBIAN_FRONTEND=noninteractive apt-get install -y {DEB}")
    until(lambda: environment.ready)
    time.sleep(3)
    after, new = (
        int(environment.metric('outbox_records{destination="event_hubs"')),
        guest.run(f"dpkg-query -W -f '${{Version}}' {NAME}").text,
    )
    kept = guest.run(f"grep -c 'kept over the upgrade' {ETC}/environment").text
    good = bool(done) and old != new and 0 < before <= after and environment.active and kept == "1"
    environment.say(
        good,
        f"upgrade from {old} to {new}: {before} records waited before, {after} after; {_last(done.text)}",
    )
    known = len(environment.broker.messages())
    environment.broker.start()
    took = until(lambda: environment.metric('outbox_records{destination="event_hubs"') == 0)
    environment.say(
        took < PATIENCE and len(environment.broker.messages()) >= known + before,
        f"Event Hubs is available again: {len(environment.broker.messages()) - known} delivered after {took:.0f} s",
    )
    environment.start()


def booted_again(environment: GuestEnvironment) -> None:
    """After an orderly shutdown the agent's last record exists, and the next process continues, with the same user."""
    guest = environment.guest
    until(lambda: environment.ready)
    ended = guest.run(
        f"journalctl --no-pager -b -1 -o cat -u {NAME} | grep 'Deactivated successfully' | tail -n 1"
    ).text
    stopped, started = environment.records("agent.stopped"), environment.records("agent.started")
    good = bool(ended) and bool(stopped) and bool(started)
    rebooted = started[-1].get("data", {}).get("rebooted") if started else None
    environment.say(
        good and rebooted is True,
        f"at the shutdown: {ended}; {len(stopped)} agent.stopped, then agent.started with rebooted={rebooted}",
    )
    files = set(guest.run(f"stat -c '%a %u' {STATE}/*").text.splitlines())
    uid = guest.run(f"stat -c %u /proc/{environment.shown('MainPID')}").text
    environment.say(
        files == {f"600 {uid}"} and environment.active,
        f"after the boot: active, files {files}, uid {uid}, restarts {environment.shown('NRestarts')}",
    )


def removed(environment: GuestEnvironment) -> None:
    """Removed, it is stopped and its settings stay; purged, no file stays."""
    guest = environment.guest
    done = guest.run(f"DEBIAN_FRONTEND=noninteractive apt-get remove -y {NAME}")
    left = guest.run(f"ls -d /opt/{NAME} /usr/bin/{NAME} {ETC}/config.toml {STATE} {UNIT} 2>/dev/null").text.split()
    running = guest.run(f"pgrep -f /opt/{NAME}/").text
    good = bool(done) and not running and f"{ETC}/config.toml" in left and STATE in left and f"/opt/{NAME}" not in left
    environment.say(good, f"removed: no process runs, left are {', '.join(left)}")
    done = guest.run(f"DEBIAN_FRONTEND=noninteractive apt-get purge -y {NAME}")
    left = guest.run(f"ls -d /opt/{NAME} /usr/bin/{NAME} {ETC} {STATE} /var/lib/{NAME} {UNIT} 2>/dev/null").text.split()
    environment.say(bool(done) and not left, f"purged: {', '.join(left) or 'no file is left'}")
    failed = guest.run("systemctl --failed --no-legend --plain").text
    environment.say(not failed, f"units that failed: {failed or 'none'}")


def _held(environment: GuestEnvironment) -> tuple[bool, int]:
    """Return whether a new event is held because of the hold file, and the number of sent approvals."""
    before = environment.approved
    environment.announce()
    took = until(lambda: 'reason="held"' in environment.get("/metrics"))
    time.sleep(QUIET_SECONDS)
    return took < PATIENCE and environment.metric("approval_held") == 1, environment.approved - before


def _stop(environment: GuestEnvironment) -> float:
    """Stop the unit; return the seconds that systemd itself counted, in the guest's own time."""
    environment.guest.run(f"systemctl stop {NAME}")
    began, ended = (int(environment.shown(f"{name}TimestampMonotonic")) for name in ("ActiveExit", "InactiveEnter"))
    return (ended - began) / 1e6


def _last(text: str, word: str = "") -> str:
    """Return the last line that contains the word."""
    lines = [line for line in text.splitlines() if word in line]
    return lines[-1].strip()[:300] if lines else ""


Proof = Callable[[GuestEnvironment], None]
BEFORE: Final[tuple[Proof, ...]] = (
    installed,
    sandboxed,
    recorded_and_approved,
    stops,
    comes_back,
    delivers,
    holds,
    explained,
    has_priorities,
    takes_over_from_root,
    observes_a_freeze,
    handshake.shakes_hands,
    handshake.is_tried,
    handshake.prepares_once,
    handshake.prepares_or_holds,
    handshake.outlives_restarts,
    handshake.stops_a_unit,
    upgraded,
)
AFTER: Final[tuple[Proof, ...]] = (booted_again, handshake.shakes_hands_after_a_boot, removed)
