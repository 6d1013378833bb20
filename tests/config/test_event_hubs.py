"""`[event_hubs]`: connection strings, common mistakes in them, and combinations of the section's settings."""

from __future__ import annotations

from pathlib import Path

import azure.eventhub as sdk
import pytest

from exporter.config.event_hubs import parse_connection_string
from exporter.text.values import InvalidValue
from tests.support.configuration import CONNECTION, KEY, errors, loaded


def test_connection_string_is_read_from_environment_or_file(tmp_path: Path) -> None:
    """The secret is stripped, and both sources give the same settings."""
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


def test_errors_of_a_secret_file_have_its_path_and_not_its_content(tmp_path: Path) -> None:
    """The file is missing, too large, not UTF-8, or has invalid content."""
    path = tmp_path / "secret"
    flag = f"--event-hubs.connection-string-file={path}"
    assert errors(flag) == (f"--event-hubs.connection-string-file: {path}: cannot be read: No such file or directory",)
    for content in (b"hunter2" * 20000, b"hunter2\xff", b"hunter2", b""):
        path.write_bytes(content)
        (error,) = errors(flag)
        assert error.startswith(f"--event-hubs.connection-string-file: {path}: ")
        assert "hunter2" not in error


def test_namespace_needs_an_event_hub() -> None:
    """With a namespace, the event hub's name is required; with both, the destination is configured."""
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
        ("", "a connection string, for example"),
        (f'"{CONNECTION}"', "without quotation marks"),
        ("Endpoint", "fields of the form Name=value"),
        (f"{CONNECTION};SharedAccessKey=again", "unique fields"),
        (f"{CONNECTION}\nEntityPath=x", "on one line"),
        (f"{CONNECTION};UseDevelopmentEmulator=True", 'to be "true" or "false" in lower case'),
        (CONNECTION.replace("windows.net/", "windows.net:5671/"), "no port in Endpoint"),
        (CONNECTION.replace("contoso.servicebus.windows.net", "[::1]"), "does not support IPv6 literals"),
        (CONNECTION.replace("sb://", "ftp://"), "Endpoint=sb://HOST/"),
        (CONNECTION.replace("sb://", "sb://user@"), "nothing after it"),
        (CONNECTION.partition(";SharedAccessKey=")[0], "SharedAccessKeyName and SharedAccessKey together"),
        ("Endpoint=sb://contoso.servicebus.windows.net/", "either SharedAccessKeyName with SharedAccessKey"),
        (CONNECTION + ";SharedAccessSignature=sr", "either SharedAccessKeyName with SharedAccessKey"),
    ],
)
def test_mistakes_in_a_connection_string_have_an_explanation(text: str, words: str) -> None:
    """The error of each known mistake contains the fix, and not the key."""
    with pytest.raises(InvalidValue) as caught:
        parse_connection_string(text)
    assert words in str(caught.value)
    assert KEY not in str(caught.value)


def test_emulator_may_have_a_port_and_field_names_in_any_case() -> None:
    """Field names are case-insensitive, as in the SDK; the emulator's port is kept."""
    read_string = parse_connection_string(
        "endpoint=sb://127.0.0.1:5700;sharedaccesskeyname=k;sharedaccesskey=a=b==;usedevelopmentemulator=true;"
    )
    assert (read_string.host, read_string.port, read_string.emulator) == ("127.0.0.1", 5700, True)
    assert read_string.key.reveal() == "a=b=="


@pytest.mark.parametrize("tail", [";EntityPath=events", "", ";UseDevelopmentEmulator=true;EntityPath=e/"])
def test_azures_sdk_parses_a_connection_string_identically(tail: str) -> None:
    string = (CONNECTION + tail).replace(
        "contoso.servicebus.windows.net", "emulator" if "Emulator" in tail else "contoso"
    )
    ours, theirs = parse_connection_string(string), sdk.parse_connection_string(string)
    assert ours.host == theirs.fully_qualified_namespace
    assert ours.event_hub == (theirs.eventhub_name or "")
    assert (ours.key_name, ours.key.reveal()) == (theirs.shared_access_key_name, theirs.shared_access_key)


def test_shared_access_signature_is_a_warning() -> None:
    """It works until it expires, and the agent can't renew it."""
    settings = loaded(
        environ={
            "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": "Endpoint=sb://contoso.servicebus.windows.net/;"
            f"SharedAccessSignature=SharedAccessSignature sr=x&sig={KEY}&se=1;EntityPath=events"
        }
    )
    (warning,) = settings.warnings
    assert "SharedAccessSignature, which cannot be renewed" in warning
    assert KEY not in warning


def test_fields_of_other_sdks_are_a_warning() -> None:
    """Old connection strings contain fields that Azure's SDK ignores. The warning doesn't contain their values."""
    string = CONNECTION + ";EntityPath=events;TransportType=hunter2"
    settings = loaded(environ={"SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": string})
    (warning,) = settings.warnings
    assert "contains fields that are ignored" in warning
    assert "hunter2" not in warning
