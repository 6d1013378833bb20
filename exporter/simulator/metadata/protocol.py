"""The HTTP interface of the metadata service, without I/O: rejections, start requests, and the instance document.

Facts come from Microsoft's documentation of Scheduled Events [Endpoint discovery, Headers, Start an event] and of the
Instance Metadata Service, whose error texts are used. `/metadata/instance` is that of api-version 2021-12-13: every
value is a string, a missing one "". As in Azure, it includes user data and keys, with the value `NOISE`: a search for
it finds a client that logs or publishes any of them.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from exporter.core.document import folded
from exporter.simulator.metadata import platform
from exporter.simulator.metadata.scenario import ScenarioVm

EVENTS_PATH = "/metadata/scheduledevents"
INSTANCE_PATH = "/metadata/instance"
MAX_BODY = 64 * 1024
Headers = tuple[tuple[str, str], ...]
_JSON = ("Content-Type", "application/json; charset=utf-8")
_MORE = "For more information refer to aka.ms/azureimds"

# Azure's list [Azure Instance Metadata Service, Supported API versions]. Every version gets all fields, including those
# that older versions lack: a client must ignore unknown fields.
INSTANCE_VERSIONS = (
    *("2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01", "2018-02-01", "2018-04-02", "2018-10-01"),
    *("2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01", "2019-08-15", "2019-11-01"),
    *("2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01", "2021-01-01", "2021-02-01", "2021-03-01"),
    *("2021-05-01", "2021-10-01", "2021-11-01", "2021-11-15", "2021-12-13", "2023-07-01"),
)
NOISE = "never-log-this"
NOISE_TAG = "connection-string"
"""A tag of each VM in addition to those of the scenario. Its value is `NOISE`."""
_SUBSCRIPTION = "8d10da13-8125-4ba9-a717-bf7490507b3d"
_GROUP = "simulated"
_PROVIDER = "Microsoft.Compute"
_FAMILY = uuid.UUID("5f1c0c52-4a7e-4c6c-9a4e-6f1d0b7b8a11")
_DEFAULTS = {
    **dict.fromkeys(
        ("customData", "evictionPolicy", "licenseType", "placementGroupId", "platformSubFaultDomain", "vmScaleSetName"),
        "",
    ),
    "azEnvironment": "AzurePublicCloud",
    "isHostCompatibilityLayerVm": "false",
    "location": "westeurope",
    "offer": "debian-12",
    "osType": "Linux",
    "physicalZone": "westeurope-az2",
    "platformFaultDomain": "0",
    "platformUpdateDomain": "0",
    "priority": "Regular",
    "provider": _PROVIDER,
    "publisher": "Debian",
    "resourceGroupName": _GROUP,
    "sku": "12-gen2",
    "subscriptionId": _SUBSCRIPTION,
    "userData": base64.b64encode(f"password={NOISE}".encode()).decode(),
    "version": "0.20260210.2384",
    "vmSize": "Standard_D4s_v5",
    "zone": "1",
}


class SimulatedResponse(NamedTuple):
    """A complete HTTP response, except for the framing headers."""

    status: int
    body: bytes = b""
    headers: Headers = (_JSON,)


class SimulatedRequest(NamedTuple):
    """A client's request, received at `time` (seconds since the epoch).

    Header names are in lower case; values of a repeated header are joined by commas.
    """

    time: float
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""

    @property
    def place(self) -> str:
        """The path without its query and without a trailing slash."""
        return urlsplit(self.path).path.rstrip("/")

    @property
    def query(self) -> dict[str, list[str]]:
        """The values of each query parameter."""
        return parse_qs(urlsplit(self.path).query, keep_blank_values=True)


class Refusal(Exception):
    """A rejected request. `response` has the service's format: an `error` text and further fields."""

    def __init__(self, status: int, reason: str, headers: Headers = (), fields: Iterable[tuple[str, object]] = ()):
        super().__init__(f"{status} {reason}")
        self.response = as_json(status, {"error": reason, **dict(fields)}, headers)


def as_json(status: int, document: object, headers: Headers = ()) -> SimulatedResponse:
    """Return `document` as a JSON response, with these headers in addition to Content-Type."""
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    return SimulatedResponse(status, body, (_JSON, *headers))


