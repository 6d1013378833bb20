"""The proxies that the environment sets for all programs. The metadata client never uses one.

Read as curl does: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in small letters before capitals. Never the
settings of Windows or macOS, as `urllib.request.getproxies` reads them: those are of the user who is signed in, so that
`check --probe` and the service would take different ways.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit


@dataclass(frozen=True, slots=True)
class EnvironmentProxy:
    """A proxy's address, which may hold a password, and the variable that sets it, for messages."""

    variable: str
    url: str = field(repr=False)


def environment_proxy(url: str, environ: Mapping[str, str]) -> EnvironmentProxy | None:
    """The proxy for requests to `url`, if any."""
    parts = urlsplit(url)
    exempt = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    for name in _variables(parts.scheme, environ):
        if environ[name]:
            return None if _is_exempt(parts, exempt) else EnvironmentProxy(name, environ[name])
    return None


def _variables(scheme: str, environ: Mapping[str, str]) -> list[str]:
    """The variables for this scheme that are set. One in small letters overrides the one in capitals, even if empty."""
    pairs = [(f"{word}_proxy", f"{word.upper()}_PROXY") for word in (scheme, "all")]
    names = [small if small in environ else large for small, large in pairs]
    # In a CGI program HTTP_PROXY is the value of a request header `Proxy` (CVE-2016-1000110).
    return [name for name in names if name in environ and not (name == "HTTP_PROXY" and "REQUEST_METHOD" in environ)]


def _is_exempt(parts: SplitResult, exempt: str) -> bool:
    """Whether `no_proxy` names the host: by `*` alone, or as a list of names, domains with or without their dot, either
    perhaps with a port, addresses, and networks such as 10.0.0.0/8."""
    if exempt.strip() == "*":
        return True
    host = parts.hostname or ""
    forms = (host, f"{host}:{parts.port}" if parts.port else host)
    for word in filter(None, (word.strip().lower() for word in exempt.split(","))):
        name = word.lstrip(".")
        if _is_inside(host, word) or any(form == name or form.endswith(f".{name}") for form in forms):
            return True
    return False


def _is_inside(host: str, network: str) -> bool:
    if "/" not in network:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
