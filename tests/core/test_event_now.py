"""`EventNow`: an unreadable field or a status that goes back doesn't undo what is known."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

import pytest
from msgspec.structs import replace

from exporter.core.decision import decide, files_to_check, reconsidered
from exporter.core.document import MAX_RESOURCES
from exporter.core.interruption import attribute
from exporter.core.lifecycle import EVENT_MEMORY_BYTES
from exporter.core.policy import DEFAULT_RULES, Coordination, Policy, Presence
from exporter.core.records import Vm
from exporter.core.scope import EventNow, ownership_of
from exporter.core.state import Interruption, InterruptionKind, Ownership, Phase, TransitionKind
from exporter.core.state_codec import dump_state, load_state
from tests.support.approval_case import ANY_REBOOT, ENFORCE, OURS, hours
from tests.support.core_documents import EVENT_ID, KEY, NOON, Watcher, approved, event, kinds, only, started

DUE: Final = NOON + timedelta(minutes=15)
"""`NotBefore` of `event()`."""


def shortened(fields: dict[str, Any]) -> str:
    """Return a short id of a case: pytest puts it into the environment, limited to 32,767 characters on Windows."""
    return str(fields)[:80]


UNREADABLE: Final[tuple[dict[str, Any], ...]] = (
    {"EventType": ...},
    {"EventType": None},
    {"EventType": ""},
    {"EventType": 5},
    {"EventType": "a\ud800"},
    {"Resources": ...},
    {"Resources": None},
    {"Resources": "vm-0"},
    {"Resources": ["vm-0", 5]},
    {"Resources": ["vm-1"] * (MAX_RESOURCES + 1)},
    {"EventStatus": ...},
    {"EventStatus": ""},
    {"EventStatus": 5},
    {"NotBefore": ...},
    {"NotBefore": "soon"},
    {"EventType": None, "Resources": None, "EventStatus": None, "NotBefore": None},
)
Now = tuple[Ownership, str | None, Phase, datetime | None]


def now_of(watcher: Watcher, vm_name: str = "vm-0") -> Now:
    """Return ownership, type, phase, and the earliest start."""
    found = EventNow(watcher.state.tracked[KEY], vm_name)
    return found.ownership, found.tracked.event_type, found.phase, found.starts_at


def seen(*documents: dict[str, Any]) -> Watcher:
    """Return a watcher that has read these documents of one event each."""
    watcher = Watcher.fresh()
    for shown in documents:
        watcher.sees(shown)
    return watcher


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("vm-0", Ownership.OURS),
        ("VM-0", Ownership.OURS),
        ("vm-", Ownership.THEIRS),
        ("vm-00", Ownership.THEIRS),
        ("m-0", Ownership.THEIRS),
        (" vm-0", Ownership.THEIRS),
        ("", Ownership.MAYBE),
    ],
)
def test_names_are_compared_whole_and_without_case(name: str, found: Ownership) -> None:
    """A part of a name belongs to another VM. Without a name, ownership is unknown."""
    assert ownership_of(("other", "Vm-0"), name) is found
    assert ownership_of((), name) is (Ownership.THEIRS if name else Ownership.MAYBE)
    assert ownership_of(None, name) is Ownership.MAYBE


@pytest.mark.parametrize("fields", UNREADABLE, ids=shortened)
@pytest.mark.parametrize("again", [1, 3])
def test_unreadable_fields_keep_their_last_values(fields: dict[str, Any], again: int) -> None:
    """For any number of documents, for events of this VM and of others, and after a restart."""
    for names, ownership in ((["vm-1", "VM-0"], Ownership.OURS), (["vm-1"], Ownership.THEIRS)):
        watcher = seen(event(Resources=names))
        expected = (ownership, "Reboot", Phase.SCHEDULED, DUE)
        assert now_of(watcher) == expected
        for _ in range(again):
            watcher.sees(event(**({"Resources": names} | fields)))
            watcher.state = load_state(dump_state(watcher.state))
        assert now_of(watcher) == expected
        assert len(watcher.state.tracked[KEY].resources or ()) == len(names)


@pytest.mark.parametrize("fields", UNREADABLE, ids=shortened)
def test_fields_that_were_never_readable_are_unknown(fields: dict[str, Any]) -> None:
    """The first document with a readable value sets it."""
    watcher = seen(event(**fields))
    ownership, event_type, phase, starts_at = now_of(watcher)
    assert (ownership is Ownership.MAYBE) is ("Resources" in fields)
    assert (event_type is None) is ("EventType" in fields)
    assert (phase is Phase.UNKNOWN) is ("EventStatus" in fields)
    assert (starts_at is None) is ("NotBefore" in fields)
    watcher.sees(event())
    assert now_of(watcher) == (Ownership.OURS, "Reboot", Phase.SCHEDULED, DUE)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"EventType": "Nap"}, (Ownership.OURS, "Nap", Phase.SCHEDULED, DUE)),
        ({"Resources": []}, (Ownership.THEIRS, "Reboot", Phase.SCHEDULED, DUE)),
        ({"Resources": ["vm-1"]}, (Ownership.THEIRS, "Reboot", Phase.SCHEDULED, DUE)),
        ({"EventStatus": "Paused"}, (Ownership.OURS, "Reboot", Phase.UNKNOWN, DUE)),
        (
            {"NotBefore": "Fri, 21 Nov 2025 12:16:00 GMT"},
            (Ownership.OURS, "Reboot", Phase.SCHEDULED, DUE + timedelta(minutes=1)),
        ),
    ],
    ids=str,
)
def test_readable_fields_replace_their_last_values(fields: dict[str, Any], expected: Now) -> None:
    """Including unknown values and an empty list; they are kept while the field is unreadable again."""
    watcher = seen(event(), event(**fields))
    assert now_of(watcher) == expected
    watcher.sees({**event(), **dict.fromkeys(fields)})
    assert now_of(watcher) == expected


def test_earlier_names_determine_ownership_once_the_vm_name_is_known() -> None:
    """The VM name may become known while the document's Resources are unreadable."""
    watcher = seen(event(Resources=["vm-1", "vm-0"]), event(Resources=None))
    assert [now_of(watcher, name)[0] for name in ("", "vm-0", "vm-2")] == [
        Ownership.MAYBE,
        Ownership.OURS,
        Ownership.THEIRS,
    ]


