"""The pages for a fleet: the tables are calculated from measurements, and the scrape configuration is valid."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from benchmarks import costs
from exporter.sinks.prometheus.catalogue import BY_NAME
from tests.support.documentation import ROOT, blocks
from tests.support.peers import need

pytestmark = pytest.mark.linux("judges a page of the checkout, with a real promtool")

PAGE: Final = ROOT / "docs" / "fleet.md"
JOB: Final = "azure-scheduled-events-exporter"
VM: Final = {
    "__address__": "10.0.0.4:10169",
    "__meta_azure_machine_name": "Web_0",
    "__meta_azure_machine_resource_group": "SHOP-prod",
    "__meta_azure_machine_scale_set": "Web",
    "__meta_azure_machine_tag_scheduled_events": "on",
}


def configuration(folder: Path) -> dict[str, Any]:
    """Return the scrape configuration of the page, with the test's own files as CA and password."""
    (block,) = [block for block in blocks(PAGE) if block.language == "yaml"]
    text = block.text
    for name in ("fleet-ca.pem", "exporter-password"):
        (folder / name).write_text("x")
        text = text.replace(f"/etc/prometheus/{name}", str(folder / name))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def relabelled(folder: Path, *targets: dict[str, str]) -> list[dict[str, str]]:
    """Return the labels that Prometheus gives to discovered targets; {} for a target that it drops."""
    config = configuration(folder)
    (job,) = config["scrape_configs"]
    del job["azure_sd_configs"]
    job["static_configs"] = [
        {"targets": [target["__address__"]], "labels": {k: v for k, v in target.items() if k != "__address__"}}
        for target in targets
    ]
    (folder / "offline.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    command = [need("promtool"), "check", "service-discovery", "--timeout=2s", str(folder / "offline.yml"), JOB]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return [each.get("labels") or {} for each in json.loads(answer.stdout)]


@pytest.mark.peer("promtool")
def test_promtool_accepts_the_scrape_configuration(tmp_path: Path) -> None:
    """The configuration is valid as shown, service discovery included."""
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration(tmp_path)), encoding="utf-8")
    command = [need("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "is valid prometheus config" in done.stdout


@pytest.mark.peer("promtool")
def test_targets_are_named_after_vms_and_do_not_shadow_labels_of_vm_info(tmp_path: Path) -> None:
    """A VM with the agent is one target under its own name, no matter how it was discovered. A VM without the agent is
    dropped. No label of a target is also one of vm_info, because Prometheus would rename the agent's."""
    as_single = {name: value for name, value in VM.items() if not name.endswith("scale_set")}
    bare = {name: value for name, value in VM.items() if not name.endswith("scheduled_events")}
    found = [
        {name: value for name, value in labels.items() if not name.startswith("__")}
        for labels in relabelled(tmp_path, VM, as_single, bare)
    ]
    kept = {"instance": "shop-prod/Web_0", "job": JOB}
    assert [labels for labels in found if labels] in ([kept], [kept, kept])
    assert not set(kept) & set(BY_NAME["vm_info"].labels)
    assert relabelled(tmp_path, VM)[0]["__scheme__"] == "https"


def test_calculated_values_grow_with_the_fleet() -> None:
    """Twice the VMs have twice the series and messages; the tier is the lowest with enough connections."""
    found = costs.Found.read(costs.FOUND.read_text(encoding="utf-8"))
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in costs.calculated_table(found, (100, 101, 5_000, 5_001, 10_000, 20_000)).splitlines()[2:]
        if (cells := line.strip("|").split("|"))
    }
    assert [cell.split(" ")[0].strip(",") for cell in rows["Lowest tier by connections"]] == [
        *("Basic", "Standard", "Standard", "Premium", "Premium", "Premium")
    ]
    for name in ("Series", "Messages if all agents restart", "Messages of a wave"):
        hundred, *_, ten, twenty = (int(cell.replace(",", "")) for cell in rows[name])
        assert (ten, twenty) == (100 * hundred, 200 * hundred)


def test_throughput_units_follow_messages_or_bytes() -> None:
    """A unit is 1,000 messages or 1 MB a second, whichever needs more units; the minimum is one."""
    seconds = costs.WAVE_SECONDS
    for messages, size, units in (
        (1, 1, 1),
        (1000 * seconds, 1, 1),
        (1000 * seconds + 1, 1, 2),
        (1, 3_000_000 * seconds, 3),
    ):
        assert costs.throughput_units(messages, size) == units


def test_the_file_of_measurements_is_complete() -> None:
    """The file has every value of the tables, and reads back as it was written."""
    found = costs.Found.read(costs.FOUND.read_text(encoding="utf-8"))
    assert costs.Found.read(costs.as_json(found)) == found
    assert set(found.records) == set(costs.EVENTS)
    assert [each.targets for each in found.prometheus] == list(costs.TARGETS)
    doubled = replace(found, cpu_idle=2 * found.cpu_idle)
    assert costs.written(doubled) != costs.written(found)


def test_the_plan_for_a_fleet_is_the_calculated_one() -> None:
    """The first table of the fleet's page repeats the calculated values for 3,000 VMs."""
    found = costs.Found.read(costs.FOUND.read_text(encoding="utf-8"))
    rows = {
        cells[0]: cells[1]
        for line in costs.calculated_table(found, (3_000,)).splitlines()[2:]
        if (cells := line.strip("|").split("|"))
    }
    plan = PAGE.read_text(encoding="utf-8").partition("| Resource | Amount |")[2].partition("\n\n")[0]
    for amount in (
        f"{costs.cpu_of_a_vm(found)} of a core, {found.rss_all / costs.MIB:.0f} MiB of memory",
        f"{rows['Series']} series, {rows['Samples a second']} samples/s, 4 GiB of memory",
        f"one {rows['Lowest tier by connections']} namespace",
    ):
        assert amount in plan
    units = {"1": "one", "4": "four"}
    of_one, of_many = (units[rows[f"Throughput units, events of {vms}"]] for vms in ("one VM", "1,000 VMs"))
    assert f"{of_one} throughput unit ({of_many} if events name 1,000 VMs each)" in plan
    assert 2 * int(rows["Prometheus memory"].removesuffix(" MiB").replace(",", "")) < 4 * 1024


def test_the_readme_has_the_figures_of_one_vm_as_measured() -> None:
    """CPU, memory and series of its first screen are those of the tables."""
    found = costs.Found.read(costs.FOUND.read_text(encoding="utf-8"))
    of_a_vm = found.cpu_idle + found.cpu_scrape / costs.SCRAPE_INTERVAL
    figures = (
        f"it uses {100 * of_a_vm:.1f} % of a core, {found.rss_all / costs.MIB:.0f} MiB of memory, "
        f"and {found.quiet.series} series."
    )
    assert figures in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
