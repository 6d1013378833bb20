"""What one VM of a fleet must record and may approve, by an independent reading: slow, simple, sharing no code.

Its only input is what the environment sees: the bodies that were served, the responses to POSTs, and the commits. A
killed process knows only what was durable; the reading is copied and discarded accordingly.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from exporter.core.document import folded
from tests.support import oracle

LIFE: Final = ("scheduled", "started", "updated", "completed", "ended")
"""The transitions; `canceled` counts as `ended` here, since the difference depends on gaps in polling."""
RECENT: Final = 5.0
"""Maximum seconds between two successful polls without a gap."""


@dataclass
class Known:
    """An event of the last document. `first` and `unchanged` are readings of `ExpectedRecords.observed_seconds`;
    `ownership` is "ours", "theirs", or unknown; `recorded`: its beginning was recorded and its end not yet."""

    item: dict[str, Any]
    phase: str
    first: float
    unchanged: float
    ownership: str = ""
    recorded: bool = False
    names: list[str] | None = None
    """The last readable Resources."""


@dataclass
class ExpectedRecords:
    """Everything that one VM knows, and what it has to record of each event, in order."""

    present: dict[str, Known] = field(default_factory=dict)
    recorded: dict[str, list[str]] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    begun: set[str] = field(default_factory=set)
    """Ids that were seen Started."""
    observed_seconds: float = 0.0

    def reads(self, items: list[Any], vm_name: str, everything: bool, seconds: float) -> None:
        """Read a document, this many seconds of successful polls after the previous one."""
        self.observed_seconds += seconds
        shown: dict[str, dict[str, Any]] = {}
        for item in items:
            shown.setdefault(folded(item["EventId"]), item)
        self.begun |= {key for key, item in shown.items() if item["EventStatus"] == "Started"}
        for key in [key for key in self.present if key not in shown]:
            gone = self.present.pop(key)
            self._record(key, "completed" if gone.phase == "Started" else "ended", gone.recorded)
        for key, item in shown.items():
            before = self.present.get(key)
            word, known = self._follows(before, item)
            earlier = before.names if before else None
            known.names = item["Resources"] if isinstance(item["Resources"], list) else earlier
            known.ownership = ownership_now(before, known.names, vm_name)
            known.recorded = everything or known.ownership != "theirs"
            self.present[key] = known
            if before is None or before.recorded == known.recorded:
                self._record(key, word, known.recorded)
            else:
                self._record(key, known.phase.lower() if known.recorded else "ended", True)
            if before is not None and before.ownership == "theirs" != known.ownership:
                known.first = known.unchanged = self.observed_seconds

    def _follows(self, before: Known | None, item: dict[str, Any]) -> tuple[str, Known]:
        status = item["EventStatus"]
        known = status in ("Scheduled", "Started")
        if before is None:
            phase = status if known else ""
            return phase.lower(), Known(item, phase, self.observed_seconds, self.observed_seconds)
        after = Known(item, status if known else before.phase, before.first, before.unchanged)
        if differs(before.item, item):
            after.unchanged = self.observed_seconds
        if known and not before.phase:
            return status.lower(), after
        if status == "Started" and before.phase == "Scheduled":
            return "started", after
        return "updated" if differs(before.item, item) else "", after

    def _record(self, key: str, word: str, published: bool) -> None:
        if word and published:
            self.recorded.setdefault(key, []).append(word)

    def past(self, key: str) -> oracle.Past:
        known = self.present[key]
        known_for, unchanged_for = self.observed_seconds - known.first, self.observed_seconds - known.unchanged
        theirs = known.ownership == "theirs"
        return oracle.Past(key in self.accepted, known_for, unchanged_for, key in self.begun, theirs=theirs)


def differs(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether it differs; another case of an id is no difference."""
    return {**before, "EventId": ""} != {**after, "EventId": ""}


def ownership_now(before: Known | None, names: list[str] | None, vm_name: str) -> str:
    """Judge by the last readable names. Unreadable names change nothing, except that an event of another VM may then be
    this VM's."""
    if vm_name and names is not None:
        return "ours" if any(oracle.same(name, vm_name) for name in names) else "theirs"
    if before is None or (before.ownership == "theirs" and before.names != names):
        return ""
    return before.ownership


@dataclass
class Post:
    """One POST that reached the platform."""

    true: float
    life: int
    offset: float


