"""Write the dashboards: `python -m dashboards.build`. The JSON is committed; a test builds it again and compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import SCHEMA, fleet, marks, vm

HERE: Final = Path(__file__).parent
BOARDS: Final = {"vm.json": vm.BOARD, "fleet.json": fleet.BOARD}
SNIPPET: Final = "snippets/annotations.json"


def rendered(board: Dashboard) -> str:
    """Return the text of the file: the classic model without an id, for import by hand, by file, and by the API."""
    return _written(board.build(), id=None, schemaVersion=SCHEMA, version=1)


def rendered_snippet() -> str:
    """Return the text of the file with the annotations for other dashboards."""
    return _written(marks.snippet())


def _written(model: Any, **fields: Any) -> str:
    document = json.loads(json.dumps(model, cls=JSONEncoder)) | fields
    _forget_what_came_later(document)
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _forget_what_came_later(document: dict[str, Any]) -> None:
    """Remove fields that the SDK sets and `LEAST` doesn't know; the first would move the links into a menu."""
    for part in (*document.get("links", ()), *document["annotations"]["list"]):
        part.pop("placement", None)
    for variable in document.get("templating", {}).get("list", ()):
        for name in ("allowCustomValue", "auto", "auto_count", "auto_min", "definition"):
            variable.pop(name, None)
    later = {"stat": "percentChangeColorMode", "bargauge": "legend", "state-timeline": "perPage"}
    for panel in document.get("panels", ()):
        if panel["type"] in later:
            panel["options"].pop(later[panel["type"]], None)


def main() -> None:
    """Write every board to the directory of this file, and the snippet to a subdirectory."""
    for name, board in BOARDS.items():
        (HERE / name).write_text(rendered(board), encoding="utf-8")
    (HERE / SNIPPET).write_text(rendered_snippet(), encoding="utf-8")


if __name__ == "__main__":
    main()
