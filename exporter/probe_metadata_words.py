"""The sentences for a metadata service that does not answer as Azure's does: what is wrong, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from exporter.config import Settings
from exporter.events import DocumentError
from exporter.metadata import MetadataError
from exporter.metadata_errors import one_line
from exporter.probe_network import REACH_WORDS, Reach
from exporter.probe_report import Finding, World, fail, warn

TOPIC: Final = "metadata"
AZURE_CHASSIS: Final = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of every Azure VM's chassis, in its SMBIOS tables."""

_PROXY: Final = (
    "a proxy or service mesh stands in between; take the metadata service out of it (transparent proxy: no redirection "
    "for 169.254.169.254; Istio: traffic.sidecar.istio.io/excludeOutboundIPRanges: 169.254.169.254/32)"
)


def unreachable(found: Reach, url: str, world: World) -> str:
    """Why no connection can be made, most likely."""
    if found is Reach.UNKNOWN_NAME:
        return f"the name in source.url ({url}) is not known: correct it, or leave it out to use 169.254.169.254"
    said = f"{url} {REACH_WORDS[found]}"
    if "169.254.169.254" not in url:
        return f"{said}: nothing listens there; correct source.url, or leave it out to use 169.254.169.254"
    if world.in_kubernetes:
        return (
            f"{said}: this pod has no host network, and Azure answers the node alone; set hostNetwork: true and "
            "dnsPolicy: ClusterFirstWithHostNet in the pod's spec"
        )
    if _chassis(world) == AZURE_CHASSIS:
        return (
            f"{said}, although this is an Azure VM: let this process reach 169.254.169.254 port 80 past the firewall "
            "rules, VPN and routes of this machine"
        )
    return (
        f"{said}: this is not an Azure VM, or a firewall rule, a VPN or a container without host network keeps the "
        "address from this process"
    )


def _chassis(world: World) -> str:
    try:
        return world.chassis.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def only_late(url: str, seconds: float, identified: bool) -> Finding:
    """Connected, and no whole answer in the time that a probe waits."""
    if identified:
        return warn(
            TOPIC,
            f"{url} is there, but gave no events within {seconds:g} s: Azure may just be switching Scheduled Events on "
            "for this VM, which takes up to 2 minutes; try again then (the agent itself waits that long)",
        )
    return fail(
        TOPIC,
        f"{url} takes connections and gave no answer within {seconds:g} s; Azure's first answer may take 2 minutes: "
        "try again then, and if it stays silent, look for a proxy or firewall in between",
    )


def stranger(headers: Mapping[str, str]) -> str:
    """Who else shows in the headers, as the beginning of a sentence; "" for nobody."""
    if "metadata-flavor" in headers:
        return "it is Google's metadata service that answers"
    server = headers.get("server", "")
    if server.startswith("EC2"):
        return "it is Amazon's metadata service that answers"
    for name in ("via", "x-squid-error", "proxy-authenticate", "x-cache", "x-envoy-upstream-service-time"):
        if name in headers:
            return f"through a proxy (its header {name}: {one_line(headers[name])[:60]})"
    if re.match(r"(?i)squid|envoy|istio|zscaler|bluecoat", server):
        return f"through a proxy (its header server: {one_line(server)[:60]})"
    return ""


def not_a_document(error: DocumentError, body: bytes, headers: Mapping[str, str], url: str) -> str:
    """A 200 that is no document of Azure's."""
    html = body.lstrip()[:1] == b"<" or "html" in headers.get("content-type", "")
    if html:
        return f"{url} answers with an HTML page: {_PROXY}"
    sign = stranger(headers)
    tail = f"{sign}; {_PROXY}" if sign else "something else answers in Azure's place; correct source.url"
    return f"{url} answers with what is no document of events ({error.detail}): {tail}"


def explained(error: MetadataError, headers: Mapping[str, str], settings: Settings, world: World) -> Finding:
    """The finding for an answer that the client does not take."""
    url, other = settings.source.url, stranger(headers)
    if other.startswith("it is"):
        return fail(TOPIC, f"{url}: {other}, so this is not an Azure VM: there are no Scheduled Events here")
    if other:
        return fail(TOPIC, f"{url} answers {other} with HTTP {error.status_code}: {_PROXY}")
    sentence = _SENTENCES.get(error.reason, _unexpected)(error, settings, world)
    verdict = warn if error.reason in _PASSING else fail
    return verdict(TOPIC, f"{url} {sentence}")


def _unexpected(error: MetadataError, settings: Settings, world: World) -> str:
    del settings, world
    return f"failed ({error.reason}: {one_line(error.detail)}): {_PROXY}, or correct source.url"


def _forbidden(error: MetadataError, settings: Settings, world: World) -> str:
    del settings
    pod = "; in a pod on AKS, metadata restriction does the same: set hostNetwork: true" if world.in_kubernetes else ""
    return (
        f"refuses this process (HTTP {error.status_code}): the Metadata Security Protocol of this VM lets only named "
        f"processes and users ask; add this program and its user to the VM's allow list for the metadata service{pod}"
    )


def _bad_request(error: MetadataError, settings: Settings, world: World) -> str:
    del world
    newest = re.findall(r"\b20\d\d-\d\d-\d\d\b", error.detail)
    if newest or "api-version" in error.detail:
        version = settings.source.api_version
        listed = f" (it names {', '.join(newest)})" if newest else ""
        return f"does not take api-version {version}{listed}: set source.api_version to 2020-07-01, or leave it out"
    return f"refuses the request ({one_line(error.detail)}): it may be no metadata service; correct source.url"


def _redirect(error: MetadataError, settings: Settings, world: World) -> str:
    del settings, world
    return f"answers with a redirection (HTTP {error.status_code}), which Azure never does: {_PROXY}"


def _not_found(error: MetadataError, settings: Settings, world: World) -> str:
    del error, settings, world
    return "knows no Scheduled Events (HTTP 404): it is not Azure's metadata service; correct source.url"


def _passing(error: MetadataError, settings: Settings, world: World) -> str:
    del settings, world
    reasons = {
        "throttled": "is asked too often (HTTP 429): all processes of this VM share 5 requests a second; find who else "
        "asks, or raise source.poll_interval",
        "gone": "is away for a moment (HTTP 410), up to 70 s: try again",
        "server-error": f"is in trouble itself (HTTP {error.status_code}): try again in a minute; the agent goes on "
        "asking",
    }
    return reasons[error.reason]


def _tls(error: MetadataError, settings: Settings, world: World) -> str:
    del settings, world
    return (
        f"does not agree on TLS ({one_line(error.detail)}): Azure's metadata service is plain http; correct source.url"
    )


_PASSING: Final = frozenset({"throttled", "gone", "server-error"})
_SENTENCES: Final[Mapping[str, Callable[[MetadataError, Settings, World], str]]] = {
    "forbidden": _forbidden,
    "status-400": _bad_request,
    "redirect": _redirect,
    "not-found": _not_found,
    "tls": _tls,
    "throttled": _passing,
    "gone": _passing,
    "server-error": _passing,
}
