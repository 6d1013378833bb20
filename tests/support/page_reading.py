"""Reads the landing page as a document, for its tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from html.parser import HTMLParser

from exporter.core.snapshot import Status
from exporter.core.state import Instant
from exporter.page.view import render_page
from tests.support.status_reading import answered
from tests.support.statuses import NOON, EventScenario

VOID = {"meta", "link", "br"}


@dataclass
class Element:
    """An element with its attributes, the text of all that is in it, and its child elements."""

    name: str
    attributes: dict[str, str]
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def all(self, name: str) -> Iterator[Element]:
        """Return the elements of this name within, in order."""
        for child in self.children:
            if child.name == name:
                yield child
            yield from child.all(name)

    def one(self, name: str) -> Element:
        """Return the first element of this name within."""
        return next(self.all(name))


class Reader(HTMLParser):
    """Reads the page as elements; an element that is not closed in its place is an error."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def read(page: bytes) -> Element:
    """Return the document; each element of it must be closed."""
    reader = Reader()
    reader.feed(page.decode())
    assert len(reader.open) == 1
    return reader.open[0]


def shown(status: Status, later: float = 0.0, at: EventScenario | None = None) -> Element:
    """Return the page of a status, made from its JSON answer, this many seconds after its last poll, or after the last
    moment of the scenario `at`."""
    moment = at.now if at else (status.state.process.source.last_poll or NOON)
    return read(render_page(answered(status, Instant(moment + timedelta(seconds=later)))))


def verdict(page: Element) -> tuple[str, str]:
    """Return the state and the text of the first sentence."""
    banner = next(item for item in page.all("div") if item.attributes.get("class", "").startswith("verdict "))
    return banner.attributes["class"].removeprefix("verdict "), plain(banner.text)


def plain(text: str) -> str:
    """Return the text with single spaces."""
    return re.sub(r"\s+", " ", text.replace("\u00a0", " "))


def terms(element: Element) -> dict[str, str]:
    """Return the names of a definition list and their texts."""
    return {name.text: plain(value.text) for name, value in zip(element.all("dt"), element.all("dd"), strict=True)}


def rows(table: Element) -> dict[str, dict[str, str]]:
    """Return a table's cells by the first line of the row's name and the column."""
    body = table.one("tbody")
    return {
        plain(row.one("th").one("bdi").text if list(row.one("th").all("bdi")) else row.one("th").text): {
            cell.attributes["data-label"]: plain(cell.text) for cell in row.all("td")
        }
        for row in body.all("tr")
    }


def tables(page: Element) -> dict[str, Element]:
    """Return the tables by their captions."""
    return {table.one("caption").text: table for table in page.all("table")}
