"""Under which licences all that ships is: `make -C deploy licences`, and each self-contained build, judge."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from deploy import licences
from deploy.licences import (
    ALLOWED,
    LIBRARIES,
    WORDS,
    Component,
    UnknownLibrary,
    component,
    library,
    locked,
    normal,
    stated,
)

ROOT: Final = Path(__file__).parents[2]
INSTALLED: Final = {normal(one.metadata["Name"]): one for one in importlib.metadata.distributions()}
SHIPS: Final = sorted(name for name in locked() if name in INSTALLED)
GOOD: Final = Component("thing", "1", "MIT", "Permission is hereby granted")


@pytest.mark.parametrize("name", SHIPS)
def test_what_ships_says_an_allowed_licence_and_brings_its_text(name: str) -> None:
    """Each distribution of the lock that is installed here may ship."""
    assert component(INSTALLED[name]).fault == ""


def test_every_dependency_is_looked_at() -> None:
    """All of the lock is installed here, but for what another system has."""
    assert set(locked()) - set(SHIPS) <= {"pywin32"}


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (replace(GOOD, licence="AGPL-3.0-only"), "AGPL-3.0-only"),
        (replace(GOOD, licence="MIT AND (GPL-3.0-or-later OR MIT)"), "GPL-3.0-or-later"),
        (replace(GOOD, licence=""), "states no licence"),
        (replace(GOOD, text=" \n"), "has no licence text"),
    ],
)
def test_what_may_not_ship_is_named(one: Component, says: str) -> None:
    """A licence that nobody allowed, in an alternative too, none, and one without text are faults with a sentence."""
    assert GOOD.fault == ""
    assert says in one.fault
    assert one.name in one.fault


def test_words_mean_allowed_licences() -> None:
    """What is read out of a distribution's own words is an expression, and one of those that may ship."""
    assert set(WORDS.values()) <= ALLOWED
    assert {one.licence for one in LIBRARIES} <= ALLOWED
    assert stated("", ["MIT License"]) == "MIT"
    assert (
        stated("MIT\n\nPermission is hereby granted", ["MIT License", "Apache Software License"])
        == "MIT AND Apache-2.0"
    )
    assert stated("", []) == ""


@pytest.mark.parametrize(
    ("field", "classifiers"),
    [("GPLv3", ["MIT License"]), ("", ["GNU General Public License v3 (GPLv3)", "MIT License"]), ("Of our own", [])],
)
def test_a_word_that_nobody_read_is_not_passed_over(field: str, classifiers: list[str]) -> None:
    """An allowed licence beside it does not make it one: it is named as what may not ship."""
    assert "not permitted" in replace(GOOD, licence=stated(field, classifiers)).fault


def test_a_library_that_nobody_knows_is_refused() -> None:
    """readline is under the GPL: a folder that has it, or whatever else is not listed, is not made."""
    assert library("libcrypto-3-x64.dll").name == library("libssl.so.3").name == "OpenSSL"
    assert library("libpython3.11.so.1.0").name == library("python313.dll").name == "CPython"
    assert library("libz.so.1").name == "zlib"
    with pytest.raises(UnknownLibrary, match=r"libreadline\.so\.8"):
        library("libreadline.so.8")


def test_the_list_is_complete_and_the_same_every_time() -> None:
    """Each component stands in the list with version and licence, its text below; nothing tells of place or time."""
    text = licences.rendered([GOOD, replace(GOOD, name="other", text="Its own words")])
    assert text == licences.rendered([GOOD, replace(GOOD, name="other", text="Its own words")])
    assert re.search(r"^thing 1 +MIT$", text, re.MULTILINE)
    assert text.index("other 1\nMIT\n\nIts own words") > text.index("Permission is hereby granted")


@pytest.mark.parametrize("name", ["deploy/standalone", "deploy/windows/build.py"])
def test_every_self_contained_build_has_the_list(name: str) -> None:
    """Both builders write it into the folder that everything else is packed from."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert re.search(r"-m\"?,? \"?deploy\.licences\"?,? \"?--folder", text)
