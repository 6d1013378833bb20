"""The licences of everything that ships, as `make -C deploy licences` and each self-contained build check them."""

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
def test_shipped_packages_have_an_allowed_licence_and_its_text(name: str) -> None:
    """Each distribution of the lock that is installed here may ship."""
    assert component(INSTALLED[name]).fault == ""


def test_every_dependency_is_checked() -> None:
    """Every package of the lock is installed here, except for those of other systems."""
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
def test_a_package_that_may_not_ship_is_named(one: Component, says: str) -> None:
    """A licence outside the list, even as an alternative, a missing one, and one without text are faults with a
    message."""
    assert GOOD.fault == ""
    assert says in one.fault
    assert one.name in one.fault


def test_common_licence_names_are_recognized() -> None:
    """A distribution's own licence text is read as an expression of allowed licences."""
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
def test_an_unknown_licence_is_not_ignored(field: str, classifiers: list[str]) -> None:
    """An allowed licence next to it does not make it allowed: the message names it."""
    assert "not permitted" in replace(GOOD, licence=stated(field, classifiers)).fault


def test_an_unlisted_library_is_rejected() -> None:
    """readline is under the GPL: a build with it, or with any other unlisted library, is rejected."""
    assert library("libcrypto-3-x64.dll").name == library("libssl.so.3").name == "OpenSSL"
    assert library("libpython3.11.so.1.0").name == library("python313.dll").name == "CPython"
    assert library("libz.so.1").name == "zlib"
    with pytest.raises(UnknownLibrary, match=r"libreadline\.so\.8"):
        library("libreadline.so.8")


def test_the_list_is_complete_and_reproducible() -> None:
    """Each component is in the list with version and licence, and its text below; no text depends on place or time."""
    text = licences.rendered([GOOD, replace(GOOD, name="other", text="Its own words")])
    assert text == licences.rendered([GOOD, replace(GOOD, name="other", text="Its own words")])
    assert re.search(r"^thing 1 +MIT$", text, re.MULTILINE)
    assert text.index("other 1\nMIT\n\nIts own words") > text.index("Permission is hereby granted")


@pytest.mark.parametrize("name", ["deploy/standalone", "deploy/windows/build.py"])
def test_every_self_contained_build_has_the_list(name: str) -> None:
    """Both builders write it into the folder that everything else is packed from."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert re.search(r"-m\"?,? \"?deploy\.licences\"?,? \"?--folder", text)
