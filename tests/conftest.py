"""Settings for every test: on which systems it runs, the effort of property tests, and garbage collection."""

from __future__ import annotations

import gc
import os
import signal
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.effort import LONG, PROFILE, Tried, examples
from tests.support.systems import WINDOWS, under_wine

os.environ.pop("INVOCATION_ID", None)  # of a CI runner or a desktop terminal: the agent would detect a service
settings.register_profile("quick", deadline=None, database=None, derandomize=True, max_examples=examples(60))
settings.register_profile(
    "long",
    deadline=None,
    max_examples=examples(60),
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(PROFILE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of another system, each with the reason of its mark. No such skip is a missing peer."""
    elsewhere = ["linux"] if WINDOWS else ["windows"]
    if under_wine():
        elsewhere.append("not_wine")
    if os.environ.get("EMULATED"):
        elsewhere.append("not_emulated")
    for item in items:
        for name in elsewhere:
            if (mark := item.get_closest_marker(name)) is not None:
                item.add_marker(pytest.mark.skip(reason=" ".join([SKIPPED[name], *mark.args])))


SKIPPED: Final = {
    "linux": "only on Linux:",
    "windows": "only on Windows: make -C tests windows",
    "not_wine": "not judged under Wine:",
    "not_emulated": "not judged under QEMU's emulation:",
}


@settings(max_examples=1, database=None)
@given(st.none())
def _first_property(_nothing: None) -> None:
    """Pass."""


def pytest_collection_finish() -> None:
    """Keep the collected tests and their modules out of every later garbage collection.

    A full one takes 0.3 s otherwise, and the tests of the Event Hubs SDK ask for hundreds. Before the first property
    Hypothesis asks the collector for the owners of its random numbers, and the collector does not name frozen objects.
    From Python 3.14 on, a call holds no other reference, so that is a warning. So the first property comes before.
    """
    _first_property()
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts that `tests.properties` adds up."""
    if LONG:
        terminalreporter.write_line(f"tried {Tried.examples} examples of {Tried.steps} steps")


# A process that a shell starts in the background ignores Ctrl-C, and so do its children; the tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
