"""`/metadata/instance` of a simulated VM, as api-version 2021-12-13 answers: every value is a string, a missing one "".

It has what the real one has, user data and keys included, whose values are all `NOISE`: a client that logs or publishes
any of them is found by searching for it.
"""

from __future__ import annotations

import base64
import uuid
from typing import Any

from exporter.core.folding import folded
from exporter.simulator.metadata.story import Vm

# Azure's own list [Azure Instance Metadata Service, Supported API versions]. Each is answered with all fields: what an
# older version does not know yet is not left out, as a client has to ignore what it does not know.
API_VERSIONS = (
    *("2017-03-01", "2017-04-02", "2017-08-01", "2017-10-01", "2017-12-01", "2018-02-01", "2018-04-02", "2018-10-01"),
    *("2019-02-01", "2019-03-11", "2019-04-30", "2019-06-01", "2019-06-04", "2019-08-01", "2019-08-15", "2019-11-01"),
    *("2020-06-01", "2020-07-15", "2020-09-01", "2020-10-01", "2020-12-01", "2021-01-01", "2021-02-01", "2021-03-01"),
    *("2021-05-01", "2021-10-01", "2021-11-01", "2021-11-15", "2021-12-13", "2023-07-01"),
)
NOISE = "never-log-this"
NOISE_TAG = "connection-string"
"""A tag that each VM has beside those of the scenario. Its value is `NOISE`."""
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


def compute(vm: Vm) -> dict[str, Any]:
    """The `compute` object of that VM; its own fields replace the default ones, and ids are derived from its name."""
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


def instance(vm: Vm) -> dict[str, Any]:
    """The whole `/metadata/instance` object of that VM."""
    address = {"privateIpAddress": "10.0.0.4", "publicIpAddress": ""}
    subnet = {"address": "10.0.0.0", "prefix": "24"}
    interface = {
        "ipv4": {"ipAddress": [address], "subnet": [subnet]},
        "ipv6": {"ipAddress": []},
        "macAddress": "0022480A0B0C",
    }
    return {"compute": compute(vm), "network": {"interface": [interface]}}


def _resource_id(fields: dict[str, Any]) -> str:
    group = f"/subscriptions/{fields['subscriptionId']}/resourceGroups/{fields['resourceGroupName']}"
    if not fields["vmScaleSetName"]:
        return f"{group}/providers/{_PROVIDER}/virtualMachines/{fields['name']}"
    number = fields["name"].rpartition("_")[2]
    return f"{group}/providers/{_PROVIDER}/virtualMachineScaleSets/{fields['vmScaleSetName']}/virtualMachines/{number}"


def _host_name(fields: dict[str, Any]) -> str:
    """In a scale set it is never the name that `Resources` uses (Azure's counts in base 36)."""
    stem, _, number = fields["name"].rpartition("_")
    return f"{stem}{number:0>6}" if fields["vmScaleSetName"] and number.isdecimal() else str(fields["name"])
