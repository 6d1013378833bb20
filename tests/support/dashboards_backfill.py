"""A real Prometheus with the backfilled scrapes of all scenarios, on which the rules run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.support.dashboards_scenarios import Scrape, fleet, recorded_before, scenario_scrapes
from tests.support.peers import need

EMPTY: Final = re.compile(r'(?<![^,])\w+="",?')
"""A label without a value, which Prometheus doesn't store."""
SAMPLE: Final = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")


def stamped(text: str, at: float, **target: str) -> Iterator[str]:
    """Yield the samples of an exposition as Prometheus stores them: with target labels and scrape time."""
    labels = ",".join(f'{name}="{value}"' for name, value in target.items())
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        sample = SAMPLE.match(line.split(" # ")[0])
        if sample is None:
            raise ValueError(f"not a sample: {line!r}")
        name, inside, value = sample.groups()
        inside = EMPTY.sub("", inside or "").rstrip(",")
        yield f"{name}{{{labels}{',' + inside if inside else ''}}} {value} {at:.3f}\n"


def scraped(scrapes: Iterable[Scrape]) -> Iterator[str]:
    """Yield all lines of these scrapes, with the `up` that Prometheus adds to each."""
    for scrape in scrapes:
        target = {"job": scrape.job, "instance": scrape.instance}
        yield from stamped(f"up {int(scrape.text is not None)}", scrape.at, **target)
        if scrape.text is not None:
            yield from stamped(scrape.text, scrape.at, **target)


def everything(end: float, folder: Path) -> Iterator[str]:
    """Yield all scenarios, and the series that the rules recorded before."""
    yield from scraped(scenario_scrapes(end, folder))
    yield from scraped(fleet(end, folder))
    for at, series, value in sorted(recorded_before(end)):
        yield f"{series} {value} {at:.3f}\n"


def backfill(lines: Iterable[str], folder: Path) -> Path:
    """Create blocks with these lines in `folder`/tsdb."""
    text = folder / "scenarios.om"
    with text.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.write("# EOF\n")
    # The longest block of Prometheus: promtool reads the whole text once per block.
    options = ["--quiet", "--max-block-duration=744h"]
    command = [need("promtool"), "tsdb", "create-blocks-from", "openmetrics", *options, str(text), str(folder / "tsdb")]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    text.unlink()
    return folder / "tsdb"
