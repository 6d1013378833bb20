"""How hard the properties are tried: HYPOTHESIS_PROFILE=long goes on for minutes, the default is done in seconds."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.effort import LONG, PROFILE, TIMES, Tried

settings.register_profile("quick", deadline=None, database=None, derandomize=True, max_examples=60)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=max(1, round(60 * TIMES)),
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(PROFILE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What `tests.properties` adds up."""
    if LONG:
        terminalreporter.write_line(f"tried {Tried.examples} examples of {Tried.steps} steps")


# What a shell starts in the background ignores Ctrl-C, and so does all that it starts; the tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