@pytest.mark.parametrize(
    "later",
    [
        [event()],
        [event(NotBefore="Fri, 21 Nov 2025 12:30:00 GMT")],
        [event(EventStatus="Paused")],
        [event(EventStatus=...)],
        [event(EventStatus=5, Resources=5, EventType=5)],
        [event(), event(Description="Other."), event(EventStatus=None)],
    ],
    ids=str,
)
def test_started_event_stays_started(later: list[dict[str, Any]]) -> None:
    """With the same start time, in every document that contains the event, and across a restart."""
    watcher = seen(event(), started())
    since = watcher.state.tracked[KEY].started_at
    assert since is not None
    for shown in [*later, started(), event()]:
        watcher.sees(shown)
        watcher.state = load_state(dump_state(watcher.state))
        assert now_of(watcher) == (Ownership.OURS, "Reboot", Phase.STARTED, None)
        assert watcher.state.tracked[KEY].started_at == since


def test_scheduled_after_started_is_recorded_as_unexpected() -> None:
    """Transitions follow the documents; only the published status stays Started."""
    watcher = seen(event(), started())
    found = only(watcher.sees(event()))
    assert (found.kind, found.unexpected) == (TransitionKind.UPDATED, True)


@pytest.mark.parametrize("twins", [(event(), started()), (started(), event()), (event(EventStatus=None), started())])
def test_duplicate_id_has_started_if_one_of_them_has(twins: tuple[dict[str, Any], ...]) -> None:
    """In either order, when first seen or later, and after the second one disappears; it isn't canceled."""
    for watcher in (Watcher.fresh(), seen(event())):
        watcher.sees(*twins)
        since = watcher.state.tracked[KEY].started_at
        assert since == watcher.wall
        watcher.sees(event())
        assert now_of(watcher) == (Ownership.OURS, "Reboot", Phase.STARTED, None)
        assert watcher.state.tracked[KEY].started_at == since
        assert kinds(watcher.sees()) == ["ended"]


@pytest.mark.parametrize(
    "fields",
    [{"Resources": ["vm-1"]}, {"EventType": "Freeze"}, {"NotBefore": "Fri, 21 Nov 2025 13:00:00 GMT"}],
    ids=str,
)
@pytest.mark.parametrize("first", [True, False])
def test_duplicate_id_changes_no_known_values(fields: dict[str, Any], first: bool) -> None:
    """It's ambiguous which element counts. For a new event, the first element does."""
    twins = (event(**fields), event()) if first else (event(), event(**fields))
    watcher = seen(event())
    for _ in range(2):
        watcher.sees(*twins)
        watcher.state = load_state(dump_state(watcher.state))
        assert now_of(watcher) == (Ownership.OURS, "Reboot", Phase.SCHEDULED, DUE)
    watcher.sees(event(**fields))
    assert now_of(watcher) == now_of(seen(event(**fields)))
    watcher = Watcher.fresh()
    watcher.sees(*twins)
    assert now_of(watcher) == now_of(seen(twins[0]))


def test_event_that_was_absent_starts_again() -> None:
    """Earlier values of the id are dropped, except for sent approvals and that it was Started."""
    watcher = seen(started(EventType="Redeploy"))
    watcher.sees()
    watcher.sees(event(EventType=None, Resources=None, NotBefore=None))
    assert now_of(watcher) == (Ownership.MAYBE, None, Phase.SCHEDULED, None)
    assert watcher.state.tracked[KEY].was_started


