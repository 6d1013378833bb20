"""`[event_hubs]`: connection strings and their traps, and what the section's settings mean together."""

from __future__ import annotations

from pathlib import Path

import azure.eventhub as sdk
import pytest

from exporter.config.event_hubs import parse_connection_string
from exporter.text.values import InvalidValue
from tests.support.configuration import CONNECTION, KEY, errors, loaded


def test_a_connection_string_comes_by_environment_or_file(tmp_path: Path) -> None:
    """The secret is read from a variable or from a file, stripped, and both give the same."""
    path = tmp_path / "secret"
    path.write_text(f"  {CONNECTION};EntityPath=events\n\n")
    by_file = loaded(f"--event-hubs.connection-string-file={path}").event_hubs
    by_variable = loaded(
        "--event-hubs.event-hub=events",
        environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": CONNECTION + ";EntityPath=events"},
    ).event_hubs
    assert by_file.connection == by_variable.connection
    assert by_file.connection_string.reveal() == CONNECTION + ";EntityPath=events"
    assert by_file.event_hub == by_variable.event_hub == "events"


def test_a_secret_file_that_is_wrong_is_named_and_not_quoted(tmp_path: Path) -> None:
    """Missing, too large, not UTF-8 or nonsense: the path is in the error, the content is not."""
    path = tmp_path / "secret"
    flag = f"--event-hubs.connection-string-file={path}"
    assert errors(flag) == (f"--event-hubs.connection-string-file: {path}: cannot be read: No such file or directory",)
    for content in (b"hunter2" * 20000, b"hunter2\xff", b"hunter2", b""):
        path.write_bytes(content)
        (error,) = errors(flag)
        assert error.startswith(f"--event-hubs.connection-string-file: {path}: ")
        assert "hunter2" not in error


def test_a_namespace_needs_a_hub() -> None:
    """With a namespace the hub's name has to be given; with it the destination is configured."""
    flag = "--event-hubs.fully-qualified-namespace=contoso.servicebus.windows.net"
    assert errors(flag) == (
        "[event_hubs] event_hub: expected the name of the event hub here, or as EntityPath in the connection string, "
        'found ""',
    )
    hubs = loaded(flag, "--event-hubs.event-hub=events").event_hubs
    assert hubs.configured
    assert hubs.connection is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a connection string such as"),
        (f'"{CONNECTION}"', "without quotation marks"),
        ("Endpoint", "fields of the form Name=value"),
        (f"{CONNECTION};SharedAccessKey=again", "each once"),
        (f"{CONNECTION}\nEntityPath=x", "on one line"),
        (f"{CONNECTION};UseDevelopmentEmulator=True", 'exactly "true" or "false" in lower case'),
        (CONNECTION.replace("windows.net/", "windows.net:5671/"), "no port in Endpoint"),
        (CONNECTION.replace("contoso.servicebus.windows.net", "[::1]"), "an IPv6 literal"),
        (CONNECTION.replace("sb://", "ftp://"), "Endpoint=sb://HOST/"),
        (CONNECTION.replace("sb://", "sb://user@"), "nothing after it"),
        (CONNECTION.partition(";SharedAccessKey=")[0], "SharedAccessKeyName and SharedAccessKey together"),
        ("Endpoint=sb://contoso.servicebus.windows.net/", "either SharedAccessKeyName with SharedAccessKey"),
        (CONNECTION + ";SharedAccessSignature=sr", "either SharedAccessKeyName with SharedAccessKey"),
    ],
)
def test_a_trap_in_a_connection_string_is_a_sentence(text: str, words: str) -> None:
    """Each known mistake is answered with what to do, and without the key."""
    with pytest.raises(InvalidValue) as caught:
        parse_connection_string(text)
    assert words in str(caught.value)
    assert KEY not in str(caught.value)


def test_the_emulator_may_have_a_port_and_other_case() -> None:
    """Field names are taken in any case, as the SDK does; the emulator's port is kept."""
    read_string = parse_connection_string(
        "endpoint=sb://127.0.0.1:5700;sharedaccesskeyname=k;sharedaccesskey=a=b==;usedevelopmentemulator=true;"
    )
    assert (read_string.host, read_string.port, read_string.emulator) == ("127.0.0.1", 5700, True)
    assert read_string.key.reveal() == "a=b=="


@pytest.mark.parametrize("tail", [";EntityPath=events", "", ";UseDevelopmentEmulator=true;EntityPath=e/"])
def test_the_sdk_reads_the_same(tail: str) -> None:
    """What we read out of a connection string is what Azure's SDK reads out of it."""
    string = (CONNECTION + tail).replace(
        "contoso.servicebus.windows.net", "emulator" if "Emulator" in tail else "contoso"
    )
    ours, theirs = parse_connection_string(string), sdk.parse_connection_string(string)
    assert ours.host == theirs.fully_qualified_namespace
    assert ours.event_hub == (theirs.eventhub_name or "")
    assert (ours.key_name, ours.key.reveal()) == (theirs.shared_access_key_name, theirs.shared_access_key)


def test_a_signature_is_warned_of() -> None:
    """A shared access signature works until it expires, and nobody can renew it from here."""
    settings = loaded(
        environ={
            "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": "Endpoint=sb://contoso.servicebus.windows.net/;"
            f"SharedAccessSignature=SharedAccessSignature sr=x&sig={KEY}&se=1;EntityPath=events"
        }
    )
    (warning,) = settings.warnings
    assert "SharedAccessSignature, which can't be renewed" in warning
    assert KEY not in warning


def test_fields_of_other_sdks_are_warned_of() -> None:
    """Old connection strings hold fields that Azure's SDK ignores: they work, and that is said without their values."""
    string = CONNECTION + ";EntityPath=events;TransportType=hunter2"
    settings = loaded(environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": string})
    (warning,) = settings.warnings
    assert "holds fields that are ignored" in warning
    assert "hunter2" not in warning
