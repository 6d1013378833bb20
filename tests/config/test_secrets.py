"""No secret leaves: not by a flag, an error, a print or somebody else's text."""

from __future__ import annotations

import argparse
import json
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.load import ConfigError, load
from exporter.secrets import Secret, redact
from tests.support.configuration import CONNECTION, KEY, refused, to_toml


@pytest.mark.parametrize(
    "flags",
    [
        (f"--event-hubs.connection-string={CONNECTION}",),
        ("--event-hubs.connection-string", CONNECTION),
        (f"--event_hubs.connection_string={CONNECTION}",),
        (f"--event-hubs-connection-string={CONNECTION}",),
        (f"--otlp.headers=authorization=Bearer {KEY}",),
        (f"--eventhub={CONNECTION}",),
    ],
)
def test_a_secret_flag_is_refused_without_repeating_it(flags: tuple[str, ...]) -> None:
    """A secret on the command line ends with exit code 2 and a sentence, and the sentence does not hold it."""
    said = refused(*flags)
    assert KEY not in said
    if "eventhub" not in flags[0]:
        assert "secrets are not taken from the command line" in said
        assert "SCHEDULED_EVENTS_" in said


SECRETS = st.text(alphabet=st.characters(codec="ascii", categories=["L", "N"]), min_size=12, max_size=44)


@given(SECRETS)
def test_no_secret_leaves_by_repr_error_or_text(secret: str) -> None:
    """Whatever the secret is and however the settings are printed, it is not in there."""
    string = f"Endpoint=sb://contoso.example/;SharedAccessKeyName=zz;SharedAccessKey={secret}{secret}"
    environ = {
        "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": string,
        "SCHEDULED_EVENTS_EVENT_HUBS_EVENT_HUB": "ok",
        "SCHEDULED_EVENTS_OTLP_ENDPOINT": "http://127.0.0.1:4318",
        "SCHEDULED_EVENTS_OTLP_HEADERS": f"x={secret}{secret}",
    }
    settings = load(argparse.Namespace(), environ)
    printed = f"{settings} {settings!r} {to_toml(settings)} {settings.secrets} {settings.event_hubs.connection:}"
    wrong = {
        **environ,
        "SCHEDULED_EVENTS_EVENT_HUBS_CONNECTION_STRING": string + ";x",
        "SCHEDULED_EVENTS_SOURCE_URL": string,
    }
    with pytest.raises(ConfigError) as caught:
        load(argparse.Namespace(), wrong)
    assert secret + secret not in printed + str(caught.value) + repr(caught.value)
    assert Secret(secret + secret) in settings.secrets


def test_a_secret_does_not_print_and_does_not_travel() -> None:
    """repr, str, format, JSON and pickle give nothing; equality and truth are by value."""
    secret = Secret("hunter2")
    assert f"{secret} {secret!r} {secret:>10} {[secret]}".count("hunter2") == 0
    assert secret == Secret("hunter2") != Secret("other")
    assert secret != "hunter2"
    assert hash(secret) == hash(Secret("hunter2"))
    assert not Secret()
    with pytest.raises(TypeError):
        json.dumps(secret)
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        list(secret)  # type: ignore[call-overload]  # that it is refused is the point


@pytest.mark.parametrize(
    "text",
    [
        "SharedAccessKey=hunter2==;x",
        "sharedaccesskey = 'hunter2'",
        '"SharedAccessKey": "hunter2"',
        "sr=x&sig=hunter2%3D&se=1",
        "Authorization: Bearer hunter2.abc",
        "{'Authorization': 'Basic hunter2'}",
        "got bearer hunter2abc",
        "http://user:hunter2@host/path",
        "http://user:p@hunter2@host/path",
        r"http:\hunter2@host\path: cannot be read",  # as a path of Windows, and its `repr`
        r"'http:\\hunter2@host\\path'",
        "password=hunter2",
        "x-api-key: hunter2",
        "SharedAccessSignature sr=a&sig=hunter2&skn=b",
    ],
)
def test_foreign_text_is_redacted(text: str) -> None:
    """Credentials in the usual shapes are blanked out of text that others wrote."""
    assert "hunter2" not in redact(text)


def test_redaction_leaves_the_rest() -> None:
    """Names that merely look alike stay readable."""
    text = "Endpoint=sb://ns/;SharedAccessKeyName=send http://host/a@b signal=9 at https://example.com"
    assert redact(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "Endpoint%3Dsb%3A%2F%2Fns%2F%3BSharedAccessKey%3Dhunter2%3D%3BEntityPath%3Dhub",
        "endpoint%3dsb%3a%2f%2fns%2f%3bsharedaccesskey%3dhunter2%3d",
        "SharedAccessKey%253Dhunter2%253D",
        "SHAREDACCESSKEY=hunter2",
        "SharedAccessSignature%20sr%3Da%26sig%3Dhunter2%26se%3D1",
        "SIG=hunter2",
        "https%3A%2F%2Fuser%3Ahunter2%40host%2Fpath",
        "amqps://send:a/hunter2=@ns.example/",
        "/etc/https:/user:hunter2@host/file",
        '{\\"SharedAccessKey\\": \\"hunter2\\"}',
        "Authorization: Bearer%20hunter2abc",
        "pwd=hunter2;",
        "refresh_token=hunter2",
    ],
)
def test_encoded_and_other_spellings_are_redacted(text: str) -> None:
    """Percent-encoding, letter case, a path library that ate a slash: the credential goes all the same."""
    assert "hunter2" not in redact(text)


def test_redaction_takes_time_in_proportion_to_the_text() -> None:
    """Text of a stranger that begins like credentials again and again is not searched for ever."""
    began = time.process_time()
    for seed in ("://a:", "%3A%2F%2F", "sig=", "password: ", "://@", ":/a:b", "bearer ", "%253A%252F%252F%40"):
        assert len(redact(seed * 50_000)) > 0
    assert time.process_time() - began < 60  # minutes, if it grew with the square of the text
