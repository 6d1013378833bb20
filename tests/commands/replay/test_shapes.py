"""Input formats of documents: `replay` yields the same records for each, with the recorded times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.commands.replay.test_command import an_event, as_json, run

TIMES = [f"2026-03-02T12:0{minute}:00Z" for minute in range(3)]
SCHEDULED = an_event(Resources=["vm-1"])
STARTED = {**SCHEDULED, "EventStatus": "Started", "NotBefore": ""}
DOCUMENTS = [
    {"DocumentIncarnation": 1, "Events": [SCHEDULED]},
    {"DocumentIncarnation": 2, "Events": [STARTED]},
    {"DocumentIncarnation": 3, "Events": []},
]


def lines(*values: Any) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


TIMED = {
    "lines": lines(*({"time": at, "document": each} for at, each in zip(TIMES, DOCUMENTS, strict=True))),
    "lines without ends": lines(
        *({"time": at, "document": each} for at, each in zip(TIMES, DOCUMENTS, strict=True))
    ).replace(b"\n", b""),
}
UNTIMED = {
    "lines": lines(*DOCUMENTS),
    "lines of Windows": lines(*DOCUMENTS).replace(b"\n", b"\r\n"),
    "of curl in a loop": lines(*DOCUMENTS).replace(b"\n", b""),
    "pretty": "\n".join(json.dumps(each, indent=2) for each in DOCUMENTS).encode(),
    "without a time": lines(*({"document": each} for each in DOCUMENTS)),
    "UTF-16": lines(*DOCUMENTS).decode().encode("utf-16"),
    "UTF-16 big endian": b"\xfe\xff" + lines(*DOCUMENTS).decode().encode("utf-16-be"),
    "UTF-8 with a byte order mark": lines(*DOCUMENTS).decode().encode("utf-8-sig"),
    "truncated UTF-16": lines(*DOCUMENTS).decode().encode("utf-16") + b"{",
}


def scenario(content: bytes) -> list[tuple[str, str]]:
    """Return kind and time of each transition."""
    records, last = as_json("--vm", "vm-1", "-", standard_input=content)
    assert last["documents"] == len(DOCUMENTS), records
    return [(record["data"]["transition"], record["time"]) for record in records if record["data"]["transition"]]


@pytest.mark.parametrize("shape", TIMED)
def test_time_of_a_document_is_used(shape: str) -> None:
    """The time next to a document is the time of its poll."""
    times = [f"2026-03-02T12:0{minute}:00.000000Z" for minute in range(3)]
    assert scenario(TIMED[shape]) == list(zip(("scheduled", "started", "completed"), times, strict=True))


@pytest.mark.parametrize("shape", UNTIMED)
def test_documents_of_one_file_are_replayed_in_order(shape: str) -> None:
    """The format of the file doesn't matter."""
    assert [kind for kind, _ in scenario(UNTIMED[shape])] == ["scheduled", "started", "completed"]


def test_utf_16_without_a_byte_order_mark_is_an_error() -> None:
    """The error contains the remedy."""
    code, _, error = run("-", standard_input=lines(*DOCUMENTS).decode().encode("utf-16-le"))
    assert code == 1
    assert error.startswith("standard input: expected UTF-8, found UTF-16 without a byte order mark; save it as UTF-8")
    assert run("-", standard_input=None)[::2] == (1, "standard input is closed\n")


def test_null_bytes_at_the_beginning_affect_only_their_line() -> None:
    """A power failure leaves NUL bytes in place of the first lines of a recording."""
    records, last = as_json("--vm", "vm-1", "-", standard_input=b"\0" * 100 + b"\n" + lines(*DOCUMENTS))
    assert last["documents"] == len(DOCUMENTS)
    assert ["document.rejected" in record["type"] for record in records].count(True) == 1


def test_repeated_field_makes_an_event_malformed() -> None:
    """The original text of a document in a line is parsed, as by the agent."""
    text = json.dumps(DOCUMENTS[0]).replace('"EventType"', '"EventType": "Reboot", "EventType"')
    for content in (text, f'{{"time": "{TIMES[0]}", "document": {text}, "more": [1, {{}}]}}'):
        _, last = as_json("--vm", "vm-1", "-", standard_input=content.encode())
        assert last["decisions"][0]["moments"][0]["reason"] == "malformed"


def test_truncated_file_is_replayed_up_to_its_end() -> None:
    """Complete documents are replayed, and the rest is rejected."""
    content = UNTIMED["of curl in a loop"]
    records, last = as_json("--vm", "vm-1", "-", standard_input=content[:-10])
    assert last["documents"] == 2
    assert [record["data"]["message"] for record in records if "document.rejected" in record["type"]] == [
        "standard input, object 3: not a valid document: expected a JSON object"
    ]


@pytest.mark.parametrize(
    "content",
    [
        json.dumps(DOCUMENTS[0]).encode() + b" x",
        lines({"time": "yesterday", "document": DOCUMENTS[0]}),
        lines({"time": True, "document": DOCUMENTS[0]}),
        lines({"time": 1e300, "document": DOCUMENTS[0]}),
        lines({"time": TIMES[0], "document": 5}),
        b"\xff\xfe{",
    ],
    ids=["text after it", "no time", "a boolean", "time out of range", "a number", "half a character"],
)
def test_invalid_input_is_an_error_with_exit_code_1(content: bytes) -> None:
    code, _, error = run("--vm", "vm-1", "-", standard_input=content)
    assert code == 1
    assert error == "the input contains no document\n"
