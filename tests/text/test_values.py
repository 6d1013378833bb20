"""Single values: valid and invalid addresses, and errors without secrets."""

from __future__ import annotations

import pytest

from exporter.text.values import InvalidValue, Misplaced, describe, refuse_misplaced, split_address, unknown_name

SECRETS = (
    "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0",
    "-----BEGIN PRIVATE KEY-----",
    "https://user:hunter2@host/",
    "password=hunter2",
)


@pytest.mark.parametrize("value", [*SECRETS, "hunter2\n", "hunter2" * 1000])
def test_errors_show_no_secret_and_no_control_character(value: str) -> None:
    """A possible secret, a long value, and one with control characters are described instead of shown."""
    shown = describe(value)
    assert shown.isprintable()
    assert "hunter2" not in shown
    assert "c2VjcmV0" not in shown


@pytest.mark.parametrize("value", [SECRETS[0], SECRETS[1], "a\x1bb"])
def test_secret_in_place_of_a_path_is_rejected_without_being_shown(value: str) -> None:
    """Connection strings, keys, and text with control characters."""
    with pytest.raises(Misplaced) as caught:
        refuse_misplaced(value, "a path")
    assert "not a path" in str(caught.value) or "expected a path" in str(caught.value)
    assert value not in str(caught.value)


def test_error_for_an_unknown_name_contains_the_most_similar_one() -> None:
    """Without a similar name it lists all names."""
    assert unknown_name("key", "moed", ["mode", "rules"]) == 'unknown key "moed"; did you mean mode?'
    assert unknown_name("key", "x", ["mode", "rules"]) == 'unknown key "x"; expected one of mode, rules'


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:10169", ("0.0.0.0", 10169)),
        (":9100", ("", 9100)),
        ("[::]:1", ("::", 1)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses_are_split_into_host_and_port(text: str, address: tuple[str, int]) -> None:
    """IPv6 addresses have brackets."""
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "10169", "host", "::1:80", "[::1]", "[host]:80", "h:65536", "h:-1", "a b:80", "h:٣", "host:http"]
)
def test_ambiguous_addresses_are_rejected(text: str) -> None:
    with pytest.raises(InvalidValue):
        split_address(text)
