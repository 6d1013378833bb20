"""Secrets never appear in errors, output, or redacted text of other programs."""

from __future__ import annotations

import argparse
import html
import json
import pickle
import re
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from exporter.config.load import ConfigError, load
from exporter.secrets import Secret, Sieve, is_token, redact
from exporter.text.values import describe
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
def test_secret_flag_is_rejected_without_repeating_it(flags: tuple[str, ...]) -> None:
    """A secret on the command line gives exit code 2 and an error without the secret."""
    said = refused(*flags)
    assert KEY not in said
    if flags[0].startswith(("--event-hubs.", "--otlp.")):
        assert "not a flag, since every user of the machine can read command lines" in said
        assert "SCHEDULED_EVENTS_" in said


SECRETS = st.text(alphabet=st.characters(codec="ascii", categories=["L", "N"]), min_size=12, max_size=44)


@given(SECRETS)
def test_no_secret_appears_in_repr_error_or_text(secret: str) -> None:
    """For any secret, and any way to print the settings."""
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


@pytest.mark.parametrize(
    ("endpoint", "headers"),
    [
        ("http://127.0.0.1:4318", "authorization=Bearer%20hunter2pw"),
        ("http://127.0.0.1:4318", "authorization=Basic%20dXM6aHVudGVyMnB3"),
        ("http://127.0.0.1:4318", 'authorization=Digest%20username="us"; response="hunter2pw"'),
        ("http://127.0.0.1:4318", "x-key=hunter2pw"),
        ("http://us:hunter2pw@127.0.0.1:4318", ""),
        ("http://hunter2pw@127.0.0.1:4318", ""),
    ],
)
def test_log_hides_each_part_of_a_header(endpoint: str, headers: str) -> None:
    """A token without its scheme, and a password decoded from base64, are hidden in any text."""
    environ = {"SCHEDULED_EVENTS_OTLP_ENDPOINT": endpoint, "SCHEDULED_EVENTS_OTLP_HEADERS": headers}
    settings = load(argparse.Namespace(), environ)
    assert Secret("hunter2pw") in settings.secrets
    assert "hunter2" not in Sieve(settings.secrets)("no tenant has the key hunter2pw")


@given(
    st.lists(st.text("ab%", min_size=6, max_size=40), min_size=1, max_size=3), st.text("ab% c", max_size=60), st.data()
)
def test_cut_never_leaves_a_part_of_a_secret(secrets: list[str], text: str, data: st.DataObject) -> None:
    """A text cut inside a secret is the redacted text up to that secret."""
    place, most = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 120))
    text = text[:place] + "".join(secrets) * 2 + text[place:]
    sieve = Sieve(map(Secret, secrets))
    assert sieve(text).startswith(sieve(text, most))


def test_longer_of_two_overlapping_secrets_is_hidden_completely() -> None:
    """A secret that starts with another one leaves no rest."""
    sieve = Sieve([Secret("hunter"), Secret("hunter2pw")])
    assert sieve("it is hunter2pw") == "it is <secret>"


def test_secret_is_not_printed_or_serialised() -> None:
    """repr, str, format, JSON, and pickle don't contain it; equality and truth use the value."""
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
        list(secret)  # type: ignore[call-overload]  # must be rejected


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
        r"http:\hunter2@host\path: cannot be read",  # as a Windows path, and its `repr`
        r"'http:\\hunter2@host\\path'",
        "password=hunter2",
        "x-api-key: hunter2",
        "SharedAccessSignature sr=a&sig=hunter2&skn=b",
    ],
)
def test_credentials_in_foreign_text_are_redacted(text: str) -> None:
    """In the usual formats."""
    assert "hunter2" not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Endpoint=sb://ns/;SharedAccessKeyName=send signal=9 at https://example.com",
        "https://example.com:443/x answered 503: write to admin@example.com",
        "see https://example.com/x, or alice@example.com and bob@example.com",
        "error: /srv/app@2/config.toml: cannot be read: alice@example.com owns it",
        r"C:\Users\a@b\outbox.db and C:/Users/a@b/outbox.db and \\\\server\share\a@b",
        "at 12:30:45 by a@b, from 127.0.0.1:4318 and [::1]:10169",
        "the token has expired; authorization failed; a password is asked for; cookies are not read",
        "eyJ is no token, and neither is /run/eyJ/file",
    ],
)
def test_harmless_text_stays_readable(text: str) -> None:
    """Paths, email addresses, machines, and words that only look similar."""
    assert redact(text) == text


MARKS = ("kJ8sQp3v", "tz7LmN2x")
PRINTABLE = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), max_size=12)
NO_SPACE = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=12)
NO_QUOTES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="\"'"), max_size=12)