def check_request(request: SimulatedRequest) -> None:
    """Check method, headers, path, and query. Raises Refusal for the first error."""
    is_instance = f"{request.place}/".startswith(f"{INSTANCE_PATH}/")
    allowed = ("GET",) if is_instance else ("GET", "POST")
    if request.method not in allowed:
        methods = ", ".join(allowed)
        raise Refusal(405, f"Method not allowed. The method is not one of {methods}", (("Allow", methods),))
    if "x-forwarded-for" in request.headers:
        raise Refusal(400, f"Bad request. A request must not be forwarded. {_MORE}")
    if request.headers.get("metadata", "").lower() != "true":
        raise Refusal(400, f"Bad request. Required metadata header not specified. {_MORE}")
    if not is_instance and request.place != EVENTS_PATH:
        raise Refusal(404, "Not found")
    versions = INSTANCE_VERSIONS if is_instance else platform.API_VERSIONS
    given = request.query.get("api-version", [])
    fault = "" if len(given) == 1 and given[0] in versions else "is invalid or not supported"
    if not given:
        fault = "was not specified in the request"
    if fault:
        raise Refusal(400, f"Bad request. api-version {fault}. {_MORE}", fields=[("newest-versions", versions[::-1])])


def start_requests(body: bytes) -> Sequence[str]:
    """Return the EventIds in the body of a POST, at least one. Raises Refusal (400) if the body is invalid."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "Bad request. The body is not JSON") from error
    requests = document.get("StartRequests") if isinstance(document, dict) else None
    if not isinstance(requests, list) or not requests:
        raise Refusal(400, 'Bad request. The body is not {"StartRequests": [{"EventId": "..."}]}')
    ids = [entry.get("EventId") if isinstance(entry, dict) else None for entry in requests]
    if not all(isinstance(event_id, str) and event_id for event_id in ids):
        raise Refusal(400, "Bad request. Each of StartRequests needs its EventId")
    return [str(event_id) for event_id in ids]


def instance_response(request: SimulatedRequest, vm: ScenarioVm) -> SimulatedResponse:
    """Return the response for `/metadata/instance` and below: a branch as JSON, a leaf as text. Raises Refusal."""
    address = {"privateIpAddress": "10.0.0.4", "publicIpAddress": ""}
    interface = {
        "ipv4": {"ipAddress": [address], "subnet": [{"address": "10.0.0.0", "prefix": "24"}]},
        "ipv6": {"ipAddress": []},
        "macAddress": "0022480A0B0C",
    }
    node: Any = {"compute": compute(vm), "network": {"interface": [interface]}}
    for part in request.place.removeprefix(INSTANCE_PATH).split("/")[1:]:
        if not isinstance(node, dict) or part not in node:
            raise Refusal(404, "Not found")
        node = node[part]
    text = request.query.get("format", ["json"])[-1] == "text"
    if text == isinstance(node, dict | list):
        raise Refusal(400, f"Bad request. A leaf is text and a branch is JSON. {_MORE}")
    if text:
        return SimulatedResponse(200, str(node).encode(), (("Content-Type", "text/plain; charset=utf-8"),))
    return as_json(200, node)


def compute(vm: ScenarioVm) -> dict[str, Any]:
    """Return the VM's `compute` object. Its fields override the defaults; ids are derived from its name."""
    ids = {"name": vm.name, "vmId": str(uuid.uuid5(_FAMILY, folded(vm.name)))}
    fields: dict[str, Any] = {**_DEFAULTS, **ids, **vm.fields}
    fields.setdefault("resourceId", _resource_id(fields))
    fields["osProfile"] = {
        "adminUsername": NOISE,
        "computerName": _host_name(fields),
        "disablePasswordAuthentication": "true",
    }
    fields["publicKeys"] = [{"keyData": f"ssh-rsa {NOISE}", "path": f"/home/{NOISE}/.ssh/authorized_keys"}]
    tags = {**vm.tags, NOISE_TAG: NOISE}
    fields["tags"] = ";".join(f"{name}:{value}" for name, value in tags.items())
    fields["tagsList"] = [{"name": name, "value": value} for name, value in tags.items()]
    return dict(sorted(fields.items()))


def _resource_id(fields: dict[str, Any]) -> str:
    group = f"/subscriptions/{fields['subscriptionId']}/resourceGroups/{fields['resourceGroupName']}"
    if not fields["vmScaleSetName"]:
        return f"{group}/providers/{_PROVIDER}/virtualMachines/{fields['name']}"
    number = fields["name"].rpartition("_")[2]
    return f"{group}/providers/{_PROVIDER}/virtualMachineScaleSets/{fields['vmScaleSetName']}/virtualMachines/{number}"


def _host_name(fields: dict[str, Any]) -> str:
    """Return the host name. In a scale set it differs from the name in `Resources` (Azure's counts in base 36)."""
    stem, _, number = fields["name"].rpartition("_")
    return f"{stem}{number:0>6}" if fields["vmScaleSetName"] and number.isdecimal() else str(fields["name"])
