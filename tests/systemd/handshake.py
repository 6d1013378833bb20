"""The handshake of docs/handshake.md under a real systemd: event file, path unit, service, ready file, approval, and
end.

The page's own commands install the shipped examples; `prepare` and `resume` are the shipped ones unless a step replaces
them. The journal, and the file that `prepare` creates, show the effect of the operator's commands.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from tests.support.documentation import ROOT, blocks
from tests.systemd.environment import ENFORCE, NAME, PATIENCE, GuestEnvironment, until

UNIT: Final = "azure-scheduled-events-handshake"
RUN: Final = f"/run/{NAME}"
OUT: Final = f"/run/{UNIT}/out-of-service"
"""The file that the shipped `prepare` creates and `resume` removes."""
USER: Final = "azse-handshake"
PAGE: Final = ROOT / "docs" / "handshake.md"
DROP_IN: Final = f"/etc/systemd/system/{UNIT}.service.d/proof.conf"
BROKEN: Final = "/etc/azure-scheduled-events-handshake/broken"
FAILING: Final = f'#!/bin/sh\nset -e\n[ ! -e {BROKEN} ]\nexec /etc/azure-scheduled-events-handshake/prepare "$1"\n'
"""A `prepare` that fails as long as a file exists."""
SHOP: Final = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
AS_ROOT: Final = f"/etc/systemd/system/{UNIT}.service.d/as-root.conf"
SHORT: Final = 2
LONG: Final = 600
"""Seconds that the shipped `prepare` waits for work to end."""


def shakes_hands(environment: GuestEnvironment) -> None:
    """With the shipped examples, no event is approved before it is prepared; afterwards everything is as before."""
    guest = environment.guest
    done = guest.run(_block("Install under systemd"))
    user = guest.run(f"id {USER}; stat -c '%U %a' {RUN}/ready").text
    environment.say(
        bool(done) and f"{USER} 755" in user,
        f"installed with the commands of the page: {user.splitlines()[-1]} {done.text}",
    )
    _with(environment, drain=SHORT)
    started = environment.start(ENFORCE)
    folders = guest.run(
        f"stat -c '%a %u %n' {RUN}/events; stat -c %u /proc/{environment.shown('MainPID')}"
    ).text.split()
    environment.say(
        started and folders[1] == folders[3], f"the folder of event files is the agent's: {' '.join(folders[:3])}"
    )
    sent = environment.approved
    (event,) = environment.announce_platform()
    took = until(lambda: guest.run(f"test -e {OUT}"))
    recorded = guest.run(f"test -e {RUN}/events/{event}.json && test ! -e {RUN}/ready/{event}")
    environment.say(
        took < PATIENCE and bool(recorded) and environment.approved == sent,
        f"announced: the VM is out of service, and no event is approved yet: {environment.approved - sent} approvals",
    )
    took = until(lambda: environment.approved > sent)
    owner = guest.run(f"stat -c '%U %a' {RUN}/ready/{event}").text
    identity = guest.run(f"systemctl show {UNIT} --value --property User,CapabilityBoundingSet").text.split()
    environment.say(
        took < PATIENCE and owner == f"{USER} 644" and environment.approved == sent + 1,
        f"ready, made by {owner}; {environment.approved - sent} approval; the service is {identity}",
    )
    time.sleep(3)
    environment.say(environment.approved == sent + 1 and environment.posted(event) == 1, "and it is approved once")
    _over(environment, event)
    print(_indented(guest.run(f"journalctl --no-pager --output cat --unit {UNIT}").text), flush=True)


def is_tried(environment: GuestEnvironment) -> None:
    """The commands of the page have the output that the page shows."""
    guest = environment.guest
    guest.run(f"rm -f {DROP_IN}; systemctl daemon-reload")
    since = guest.run("date +%s.%N").text
    guest.run(_block("Test under systemd"))
    until(lambda: "resumed" in _said(environment, since))
    said, recorded = (
        _said(environment, since),
        guest.run("grep -E 'scheduled|decided|accepted|started|completed' /run/try.log").text,
    )
    steps = ("Freeze is Scheduled", "prepared", "ready, ", "has ended", "resumed")
    found = [said.find(step) for step in steps]
    good = -1 not in found and found == sorted(found) and "approval.accepted" in recorded
    environment.say(good, f"tested with the commands of the page, on this machine: {', '.join(steps)}")
    print(_indented(f"{said}\n{recorded}"), flush=True)
    guest.run(f"pkill -x {NAME[:15]}; rm -f /run/try.db*; rm -f {RUN}/events/status.json")


def prepares_once(environment: GuestEnvironment) -> None:
    """Several events and their changes take the VM out of service once, until the last one has ended."""
    guest = environment.guest
    _with(environment, drain=SHORT)
    environment.start(ENFORCE)
    sent, since = environment.approved, guest.run("date +%s.%N").text
    first, second = environment.announce_platform(count=2)
    took = until(lambda: environment.posted(first) and environment.posted(second))
    environment.say(took < PATIENCE and environment.approved == sent + 2, "two events at once: each is approved, once")
    inode = guest.run(f"stat -c %i {RUN}/events/{first}.json").text
    environment.announce_platform(first, second, notice=700)
    changed = until(lambda: guest.run(f"stat -c %i {RUN}/events/{first}.json").text not in ("", inode))
    time.sleep(3)
    environment.announce_platform(second)
    until(lambda: guest.run(f"test ! -e {RUN}/ready/{first}"))
    time.sleep(3)
    still = guest.run(f"test -e {OUT} && test -e {RUN}/ready/{second} && test ! -e {RUN}/events/{first}.json")
    environment.say(
        changed < PATIENCE and bool(still), "one changed and then ended: its ready file is removed, the VM stays out"
    )
    _over(environment, second)
    said = _said(environment, since)
    times = said.count("running prepare"), said.count("resumed")
    environment.say(times == (1, 1), f"taken out {times[0]} time, back {times[1]} time")


def prepares_or_holds(environment: GuestEnvironment) -> None:
    """A failing drain is never approved, is logged in the journal, and is repeated; a hanging one ends with its
    event."""
    guest = environment.guest
    guest.write("/etc/azure-scheduled-events-handshake/failing", FAILING, "0755")
    guest.run(f"touch {BROKEN}")
    _with(
        environment,
        drain=SHORT,
        more="Environment=PREPARE=/etc/azure-scheduled-events-handshake/failing RETRY_SECONDS=3\n",
    )
    environment.start(ENFORCE)
    sent, since = environment.approved, guest.run("date +%s.%N").text
    (event,) = environment.announce_platform()
    until(lambda: _said(environment, since).count("prepare failed") >= 3)
    said = _said(environment, since)
    failed = next((line for line in said.splitlines() if "prepare failed" in line), "")
    held = 'reason="not-prepared"' in environment.get("/metrics")
    environment.say(
        bool(failed) and held and environment.approved == sent,
        f"it fails: {environment.approved - sent} approvals after {said.count('prepare failed')} attempts; {failed}",
    )
    guest.run(f"rm {BROKEN}")
    took = until(lambda: environment.approved > sent)
    environment.say(took < PATIENCE, f"once it succeeds: {environment.approved - sent} approval")
    _over(environment, event)
    _with(environment, drain=LONG)
    sent, since = environment.approved, guest.run("date +%s.%N").text
    (event,) = environment.announce_platform()
    until(lambda: guest.run(f"test -e {OUT}"))
    _over(environment, event, f"ended while its drain would take {LONG} s")
    environment.say(
        "stopped prepare" in _said(environment, since) and environment.approved == sent, "and no event was approved"
    )


def outlives_restarts(environment: GuestEnvironment) -> None:
    """Agent and service restart in the middle: the event file stays, no step is repeated, and the event is approved."""
    guest = environment.guest
    _with(environment, drain=15)
    environment.start(ENFORCE)
    sent, since = environment.approved, guest.run("date +%s.%N").text
    (event,) = environment.announce_platform()
    until(lambda: guest.run(f"test -e {OUT}"))
    guest.run(f"systemctl stop {NAME}")
    left = guest.run(
        f"stat -c '%U %a' {RUN}/events; grep -c '\"running\": false' {RUN}/events/status.json"
    ).text.split()
    there = guest.run(f"test -e {RUN}/events/{event}.json")
    environment.say(bool(there) and left == ["root", "755", "1"], f"the agent is stopped, the event file stays: {left}")
    guest.run(f"systemctl start {NAME}")
    took = until(lambda: environment.approved > sent)
    environment.say(
        took < PATIENCE,
        f"started again it approves what was prepared meanwhile: {environment.approved - sent} approval",
    )
    for command in (f"systemctl restart {UNIT}", f"systemctl kill --signal KILL {UNIT}"):
        guest.run(f"{command}; rm -f {RUN}/ready/{event}")
        until(lambda: guest.run(f"test -e {RUN}/ready/{event}"))
    times, paths = (
        _said(environment, since).count("running prepare"),
        guest.run(f"systemctl is-active {UNIT}.path").text,
    )
    good = times == 1 and paths == "active" and bool(guest.run(f"test -e {OUT} && test -e {RUN}/ready/{event}"))
    environment.say(good, f"the service restarted, then killed, it continues: prepared {times} time")
    _over(environment, event)


def stops_a_unit(environment: GuestEnvironment) -> None:
    """With the matching drop-in, `prepare` and `resume` stop and start a systemd unit."""
    guest = environment.guest
    guest.write("/etc/systemd/system/shop.service", SHOP)
    folder = "/etc/azure-scheduled-events-handshake"
    guest.write(f"{folder}/stop-shop", "#!/bin/sh\nexec systemctl stop shop\n", "0755")
    guest.write(f"{folder}/start-shop", "#!/bin/sh\nexec systemctl start shop\n", "0755")
    _with(environment, drain=SHORT, more=f"Environment=PREPARE={folder}/stop-shop RESUME={folder}/start-shop\n")
    example = f"/usr/share/doc/{NAME}/examples/handshake/as-root.conf"
    guest.run(f"cp {example} {AS_ROOT} && systemctl daemon-reload && systemctl start shop")
    environment.start(ENFORCE)
    sent = environment.approved
    (event,) = environment.announce_platform()
    took = until(lambda: environment.approved > sent)
    state = guest.run("systemctl show shop --value --property ActiveState").text
    environment.say(took < PATIENCE and state == "inactive", f"a unit is stopped before the approval: it is {state}")
    _over(environment, event)
    state = guest.run("systemctl show shop --value --property ActiveState").text
    environment.say(state == "active", f"and started after the event: it is {state}")
    guest.run(f"rm {AS_ROOT}; systemctl daemon-reload; systemctl stop shop")


def shakes_hands_after_a_boot(environment: GuestEnvironment) -> None:
    """If enabled, it runs after a boot, and its user owns the directory of ready files before the agent starts."""
    guest = environment.guest
    _with(environment, drain=SHORT)
    owner = guest.run(f"stat -c %U {RUN}/ready").text
    state = guest.run(f"systemctl is-active {UNIT}.path").text
    environment.say(
        (owner, state) == (USER, "active"), f"after the boot: the path unit is {state}, ready files are {owner}'s"
    )
    environment.start(ENFORCE)
    sent = environment.approved
    (event,) = environment.announce_platform()
    took = until(lambda: environment.approved > sent)
    environment.say(took < PATIENCE, f"prepared and approved: {environment.approved - sent} approval")
    _over(environment, event)
    guest.run(f"systemctl disable --now {UNIT}.path")


def _with(environment: GuestEnvironment, drain: int, more: str = "") -> None:
    """Configure the service with this many seconds to wait for work to end, and further lines."""
    environment.guest.write(DROP_IN, f"[Service]\nEnvironment=DRAIN_SECONDS={drain}\n{more}")
    environment.guest.run("systemctl daemon-reload")


def _over(environment: GuestEnvironment, event: str, when: str = "ended") -> None:
    """End all events: event file and ready file disappear, the VM is back in service, and the service ends."""
    guest = environment.guest
    environment.end_events()
    took = until(
        lambda: (
            guest.run(f"test ! -e {RUN}/events/{event}.json -a ! -e {OUT} -a ! -e {RUN}/ready/{event}")
            and guest.run(f"systemctl is-active {UNIT}.service").text == "inactive"
        )
    )
    left = guest.run(f"ls -A {RUN}/events {RUN}/ready; systemctl is-active {UNIT}.path").text.split()
    good = took < PATIENCE and left == [f"{RUN}/events:", "status.json", f"{RUN}/ready:", "active"]
    environment.say(good, f"{when}: back in service {took:.0f} s later; {' '.join(left)}")


def _said(environment: GuestEnvironment, since: str) -> str:
    """Return the service's journal since that time."""
    return environment.guest.run(f"journalctl --no-pager --output cat --unit {UNIT} --since @{since}").text


def _block(heading: str) -> str:
    """Return the first shell block below this heading of the page."""
    text = PAGE.read_text(encoding="utf-8")
    line = text[: text.index(f"\n## {heading}\n")].count("\n") + 1
    return next(block.text for block in blocks(Path(PAGE)) if block.language == "sh" and block.line > line)


def _indented(text: str) -> str:
    return "\n".join(f"       {line}" for line in text.splitlines())
