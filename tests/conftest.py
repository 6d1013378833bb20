"""How hard the properties are tried: HYPOTHESIS_PROFILE=long goes on for minutes, the default is done in seconds."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings

from tests.effort import PROFILE, TIMES

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