@dataclass
class Reading:
    """The readings of one VM, in memory and as its disk has them, and the judgement of every POST that it sends."""

    everything: bool = False
    lived: ExpectedRecords = field(default_factory=ExpectedRecords)
    durable: ExpectedRecords = field(default_factory=ExpectedRecords)
    events: list[Any] = field(default_factory=list)
    """The array of the document that was read last, and the time of the read."""
    read_at: float = 0.0
    posts: dict[str, list[Post]] = field(default_factory=dict)
    _first: dict[str, float] = field(default_factory=dict)
    _pending: tuple[list[Any], float] | None = None
    _last: tuple[float, int] | None = None

    def begins(self) -> None:
        """Begin a process, which knows nothing yet."""
        self.lived = ExpectedRecords()
        self._last = self._pending = None

    def finds(self) -> None:
        """Store a state: it has the current knowledge, whatever was read before, as at a restart. An event that was
        seen Started without it stays Started."""
        begun = self.lived.begun
        self.lived = deepcopy(self.durable)
        self.lived.begun |= begun
        self._pending = (self._pending[0], 0.0) if self._pending is not None else None

    def is_served(self, body: bytes, true: float, touched: int) -> None:
        """Note a valid document in flight; `touched` counts the changes of this VM's clocks."""
        self.events = oracle.read(body)
        self.read_at = true
        seconds = 0.0
        if self._last is not None:
            seconds = true - self._last[0]
            if seconds > RECENT:  # wrong clocks may hide a gap, but not make one longer
                seconds = 0.0 if touched == self._last[1] else RECENT
        self._last = (true, touched)
        self._pending = (self.events, seconds)
        for item in self.events:
            self._first.setdefault(folded(item["EventId"]), true)

    def is_read(self, vm_name: str) -> None:
        """Process the last served document, on a VM that knows this name, or doesn't know its name yet."""
        if self._pending is None:
            return
        events, seconds = self._pending
        self._pending = None
        self.lived.reads(events, vm_name, self.everything, seconds)
        for key in set(self._first) - set(self.lived.present):
            del self._first[key]

    def is_kept(self) -> None:
        self.durable = deepcopy(self.lived)

    def is_accepted(self, event_id: str) -> None:
        self.lived.accepted.add(folded(event_id))

    # -- judging

    def judges(self, event_id: str, setup: oracle.PolicySetup, post: Post) -> None:
        """Judge a POST: every reason that must not be against it."""
        key = folded(event_id)
        assert key in self.lived.present, "an event that is not there"
        place = next(place for place, item in enumerate(self.events) if folded(item["EventId"]) == key)
        assert oracle.judge(self.events, place, setup, self.lived.past(key)) == ("approve", ""), "should be held"
        assert key not in self.lived.accepted, "after a 200"
        assert post.true - self.read_at <= RECENT, "on an old document"
        self._in_turn(self.events[place], setup, post)
        earlier = self.posts.setdefault(key, [])
        if earlier:
            last, wait = earlier[-1], min(60.0, 5.0 * 2 ** (len(earlier) - 1))
            moved = max(0.0, post.offset - last.offset) if post.life != last.life else 0.0
            assert post.true - last.true + moved >= wait, "sooner than its backoff"
        earlier.append(post)

    def _in_turn(self, item: dict[str, Any], setup: oracle.PolicySetup, post: Post) -> None:
        """Return the observed time by the true clock, which neither stops nor jumps."""
        k = [folded(name) for name in item["Resources"]].index(folded(setup.vm_name)) + 1
        if setup.coordination == "single":
            assert len(item["Resources"]) == 1, "an event of others as well"
        if setup.coordination != "leader" or k == 1:
            return
        assert item.get("EventSource") == "User", "a platform's event by a VM that is not the leader"
        assert setup.takeover_after is not None, "by a VM that is not the leader"
        waited = post.true - self._first[folded(item["EventId"])]
        assert waited >= (k - 1) * setup.takeover_after, "before its turn"

    def ought_to_be_accepted(self, setup: oracle.PolicySetup) -> set[str]:
        """Return what this VM must approve after a long time without faults."""
        found = set()
        busy = self.lived.begun | self.lived.accepted
        for place, item in enumerate(self.events):
            key = folded(item["EventId"])
            others = any(folded(other["EventId"]) in busy - {key} for other in self.events)
            ripe = oracle.Past(False, 1e9, 1e9, key in self.lived.begun, others=others)
            if oracle.judge(self.events, place, setup, ripe) == ("approve", ""):
                found.add(key)
        return found
