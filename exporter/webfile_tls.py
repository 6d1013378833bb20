"""The `tls_server_config` of a web-config file: our certificate, whose certificates we take, versions and ciphers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from exporter.config_kinds import Misplaced, refuse_unfit
from exporter.webfile_section import Section, read_text
from exporter.webtls import (
    CIPHERS,
    CLIENT_AUTH,
    CURVES,
    TLS13_CIPHERS,
    UNVERIFIED_CLIENT_AUTH,
    VERSIONS,
    TlsSettings,
)

TLS_KEYS: Final = (
    "cert", "key", "client_ca", "cert_file", "key_file", "client_ca_file", "client_auth_type", "client_allowed_sans",
    "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites", "curve_preferences",
)  # fmt: skip


def read_tls(section: Section, folder: Path, files: list[Path]) -> TlsSettings | None:
    """The settings, as far as they could be read; None for plain HTTP. Files that are named are added to `files`."""
    section.only(*TLS_KEYS)
    if not section.values:
        return None
    certificate = _pem(section, "cert", folder, files, required=True)
    key = _pem(section, "key", folder, files, required=True)
    client_ca = _pem(section, "client_ca", folder, files, required=False)
    if section.text("client_auth_type") in UNVERIFIED_CLIENT_AUTH:
        sentence = "Python's ssl can't ask for a certificate without verifying it"
        section.wrong("client_auth_type", f"{sentence}, expected one of {', '.join(CLIENT_AUTH)}")
        return None
    client_auth = section.word("client_auth_type", CLIENT_AUTH, "NoClientCert")
    sans = section.texts("client_allowed_sans")
    if client_auth == "NoClientCert" and (client_ca or sans):
        section.wrong("client_auth_type", "expected a policy, since client_ca or client_allowed_sans is given")
    if client_auth != "NoClientCert" and not (section.text("client_ca") or section.text("client_ca_file")):
        section.wrong("client_ca_file", f"expected client_ca or client_ca_file with client_auth_type {client_auth}")
    curves = section.words("curve_preferences", tuple(CURVES))
    if len(set(curves)) not in (0, 1, len(CURVES)):
        section.wrong("curve_preferences", "Python's ssl offers one curve or all of them, expected one, or all four")
    low, high = _versions(section)
    ciphers = section.words("cipher_suites", (*TLS13_CIPHERS, *CIPHERS))
    prefer = section.truth("prefer_server_cipher_suites", default=True)
    return TlsSettings(
        certificate,
        key,
        client_ca,
        client_auth,
        frozenset(sans),
        low,
        high,
        ciphers,
        tuple(dict.fromkeys(curves)),
        prefer,
    )


def _versions(section: Section) -> tuple[str, str]:
    """The lowest and the highest version to speak."""
    low = section.word("min_version", VERSIONS, "TLS12")
    high = section.word("max_version", VERSIONS, "TLS13")
    if high < "TLS12":
        section.wrong("max_version", f"expected TLS12 or TLS13, {high} is not spoken any more (RFC 8996)")
    elif low > high:
        section.wrong("min_version", f"expected at most max_version {high}, got {low}")
    return low, high


def _pem(section: Section, key: str, folder: Path, files: list[Path], *, required: bool) -> str:
    """The PEM text given by `key` itself or by the file that `key`_file names, relative to the config's folder."""
    inline, name = section.text(key), section.text(f"{key}_file")
    if inline and name:
        section.wrong(key, f"expected either {key} or {key}_file, got both")
    if not name:
        if required and not inline:
            section.wrong(f"{key}_file", f"missing, expected {key} or {key}_file")
        return inline
    try:
        refuse_unfit(name, "a path")
    except Misplaced as error:
        section.wrong(f"{key}_file", str(error))
        return ""
    path = folder / name
    files.append(path)
    problems: list[str] = []
    text = read_text(path, problems, str(path))
    for problem in problems:
        section.wrong(f"{key}_file", problem)
    return text
