"""Writes the dashboards: `python -m dashboards.build`. The JSON is committed; a test builds it again and compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards.fleet import build_fleet
from dashboards.frame import SCHEMA
from dashboards.vm import build_vm

HERE: Final = Path(__file__).parent
BUILDERS: Final = {"vm.json": build_vm, "fleet.json": build_fleet}


def rendered(built: build.Dashboard) -> str:
    """The file's text: the classic model, without an id, so that it imports by hand, by file and by the API alike."""
    document = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    document |= {"id": None, "schemaVersion": SCHEMA, "version": 1}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every dashboard beside this file."""
    for name, make in BUILDERS.items():
        (HERE / name).write_text(rendered(make()), encoding="utf-8")


if __name__ == "__main__":
    main()
