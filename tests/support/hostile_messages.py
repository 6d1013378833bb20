"""Messages that any sender with access to the hub may send: records with one fault, and other content."""

from __future__ import annotations

import copy
import json
import random
import uuid
from collections.abc import Iterator
from typing import Any, Final

from tests.support.fleet_records import every_kind

DEEP: Final = 60_000
"""The depth of the deepest values: deeper than any program's stack, and within the size of a message."""
PLACE: Final = "a place for what json.dumps could not write"
STOLEN: Final = {
    "event_id": "stolen",
    "event_type": "Stolen",
    "reported_by": "stolen",
    "kind": "stolen",
    "outcome": "canceled",
    "source": "stolen",
    "id": "stolen",
    "vm": "stolen",
    "time": "stolen",
    "message": "stolen",
    "severity": "stolen",
    "skipped": "stolen",
    "toJSON": "stolen",
}
"""Members that a consumer reads from elsewhere, or uses as a name itself."""
ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 1e300, 10**400, -(2**63), "", "x", "\ud800", "\x00", "a\nb\u2028c", "x" * 5_000),
    *([], {}, [[]], [None] * 50, {"": ""}, {"__proto__": {"a": 1}}, {"length": 1}, "2026-03-04T05:06:07Z"),
)
"""Values of every type, for a place that expects another."""


def closing() -> dict[str, Any]:
    """Return a closing record, as this version sends it."""
    found: dict[str, Any] = json.loads(every_kind()["completed"])
    return found


def nested(depth: int, opening: str = '{"a":', inside: str = "1", end: str = "}") -> str:
    """Return JSON with this depth."""
    return opening * depth + inside + end * depth


def hostile() -> dict[str, bytes]:
    """By name: each a separate record about a separate event, if it is a record at all."""
    found = closing()
    return {name: _renamed(body, found, name) for name, body in _hostile(found).items()}


def _renamed(body: bytes, record: dict[str, Any], name: str) -> bytes:
    """Return a copy with another id for the record and for the event."""
    for one in {record["id"], record["subject"], record["data"]["event_id"] or record["subject"]}:
        body = body.replace(one.encode(), str(uuid.uuid5(uuid.NAMESPACE_URL, f"{one.lower()} {name}")).encode())
    return body


def _hostile(found: dict[str, Any]) -> dict[str, bytes]:
    data, summary = found["data"], found["data"]["summary"]

    def recorded(**members: Any) -> bytes:
        return json.dumps({**found, **members}).encode()

    def in_data(**members: Any) -> bytes:
        return recorded(data={**data, **members})

    def in_summary(**members: Any) -> bytes:
        return in_data(summary={**summary, **members})

    def placed(body: bytes, text: str) -> bytes:
        return body.replace(json.dumps(PLACE).encode(), text.encode())

    text = json.dumps(found)
    proto = json.dumps(STOLEN)
    return {
        "deep summary": placed(in_summary(x=PLACE), nested(DEEP)),
        "deep list in the summary": placed(in_summary(unseen=PLACE), nested(DEEP, "[", "", "]")),
        "deep known member": placed(in_summary(rule=PLACE), nested(DEEP)),
        "deep event": placed(in_data(event=PLACE), nested(DEEP)),
        "deep VM": placed(in_data(vm=PLACE), nested(DEEP)),
        "deep text": placed(in_data(message=PLACE), nested(DEEP)),
        "deep attribute": placed(recorded(extension=PLACE), nested(DEEP)),
        "deep nothing": b"[" * DEEP,
        "another's members in the summary": in_summary(**STOLEN),
        "another's members in the data": in_data(**{key: value for key, value in STOLEN.items() if key not in data}),
        "prototype of the summary": in_summary(x=1).replace(b'"x": 1', b'"__proto__": ' + proto.encode()),
        "prototype of the data": text.replace('"data": {', f'"data": {{"__proto__": {proto}, ', 1).encode(),
        "prototype of the record": text.replace("{", f'{{"__proto__": {proto}, ', 1).encode(),
        "constructor": in_summary(constructor={"prototype": STOLEN}),
        "members twice": text.replace("{", '{"id": "stolen", "source": "stolen", "type": "stolen", ', 1).encode(),
        "huge number": placed(in_summary(notice_seconds=PLACE), "1e999"),
        "huge integer": placed(in_summary(gaps=PLACE), "9" * 400),
        "number of many digits": placed(in_summary(x=PLACE), "9" * 5_000),
        "no number": placed(in_summary(notice_seconds=PLACE), "NaN"),
        "text for a number": in_summary(notice_seconds="15"),
        "number for a text": in_summary(rule=7),
        "text for a time": in_summary(gone_at="yesterday"),
        "list for the summary": in_data(summary=[summary]),
        "no summary": in_data(summary=None),
        "text for the data": recorded(data=text),
        "list for the data": recorded(data=[data]),
        "no data": recorded(data=None),
        "list for the event": in_data(event=[data["event"]]),
        "no VM": in_data(vm=None),
        "half a character": in_data(message="\ud800", vm={"name": "\udfff"}),
        "ends of lines": in_data(message='a\n{"kind": "stolen"}\r\u2028\x85b'),
        "no UTF-8": text.encode()[:-1] + b"\xff}",
        "mark of its order": b"\xef\xbb\xbf" + text.encode(),
        "other encoding": text.encode("utf-16"),
        "cut off": text.encode()[:-40],
        "two records": text.encode() * 2,
        "nothing": b"",
        "null": b"null",
        "list": b"[]",
        "large": recorded(padding="x" * 900_000),
        "large summary": in_summary(x="x" * 900_000),
        "local time": recorded(time="2026-03-04T05:06:07"),
        "time of a calendar": recorded(time="Wed, 04 Mar 2026 05:06:07 GMT"),
        "number for a time": recorded(time=1),
        "long name": recorded(id="x" * 5_000),
    }  # fmt: skip


def mutants(count: int, seed: int = 1) -> Iterator[bytes]:
    """Yield this many records, of every kind, each with a part missing, duplicated, moved, or of another type."""
    chance = random.Random(seed)  # noqa: S311  # the same ones in each run
    records = [json.loads(body) for body in every_kind().values()]
    for number in range(count):
        record = chance.choice(records)
        made = copy.deepcopy(record)
        for _ in range(chance.choice((1, 1, 2, 4))):
            inside = made
            while True:
                places = [value for value in inside.values() if isinstance(value, dict) and value]
                if not places or chance.random() < 0.3:
                    break
                inside = chance.choice(places)
            key = chance.choice([*inside, *STOLEN, "__proto__"])
            if chance.random() < 0.2:
                inside.pop(key, None)
            else:
                inside[key] = copy.deepcopy(chance.choice([*ODD, *inside.values()]))
        yield _renamed(json.dumps(made).encode(), record, str(number))
