"""The page for a fleet: its tables are arithmetic on what was measured, and its scrape configuration is Prometheus'."""

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
    """The scrape configuration of the page, with files of the test in the place of its CA and password."""
    (block,) = [block for block in blocks(PAGE) if block.language == "yaml"]
    text = block.text
    for name in ("fleet-ca.pem", "exporter-password"):
        (folder / name).write_text("x")
        text = text.replace(f"/etc/prometheus/{name}", str(folder / name))
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def relabelled(folder: Path, *targets: dict[str, str]) -> list[dict[str, str]]:
    """The labels that Prometheus gives to targets which a discovery found so; {} for one that is dropped."""
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
def test_prometheus_takes_the_configuration(tmp_path: Path) -> None:
    """promtool finds it valid as it stands, discovery included."""
    (tmp_path / "prometheus.yml").write_text(json.dumps(configuration(tmp_path)), encoding="utf-8")
    command = [need("promtool"), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "is valid prometheus config" in done.stdout


@pytest.mark.peer("promtool")
def test_a_target_says_which_vm_it_is_and_leaves_the_agents_labels_alone(tmp_path: Path) -> None:
    """A VM with the agent is kept under its own name, as one target however it was found; one without is dropped; and
    no label of a target is one of vm_info, which Prometheus would rename."""
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


def test_what_is_calculated_grows_with_the_fleet() -> None:
    """Twice the VMs are twice the series, samples and messages; the tier is the least whose connections suffice."""
    found = costs.Found.read(costs.FOUND.read_text(encoding="utf-8"))
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in costs.calculated_table(found, (100, 101, 5_000, 5_001, 10_000, 20_000)).splitlines()[2:]
        if (cells := line.strip("|").split("|"))
    }
    assert [cell.split(" ")[0].strip(",") for cell in rows["the least tier by connections"]] == [
        *("Basic", "Standard", "Standard", "Premium", "Premium", "Premium")
    ]
    for name in (
        "series in Prometheus, with its own five of each target",
        "messages when all agents are restarted once",
    ):
        hundred, *_, ten, twenty = (int(cell.replace(",", "")) for cell in rows[name])
        assert (ten, twenty) == (100 * hundred, 200 * hundred)


def test_throughput_units_follow_messages_or_bytes() -> None:
    """1,000 messages or 1 MB a second for each unit, whichever needs more, and never less than one."""
    seconds = costs.WAVE_SECONDS
    for messages, size, units in (
        (1, 1, 1),
        (1000 * seconds, 1, 1),
        (1000 * seconds + 1, 1, 2),
        (1, 3_000_000 * seconds, 3),
    ):
        assert costs.throughput_units(messages, size) == units


def test_what_was_measured_is_kept_whole() -> None:
    """The file holds all that the tables are made of, and reads back as it was written."""
    found = costs.Found.read(costs.FOUND.read_text(encoding="utf-8"))
    assert costs.Found.read(costs.as_json(found)) == found
    assert set(found.records) == set(costs.EVENTS)
    assert [each.targets for each in found.prometheus] == list(costs.TARGETS)
    doubled = replace(found, cpu_idle=2 * found.cpu_idle)
    assert costs.calculated_table(doubled) != costs.calculated_table(found)


def test_the_readme_has_the_figures_of_one_vm_as_measured() -> None:
    """CPU, memory and series of its first screen are those of the tables."""
    found = costs.Found.read(costs.FOUND.read_text(encoding="utf-8"))
    of_a_vm = found.cpu_idle + found.cpu_scrape / costs.SCRAPE_INTERVAL
    figures = (
        f"{100 * of_a_vm:.1f} % of a core, {found.rss_all / costs.MIB:.0f} MiB and {found.quiet.series} series a VM"
    )
    assert f"**It costs** {figures}" in (ROOT / "README.md").read_text(encoding="utf-8")