def test_interruptions_are_attributed_by_the_last_known_resources() -> None:
    """While the event is in the document, and shortly after."""
    watcher = seen(started(), started(Resources=None))
    for _ in range(2):
        now = watcher.state.last_good
        assert now is not None
        found = attribute(watcher.state, Vm(name="vm-0"), Interruption(InterruptionKind.CLOCK_STEP, 2.0, now), 1.0)
        assert found is not None
        watcher.publishes()
        watcher.sees()


@pytest.mark.parametrize("fields", [{"EventType": None}, {"Resources": None}], ids=str)
def test_event_continued_under_a_new_id_is_matched_by_its_last_fields(fields: dict[str, Any]) -> None:
    """It isn't canceled just because its last document couldn't be read."""
    watcher = seen(event(), event(**fields))
    ended = watcher.sees(started("new"))[0]
    assert (ended.kind, ended.replaced_by) == (TransitionKind.ENDED, "new")


def test_weight_of_a_closed_event_includes_earlier_fields() -> None:
    """The memory of ended events is bounded by their size on disk."""
    names = ["n" * 100] * 1000
    watcher = seen(event(Resources=names), event(Resources=None))
    watcher.publishes()
    watcher.sees()
    assert watcher.state.closed[KEY].weight > 100 * 1000


def test_memory_of_earlier_documents_is_bounded() -> None:
    """Each document could contain different names, up to the maximum size of a document."""
    watcher = Watcher.fresh()
    names = ["n" * 1000] * 1000
    for number in range(8):
        unreadable = [event(f"e-{earlier}", Resources=None, EventType=None) for earlier in range(number)]
        watcher.sees(event("own", Resources=None) if number else event("own"), *unreadable)
        watcher.sees(
            event("own", Resources=None), *unreadable, event(f"e-{number}", Resources=names, EventType="t" * 100)
        )
    kept = watcher.state.tracked
    assert sum(tracked.earlier_bytes for tracked in kept.values()) <= EVENT_MEMORY_BYTES
    assert EventNow(kept["own"], "vm-0").ownership is Ownership.OURS
    assert sum(tracked.resources is None for tracked in kept.values()) > 0
    load_state(dump_state(watcher.state))


# -- values of earlier documents approve nothing

POLICIES: Final = {
    "any": replace(ENFORCE, coordination=Coordination.ANY),
    "leader": ENFORCE,
    "single": replace(ENFORCE, coordination=Coordination.SINGLE),
    "takeover": replace(ENFORCE, takeover_after=1.0),
    "defaults": replace(ENFORCE, rules=DEFAULT_RULES),
    "all conditions": replace(
        ENFORCE,
        rules=(
            replace(
                ANY_REBOOT,
                settle=1.0,
                require_file="/run/ready/{event_id}",
                when_quiet=True,
                max_resources=1,
                hours=hours(),
            ),
        ),
    ),
}
READY: Final = f"/run/ready/{EVENT_ID}"
FILES: Final = replace(OURS, files={READY: Presence.PRESENT})


def decided(watcher: Watcher, policy: Policy) -> str:
    """Return the reason to hold the event; empty for an approval."""
    (found,) = decide(policy, watcher.state, FILES)
    return found.reason.value


def unread(fields: dict[str, Any]) -> str:
    """Return the reason for such fields: an empty type is an unknown value."""
    return "unknown-type" if fields.get("EventType") == "" else "malformed"


@pytest.mark.parametrize("fields", UNREADABLE, ids=shortened)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_earlier_values_never_approve(policy: Policy, fields: dict[str, Any]) -> None:
    """An event approved in one document is held in the next, whatever the rules need, until it's readable again."""
    watcher = seen(event(), event())
    assert decided(watcher, policy) == ""
    watcher.sees(event(**fields))
    assert decided(watcher, policy) == ("not-scheduled" if "EventStatus" in fields else unread(fields))
    asked = files_to_check(policy, watcher.state.document)
    assert asked <= ({READY} if "EventType" not in fields else set())
    watcher.sees(event())
    watcher.sees(event())
    assert decided(watcher, policy) == ""


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_event_of_other_vms_is_not_this_vm_while_its_resources_are_unreadable(policy: Policy) -> None:
    """The last known names determine the reason; without any, the event is malformed."""
    for names, reason in ((["vm-1"], "not-this-vm"), (["vm-0"], "malformed"), (None, "malformed")):
        watcher = seen(event(Resources=names), event(Resources="vm-0"))
        assert decided(watcher, policy) == reason


@pytest.mark.parametrize("fields", UNREADABLE, ids=shortened)
def test_approval_is_outdated_while_the_event_is_unreadable(fields: dict[str, Any]) -> None:
    """The rules would hold it now and use no earlier value; the status doesn't matter to them."""
    watcher = seen(event())
    approved(watcher, accepted_at=NOON)
    watcher.sees(event(**fields))
    result = reconsidered(ENFORCE, watcher.state.tracked[KEY], "vm-0")
    assert (result[1].value if result else None) == (None if fields.keys() == {"EventStatus"} else unread(fields))
