"""A policy as a recording stores it: written values can be read back, and unreadable values are no policy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.config.load import MAX_FAULTS, load_policy, policy_values, read_policy
from exporter.config.rules import read_rules
from exporter.core.hours import Hours
from exporter.core.policy import Coordination, Mode, Policy, Rule
from tests.support.approval_case import hours

WORDS = st.lists(st.sampled_from(["Reboot", "Freeze", "Redeploy", "Später"]), min_size=1, max_size=3, unique=True)
SECONDS = st.integers(100, 86_400_000).map(lambda milliseconds: milliseconds / 1000)
PATHS = st.sampled_from(["/run/ready/{event_id}", "/srv/ä b/ready", r"C:\app\ready\{event_id}"])
RULES = st.builds(
    Rule,
    name=st.uuids().map(str),
    event_type=WORDS.map(tuple),
    event_source=st.none() | WORDS.map(tuple),
    min_duration=st.none() | st.integers(0, 8),
    max_duration=st.none() | st.integers(9, 2**31 - 1),
    settle=st.none() | SECONDS,
    require_file=st.just("") | PATHS,
    when_quiet=st.booleans(),
    max_resources=st.none() | st.integers(1, 1000),
    hours=st.none() | st.sampled_from([Hours(1320, 300), hours("09:00-17:30", "Sat", timezone="Europe/Berlin")]),
)
POLICIES = st.builds(
    Policy,
    mode=st.sampled_from(Mode),
    coordination=st.sampled_from(Coordination),
    takeover_after=st.none() | SECONDS,
    hold_file=st.sampled_from(["", "/run/hold", r"\\server\share\hold"]),
    rules=st.lists(RULES, max_size=4).map(tuple),
)


def through_json(policy: Policy) -> Any:
    """Return the values as they're read from a recording."""
    return json.loads(json.dumps(policy_values(policy)))


@given(POLICIES)
def test_policy_can_be_read_back(policy: Policy) -> None:
    """Every mode, coordination, time, path, and rule, with paths of any system."""
    read = read_policy(through_json(policy))
    assert (read.policy, read.faults) == (policy, ())


@given(st.lists(RULES.filter(lambda rule: not rule.require_file), max_size=4))
def test_rules_are_written_in_the_format_of_the_settings_file(rules: list[Rule]) -> None:
    """The reader of the settings file accepts them unchanged."""
    read = read_rules(through_json(Policy(rules=tuple(rules)))["rules"], "rules")
    assert (read.rules, read.errors) == (tuple(rules), ())


def test_rule_has_only_the_keys_that_it_sets() -> None:
    """A recording reads like the file; durations have their units."""
    values = policy_values(Policy(Mode.ENFORCE, takeover_after=90.0, rules=(Rule("r", ("Freeze",), settle=30.0),)))
    assert values == {
        "mode": "enforce",
        "coordination": "leader",
        "takeover_after": "1m30s",
        "hold_file": "",
        "rules": [{"name": "r", "event_type": ["Freeze"], "settle": "30s"}],
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rules": [{"name": "r", "event_type": ["Freeze"], "phase_of_the_moon": "full"}]}, "unknown key"),
        ({"rules": [{"name": "r", "event_type": ["Freeze"], "settle": 30}]}, "settle: expected"),
        ({"rules": [{"name": "r"}]}, "event_type: missing"),
        ({"rules": [{"name": "r", "event_type": ["Freeze"], "require_file": 5}]}, "require_file: expected"),
        ({"rules": [{"name": [], "event_type": ["Freeze"], "require_file": "/x"}]}, "name: expected"),
        ({"rules": "all"}, "rules: expected a list"),
        ({"veto": True}, 'unknown key "veto"'),
        ({"coordination": "quorum"}, "coordination: expected one of"),
        ({"takeover_after": 5}, "takeover_after: expected"),
        ({"hold_file": "/run/\u0007"}, "hold_file: expected a path"),
        ({"hold_file": ["/run/hold"]}, "hold_file: expected a path"),
        ({"rules": [{"name": "a", "event_type": ["Reboot"], "require_file": ""}]}, "require_file: expected an"),
    ],
)
def test_policy_of_a_later_version_is_never_read_in_part(change: dict[str, Any], sentence: str) -> None:
    """With one unknown key, only the mode is read: with a condition or a rule less, a policy could approve more."""
    read = read_policy({**through_json(Policy(Mode.ENFORCE)), **change})
    assert read.policy == Policy(Mode.ENFORCE, rules=())
    assert any(sentence in fault for fault in read.faults), read.faults


@pytest.mark.parametrize("key", ["mode", "coordination", "takeover_after", "hold_file", "rules"])
def test_missing_key_is_not_replaced_by_the_default(key: str) -> None:
    """Each key is written, whatever its value: without its hold file, a policy would approve held events."""
    values = through_json(Policy(Mode.ENFORCE, hold_file="/run/hold"))
    del values[key]
    read = read_policy(values)
    assert read.faults == (f"{key}: missing",)
    assert read.policy.rules == ()


@pytest.mark.parametrize("value", [None, 5, "enforce", [], {}, {"omitted": 70_000}, {"mode": {}, "rules": {}}])
def test_invalid_policy_is_reported_and_decides_nothing(value: object) -> None:
    """Any value gives faults, and never an exception."""
    read = read_policy(value)
    assert read.faults
    assert read.policy == Policy(Mode.OFF, rules=())


def test_very_many_faults_are_counted() -> None:
    """A recording can contain anything."""
    assert len(read_policy({str(number): 0 for number in range(1000)}).faults) == MAX_FAULTS + 1


def test_secret_in_a_path_is_not_shown() -> None:
    """The faults of a recording from any source are printed."""
    secret = "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=c2VjcmV0"
    faults = read_policy({**through_json(Policy()), "hold_file": secret}).faults
    assert faults
    assert "c2VjcmV0" not in str(faults)


def test_policy_file_is_the_approval_section_of_a_settings_file() -> None:
    """Other sections aren't used, and their secrets aren't read."""
    text = b'[approval]\nmode = "enforce"\nrules = []\n[event_hubs]\nconnection_string_file = "/no/such/file"\n'
    settings = load_policy("/new.toml", lambda _, __: text)
    assert settings.approval.policy == Policy(Mode.ENFORCE, rules=())
    assert settings.approval_given
    assert settings.warnings == ("approval.rules: empty, so no event is ever approved; add a rule",)
    assert not load_policy("/new.toml", lambda _, __: b"").approval_given