def marked(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return secrets of any characters that contain two marks."""
    return st.tuples(texts, texts, texts).map(lambda parts: MARKS[0].join(parts[:2]) + MARKS[1] + parts[2])


def is_silent(said: str) -> bool:
    return not any(mark in said for mark in MARKS)


def like_a_port(secret: str) -> bool:
    """`443/x or ` in `https://host:443/x or a@b` is not a password; one that contains a space looks the same."""
    return " " in secret and re.match(r"\s|\d{1,5}[/?#\s]", secret) is not None


@given(marked(PRINTABLE))
def test_no_password_in_a_url_remains(secret: str) -> None:
    """For any characters: up to the last `@`, with changed or missing slashes, quoted, or in a repr."""
    assume(not like_a_port(secret))
    for url in (
        f"http://user:{secret}@host/x",
        f"cannot open 'https://user:{secret}@host:443/a?b': refused",
        f"http:/user:{secret}@host: no such file",
        f"http:\\\\user:{secret}@host\\x",
        f"/etc/https:/user:{secret}@host/file",
        f"amqps://send:{secret}@ns.example/;EntityPath=hub",
        f"http://user:{secret}@host and https://user:{secret}@other/x",
        f"{OSError(2, 'No such file', f'http://user:{secret}@host/x')!r}",
        f"{ValueError(f'http://user:{secret}@host/x')!r}",
        quote(f"http://user:{secret}@host/x", safe=""),
        quote(quote(f"http://user:{secret}@host/x", safe=""), safe=""),
        f"http://user:{quote(secret, safe='')}@host/x",
        f"user:{quote(secret, safe='')}@host",
    ):
        assert is_silent(redact(url)), (url, redact(url))


@given(marked(NO_QUOTES), marked(NO_SPACE))
def test_no_password_without_spaces_remains(unquoted: str, secret: str) -> None:
    """Without a scheme, or without a user."""
    assume(not unquoted.startswith(("/", "\\")))
    for text in (f"user:{unquoted}@host", f"https://{secret}@host/x", f"//{secret}@host", f"//user:{secret}@host:4318"):
        assert is_silent(redact(text)), (text, redact(text))


@given(marked(PRINTABLE))
def test_no_text_after_the_name_of_a_credential_remains(secret: str) -> None:
    """To the end of the line, since a password can contain the separator of the next field."""
    for text in (
        f"SharedAccessKey={secret}",
        f"Endpoint=sb://ns/;SharedAccessKeyName=n;\r\n    SharedAccessKey =\r\n        {secret};\r\n    EntityPath=h",
        f"AccountKey={secret};x",
        f"password={secret}",
        f"client_secret: {secret}",
        f"x-api-key: {secret}",
        f"token={secret}",
        f"Cookie: a={secret}; b={secret}",
        f"Authorization: {secret}",
        f"proxy-authorization: Digest username={secret}, response={secret}",
        f"Authorization: Bearer {secret}",
        f"{ {'Authorization': secret}!r}",
        f"{[(b'Authorization', secret.encode())]!r}",
        f"{[('x-api-key', secret)]!r}",
        json.dumps({"password": secret}),
        f"{ValueError(f'SharedAccessKey={secret}')!r}",
        quote(f"SharedAccessKey={secret};x", safe=""),
    ):
        assert is_silent(redact(text)), (text, redact(text))


@given(marked(NO_SPACE))
def test_no_token_remains(secret: str) -> None:
    """In a query, in a SAS token, or after the name of its scheme."""
    for text in (
        f"https://h/x?token={secret}",
        f"https://h/x?sv=1&sig={secret}&se=2",
        f"SharedAccessSignature sr=a&sig={secret}&skn=b",
        f"got bearer {secret} from there",
        f"Basic {secret}",
    ):
        assert is_silent(redact(text)), (text, redact(text))


@given(
    st.from_regex(r"eyJ[A-Za-z0-9_-]{8,40}", fullmatch=True), marked(st.from_regex(r"[A-Za-z0-9_-]*", fullmatch=True))
)
def test_no_web_token_remains(head: str, secret: str) -> None:
    """A JWT is found everywhere, also cut, encrypted, or percent-encoded, and is rejected as a value."""
    token = f"{head}.{secret}.{secret}"
    for text in (token, f"({token})", f"a={token}", f"/run/{token}/x", f"{token}.x.y", quote(token), token[:-4]):
        assert is_silent(redact(text)), (text, redact(text))
    assert is_token(token)
    assert is_silent(describe(token))


def test_key_on_several_lines_is_hidden_to_its_end() -> None:
    """As a terminal or a YAML file wraps it."""
    text = "SharedAccessKey=aB3kq8Zm9vYmFyYmF6\n  cXV4aGlkZGVu/IHRva2Vu9xQ=\nEntityPath=hub"
    assert redact(text) == "SharedAccessKey=<secret>\nEntityPath=hub"


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
    """Percent-encoding, letter case, a missing slash: the credential is always redacted."""
    assert "hunter2" not in redact(text)


def test_redaction_time_is_linear() -> None:
    """Text with many starts of credentials is searched in linear time."""
    began = time.process_time()
    for seed in (
        *("://a:", "%3A%2F%2F", "sig=", "password: ", "://@", ":/a:b", "bearer ", "%253A%252F%252F%40", "ab://u:p "),
        *(
            "ab://a@ ",
            "//a ",
            "ab%3A%2F%2F",
            "ab:/a@b:c@",
            "a:?token=b@",
            "eyJaaaaaaaa.",
            "SharedAccessKey=\nabcdefgh\n",
        ),
    ):
        assert len(redact(seed * 50_000)) > 0
    assert time.process_time() - began < 60  # minutes, if it were quadratic


@pytest.mark.parametrize("quote", [json.dumps, html.escape, lambda text: json.dumps(text, ensure_ascii=False)])
def test_secret_is_hidden_as_another_program_quotes_it(quote: Callable[[str], str]) -> None:
    """A collector responds in JSON, in HTML, or with a text quoted by its language."""
    secret = 'Tr0ub"4dor&<Räst>\\99'
    shown = Sieve([Secret(secret)])(f"invalid password {quote(secret)}")
    assert "4dor" not in shown
    assert "99" not in shown
