"""Writes the dashboards: `python -m dashboards.build`. The JSON is committed; a test builds it again and compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import fleet, vm
from dashboards.board import Board
from dashboards.draw import draw_board

SCHEMA: Final = 39
"""The last schema of the classic model that Grafana 10 to 13 all import without a migration that loses something."""

HERE: Final = Path(__file__).parent
BOARDS: Final = {"vm.json": vm.BOARD, "fleet.json": fleet.BOARD}


def rendered(board: Board) -> str:
    """The file's text: the classic model, without an id, so that it imports by hand, by file and by the API alike."""
    document = json.loads(json.dumps(draw_board(board).build(), cls=JSONEncoder))
    document |= {"id": None, "schemaVersion": SCHEMA, "version": 1}
    for part in (*document["links"], *document["annotations"]["list"]):
        part.pop("placement", None)  # it hides a link in a menu, and Grafana 10 does not know it
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every board beside this file."""
    for name, board in BOARDS.items():
        (HERE / name).write_text(rendered(board), encoding="utf-8")


if __name__ == "__main__":
    main()
