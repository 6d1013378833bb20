"""promtool without the limit of its test engine: Debian 12's version of Prometheus, built from its Go module.

The engine of `promtool test rules` is limited to 10,000 samples, about 400 VMs; this module raises the limit. It omits
service discovery, which rule tests don't need and which is most of the code. Go's checksum database verifies the
module. The first build takes one or two minutes; later calls reuse it.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.cluster.programs import downloaded, go
from tests.support.machine import CACHE, Missing

MODULE: Final = "github.com/prometheus/prometheus"
VERSION: Final = "v0.42.0"
"""The module of Prometheus 2.42."""

MOST: Final = 1_000_000_000
"""Samples."""
_BOUND: Final = re.compile(r"MaxSamples: +10000,")
_DISCOVERY: Final = re.compile(r'^\t_ "github.com/prometheus/prometheus/plugins".*\n', re.MULTILINE)


def unbound() -> Path:
    """Return the program, and build it if needed. Raise Missing without Go or its module proxy."""
    path = CACHE / f"promtool-{VERSION}-{MOST}"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    print(f"building promtool {VERSION} without its limit (one or two minutes)", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="promtool-") as name:
        source = Path(name) / "source"
        shutil.copytree(downloaded(f"{MODULE}@{VERSION}")["Dir"], source, copy_function=shutil.copyfile)
        for folder in (source, *source.rglob("*/")):
            folder.chmod(0o755)  # Go's modules are read-only
        _change(source / "promql" / "test.go", _BOUND, f"MaxSamples: {MOST},", 2)
        _change(source / "cmd" / "promtool" / "main.go", _DISCOVERY, "", 1)
        go("build", "-mod=readonly", "-ldflags", "-s -w", "-o", f"{name}/promtool", "./cmd/promtool", folder=source)
        (Path(name) / "promtool").replace(path)
    return path


def _change(path: Path, old: re.Pattern[str], new: str, times: int) -> None:
    text, found = old.subn(new, path.read_text(encoding="utf-8"))
    if found != times:
        raise Missing(f"{path.name} of {VERSION} has {old.pattern!r} {found} times, not {times}")
    path.write_text(text, encoding="utf-8")
