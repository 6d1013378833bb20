"""Single values: what is read from a person's text, what is refused, and that no error shows a secret."""

from __future__ import annotations

import pytest

from exporter.text.values import InvalidValue, split_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0.0.0.0:10169", ("0.0.0.0", 10169)),
        (":9100", ("", 9100)),
        ("[::]:1", ("::", 1)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_addresses_are_taken_apart(text: str, address: tuple[str, int]) -> None:
    """Host and port, with brackets around IPv6."""
    assert split_address(text) == address


@pytest.mark.parametrize(
    "text", ["", "10169", "host", "::1:80", "[::1]", "[host]:80", "h:65536", "h:-1", "a b:80", "h:٣"]
)
def test_other_addresses_are_refused(text: str) -> None:
    """What could mean two addresses, or none, is not guessed."""
    with pytest.raises(InvalidValue):
        split_address(text)
