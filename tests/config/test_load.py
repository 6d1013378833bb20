"""Settings: valid values, rejected values with their errors, and the secrecy of secrets."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from datetime import UTC, tzinfo
from pathlib import Path

import pytest
from msgspec.structs import fields

from exporter.config.rules import RulesRead, _zone_names, read_rules, read_zone, rule_table
from exporter.config.schema import SECTIONS, Settings, catalogue, outbox_path
from exporter.core.hours import Hours
from exporter.core.policy import Policy, Rule
from exporter.core.snapshot import GatePolicy
from exporter.secrets import Secret
from exporter.text.values import InvalidValue
from tests.support.approval_case import hours
from tests.support.configuration import CONNECTION, DATA, KEY, errors, loaded, parser, refused, to_toml
from tests.support.core_documents import NOON
from tests.support.documentation import settings_table
from tests.support.systems import WINDOWS

USHUAIA = "America/Argentina/Ushuaia"


@pytest.mark.parametrize("path", sorted(DATA.glob("bad-*.toml")), ids=lambda path: path.stem)
def test_bad_file_is_reported_with_all_its_errors(path: Path) -> None:
    """The errors of each bad file are exactly those in the `.errors` file."""
    text = path.with_suffix(".errors").read_text(encoding="utf-8")
    if WINDOWS:
        text = text.replace('"/run/app/ready/{event_id}"', r"'C:\app\ready\{event_id}'")
    assert errors(f"--config.file={path.name}") == tuple(text.splitlines())


@pytest.mark.parametrize(
    "value",
    [
        r'"C:\Data\outbox.db"',
        r'"C:\Users\me\outbox.db"',
        r'"D:\data\"',
        r'"\\nas\share\outbox.db"',
        r'"C:\temp\outbox.db"',
        r'"C:\temp"',
        r'"C:\files"',
        r'"C:\new"',
        r'"C:\ready"',
        r'"C:\bin"',
    ],
)
def test_windows_path_in_double_quotes_is_rejected_with_the_fix(value: str) -> None:
    """TOML reads a backslash in double quotes as an escape: an error, or silently a tab."""
    for text in (
        f"[outbox]\npath = {value}\n",
        f"[approval]\nhold_file = {value}\n",
        f"[approval]\nrules = [{{ name = 'a', event_type = ['Reboot'], require_file = {value} }}]",
    ):
        (sentence,) = errors(toml=text)
        assert sentence.endswith(r"write a path with backslashes in single quotes, for example 'C:\temp\outbox.db'")


def test_hint_at_single_quotes_is_only_for_paths() -> None:
    """Other errors of TOML are unchanged; a path in single quotes, or with doubled backslashes, is accepted."""
    assert "quotes" not in errors(toml='[outbox]\npath = "/var/lib/outbox.db"\nmax_bytes = \n')[0]
    assert "quotes" not in errors(toml="[outbox]\npath = 'C:\\temp'\nmax_bytes = \"\n")[0]
    assert loaded(toml="[outbox]\npath = 'C:\\temp\\outbox.db'").outbox.path == "C:\\temp\\outbox.db"
    assert loaded(toml='[outbox]\npath = "C:\\\\temp\\\\outbox.db"').outbox.path == "C:\\temp\\outbox.db"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_settings_and_secrets_written_by_powershell_are_read(tmp_path: Path, encoding: str) -> None:
    """`>`, `Out-File`, and `Set-Content` write UTF-16 and byte order marks."""
    secret = tmp_path / "connection"
    secret.write_text(f"{CONNECTION};EntityPath=hub\r\n", encoding=encoding)
    config = tmp_path / "config.toml"
    config.write_text(
        f"[source]\nvm_name = 'ä→日本'\n[event_hubs]\nconnection_string_file = '{secret}'\n", encoding=encoding
    )
    settings = loaded(f"--config.file={config}")
    assert settings.source.vm_name == "ä→日本"
    assert settings.event_hubs.connection_string == Secret(f"{CONNECTION};EntityPath=hub")


def test_utf_16_without_a_mark_is_rejected_with_the_fix(tmp_path: Path) -> None:
    """It can't be distinguished reliably from binary data, so it's reported instead of guessed."""
    config = tmp_path / "config.toml"
    config.write_text("[source]\n", encoding="utf-16-le")
    (sentence,) = errors(f"--config.file={config}")
    assert sentence == (
        f"{config}: expected UTF-8, found UTF-16 without a byte order mark; save it as UTF-8, in PowerShell with "
        "`Set-Content -Encoding UTF8`"
    )


def test_file_with_every_key_is_accepted() -> None:
    """Every key can be set in the file, and has the expected value."""
    document = tomllib.loads((DATA / "good.toml").read_text())
    missing = {(s.section, s.key) for s in catalogue() if s.key not in document[s.section]}
    assert missing == {
        ("event_hubs", "connection_string_file"),
        ("event_hubs", "fully_qualified_namespace"),
        ("event_hubs", "event_hub"),
    }
    settings = loaded("--config.file=good.toml")
    assert settings.warnings == ()
    assert settings.config_file == "good.toml"
    assert settings.source.url == "http://127.0.0.1:8080"
    assert settings.source.poll_interval == 0.25
    assert settings.source.tags == ("owner", "cost center")
    assert settings.approval.takeover_after == 90.0
    drained, short = settings.approval.rules
    assert (drained.settle, drained.require_file, drained.when_quiet) == (30.0, "C:/run/app/ready/{event_id}", True)
    assert (drained.max_resources, drained.hours) == (2, hours("22:00-05:00", "Sat", "Sun", timezone="Europe/Berlin"))
    assert (short.event_type, short.event_source, short.min_duration, short.max_duration) == (("Freeze",), None, 0, 8)
    assert settings.event_hubs.configured
    assert settings.event_hubs.event_hub == "events"
    connection = settings.event_hubs.connection
    assert connection is not None
    assert (connection.host, connection.key_name, connection.key.reveal()) == (
        "contoso.servicebus.windows.net",
        "send",
        KEY,
    )
    assert settings.otlp.logs_url == "https://collector.example:4318/tenant/v1/logs"
    assert settings.otlp.headers == (("authorization", Secret("Bearer t0psecret-token")),)
    assert settings.event_files.path == "C:/run/events"
    assert (settings.gate.lead, settings.gate.event_types) == (300.0, ("Terminate", "Freeze"))
    assert settings.web.address == ("::1", 0)
    assert settings.web.dashboard_url == "https://grafana.example/d/vm?var-instance={vm_name}"
    assert settings.recording.max_bytes == 2**40


def test_no_settings_give_the_defaults() -> None:
    """Without any setting, with an empty file, and with empty variables; the defaults are valid."""
    assert loaded() == Settings()
    assert dataclasses.replace(loaded("--config.file=empty.toml"), config_file="") == Settings()
    assert loaded(environ={s.env: "" for s in catalogue()}) == Settings()
    assert not Settings().event_hubs.configured
    assert not Settings().otlp.configured


def test_defaults_are_the_published_ones() -> None:
    """Defaults that users rely on don't change by accident."""
    settings = Settings()
    assert dataclasses.astuple(settings.source) == ("http://169.254.169.254", "2020-07-01", 1.0, "", "", ())
    assert dataclasses.astuple(settings.approval)[:4] == ("dry-run", "leader", None, "")
    assert [rule.name for rule in settings.approval.rules] == ["user-initiated", "short-freeze"]
    assert (settings.event_hubs.transport, settings.event_hubs.idle_close) == ("amqp", 60.0)
    assert settings.records.scope == "own"
    assert dataclasses.astuple(settings.outbox) == (outbox_path(), 104857600)
    assert outbox_path("linux") == "/var/lib/azure-scheduled-events-exporter/outbox.db"
    assert dataclasses.astuple(settings.gate) == (120.0, ("Reboot", "Redeploy", "Preempt", "Terminate"))
    assert dataclasses.astuple(settings.web) == ("0.0.0.0:10169", "", "")
    assert dataclasses.astuple(settings.log) == ("info", "logfmt")
    assert settings.recording.path == ""


def test_default_policy_is_the_one_of_the_settings() -> None:
    """Rules, mode, and coordination have the same defaults in the settings and in the policy."""
    for approval in (loaded().approval, Settings().approval):
        policy = Policy(
            approval.mode, approval.coordination, approval.takeover_after, approval.hold_file, approval.rules
        )
        assert policy == Policy()


def test_default_gate_is_the_one_of_the_settings() -> None:
    """Lead and types have the same defaults in the settings and in the core."""
    assert loaded().gate.policy == Settings().gate.policy == GatePolicy()


@pytest.mark.parametrize(
    ("text", "toml", "words"),
    [
        ("Reboot", '["Reboot"]', ("Reboot",)),
        (" Preempt , Reboot,,Preempt, ", '["Preempt", "Reboot", "Preempt"]', ("Preempt", "Reboot")),
        (",", "[]", ()),
    ],
)
def test_list_of_words_is_comma_separated_text_or_a_list(text: str, toml: str, words: tuple[str, ...]) -> None:
    """As flag and variable with commas; order is kept, duplicates are removed."""
    by_file = loaded(toml=f"[gate]\nevent_types = {toml}")
    assert by_file.gate.event_types == words
    assert loaded(environ={"SCHEDULED_EVENTS_GATE_EVENT_TYPES": text}) == dataclasses.replace(by_file, config_file="")
    assert loaded(f"--gate.event-types={text}") == dataclasses.replace(by_file, config_file="")


def test_empty_flag_is_an_empty_list() -> None:
    """An empty variable counts as unset, as everywhere."""
    assert loaded("--gate.event-types=").gate.event_types == ()
    assert loaded(environ={"SCHEDULED_EVENTS_GATE_EVENT_TYPES": ""}).gate.event_types == Settings().gate.event_types


@pytest.mark.parametrize("toml", ['["Reboot", 1]', '[["Reboot"]]', '["Reboot,Redeploy"]', '[""]', '["a b"]', '["é"]'])
def test_invalid_word_is_rejected(toml: str) -> None:
    """The words can appear in responses to other machines."""
    (error,) = errors(toml=f"[gate]\nevent_types = {toml}")
    assert error == (
        "settings.toml: [gate] event_types: expected at most 20 words of letters, digits, dots, and dashes, for "
        'example ["Freeze", "Reboot"], found a list'
    )


def test_too_many_words_and_secrets_are_rejected() -> None:
    """At most twenty words; a connection string is identified as such, and never shown."""
    many = ",".join(f"word-{number}" for number in range(21))
    assert "at most 20 words" in errors(f"--gate.event-types={many}")[0]
    for given in (errors(f"--gate.event-types={CONNECTION}"), errors(toml=f'[gate]\nevent_types = ["{CONNECTION}"]')):
        assert "this is a connection string" in given[0]
        assert KEY not in given[0]


@pytest.mark.parametrize(
    ("text", "toml", "names"),
    [
        ("owner,environment", '["owner", "environment"]', ("owner", "environment")),
        (" owner , cost center,owner", '["owner", "cost center", "owner"]', ("owner", "cost center")),
        ("Straße,hidden-link:/app", '["Straße", "hidden-link:/app"]', ("Straße", "hidden-link:/app")),
        (" ", "[]", ()),
    ],
)
def test_tag_names_are_comma_separated_text_or_a_list(text: str, toml: str, names: tuple[str, ...]) -> None:
    """Azure's names can have spaces and letters of any alphabet; duplicates are removed."""
    by_file = loaded(toml=f"[source]\ntags = {toml}")
    assert by_file.source.tags == names
    assert loaded(environ={"SCHEDULED_EVENTS_SOURCE_TAGS": text}) == dataclasses.replace(by_file, config_file="")
    assert loaded(f"--source.tags={text}") == dataclasses.replace(by_file, config_file="")


def test_tag_name_with_a_comma_is_only_possible_in_the_file() -> None:
    """Elsewhere, commas separate names."""
    assert loaded(toml='[source]\ntags = ["a, b"]').source.tags == ("a, b",)


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ('["owner", ""]', "non-empty names of VM tags"),
        ('[" "]', "non-empty names of VM tags"),
        ('["owner", 7]', "non-empty names of VM tags"),
        ('["a\\nb"]', "non-empty names of VM tags"),
        (f'["{"x" * 513}"]', "non-empty names of VM tags"),
        ('"owner"', "a list of words"),
        (
            '["cost-center", "cost_center"]',
            'names with different labels: "cost-center" and "cost_center" both become tag_cost_center',
        ),
        ('["owner", "Owner"]', 'different tags: to Azure, "owner" and "Owner" are the same tag'),
        (str([f"tag-{number}" for number in range(17)]), "at most 16 names of VM tags"),
        (f'["{CONNECTION}"]', "this is a connection string"),
    ],
)
def test_tag_names_that_cannot_be_labels_are_rejected(toml: str, expected: str) -> None:
    """Empty names, two names with one label, and more than sixteen; also by flag."""
    (error,) = errors(toml=f"[source]\ntags = {toml}")
    assert error.startswith("settings.toml: [source] tags: ")
    assert expected in error
    assert KEY not in error


@pytest.mark.parametrize("text", ["owner,,environment", "owner,", ","])
def test_empty_name_between_commas_is_rejected(text: str) -> None:
    """It's more likely a variable without a value than intended."""
    (error,) = errors(f"--source.tags={text}")
    assert error.startswith("--source.tags: expected non-empty names of VM tags")


def test_unknown_type_of_the_gate_is_a_warning() -> None:
    """The warning has its origin and a near match; Azure may add types."""
    assert loaded(toml='[gate]\nevent_types = ["reboot", "Levitate"]').warnings == (
        'settings.toml: [gate] event_types: "reboot" is unknown to this version (did you mean "Reboot"? words match '
        "exactly)",
        'settings.toml: [gate] event_types: "Levitate" is unknown to this version',
    )


def test_every_field_of_a_rule_can_be_set() -> None:
    """Each field of a rule is a key of the file, and has the expected value in the policy."""
    (rule,) = loaded(
        toml="[approval]\n"
        'rules = [{ name = "a", event_type = ["Reboot", "Freeze"], event_source = ["User"], min_duration = 1, '
        'max_duration = 9, settle = "30s", require_file = "C:/run/app/{event_id}", when_quiet = true, '
        'max_resources = 2, between = "22:00-05:00", days = ["Mon"], timezone = "Asia/Kathmandu" }]'
    ).approval.rules
    asked = hours("22:00-05:00", "Mon", timezone="Asia/Kathmandu")
    assert rule == Rule("a", ("Reboot", "Freeze"), ("User",), 1, 9, 30.0, "C:/run/app/{event_id}", True, 2, asked)
    unset = Rule("", ())
    assert all(getattr(rule, field.name) != getattr(unset, field.name) for field in fields(Rule))


def test_rule_has_no_conditions_for_missing_keys() -> None:
    """Also if it settles for zero seconds."""
    rules = loaded(
        toml='[approval]\nrules = [{ name = "a", event_type = ["Reboot"] }, '
        '{ name = "b", event_type = ["Reboot"], settle = "0s" }]'
    ).approval.rules
    assert rules == (Rule("a", ("Reboot",)), Rule("b", ("Reboot",)))


def test_empty_list_of_rules_is_accepted() -> None:
    """Explicitly empty rules aren't replaced by the default rules."""
    assert loaded("--config.file=no-rules.toml").approval.rules == ()


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ('between = "22:00-05:00"', hours("22:00-05:00")),
        ('days = ["Sat", "Mon", "Sat"]', hours("00:00-24:00", "Mon", "Sat")),
        ('between = "00:00-24:00"', hours()),
        ('between = "23:59-24:00", timezone = "UTC"', hours("23:59-24:00")),
        ('between = "22:00-00:00"', hours("22:00-00:00")),
        ('days = ["Sat"], timezone = "America/Argentina/Ushuaia"', hours("00:00-24:00", "Sat", timezone=USHUAIA)),
    ],
)
def test_hours_are_utc_every_day_and_all_day_by_default(keys: str, asked: Hours) -> None:
    """Each key can be given without the others, days in any order; the written form can be read back."""
    (rule,) = loaded(toml=f'[approval]\nrules = [{{ name = "a", event_type = ["Reboot"], {keys} }}]').approval.rules
    found = rule.hours
    assert found is not None
    assert (found.start, found.end, found.days, found.timezone) == (asked.start, asked.end, asked.days, asked.timezone)
    assert found.within(NOON) == asked.within(NOON)
    again = read_rules([json.loads(json.dumps(rule_table(rule)))], "recorded")
    assert again == RulesRead((rule,), (), ())


def test_utc_needs_no_data_and_a_zone_without_data_is_reported() -> None:
    """A machine without zone data, an unknown name, and damaged data."""

    def broken(name: str) -> tzinfo:
        raise ValueError(name)

    def sentence(value: object, *names: str) -> str:
        with pytest.raises(InvalidValue) as caught:
            read_zone(value, lambda: names, broken)
        return str(caught.value)

    assert read_zone("UTC", lambda: (), broken) == ("UTC", UTC)
    assert "nor Python has time zone data" in sentence("Europe/Berlin")
    assert sentence("Europe/Berlin", "Europe/Berlin").endswith("cannot be read: ValueError")
    assert 'found "europe/Berlin" (did you mean "Europe/Berlin"?' in sentence("europe/Berlin", "Europe/Berlin")


def test_every_known_zone_can_be_loaded() -> None:
    """By its own name; none of them depends on the machine's location."""
    names = _zone_names()
    assert {"Europe/Berlin", "Asia/Kathmandu", "America/Argentina/Ushuaia"} <= names
    assert not {"localtime", "posixrules", "Factory"} & names
    assert not [name for name in names if name.startswith(("/", "right/", "posix/")) or ".." in name]
    for name in names:
        assert read_zone(name)[0] == name


def test_require_file_without_event_id_is_a_warning() -> None:
    """One ready file would satisfy the rule for every later event."""
    text = '[approval]\nrules = [{{ name = "a", event_type = ["Reboot"], require_file = "{}" }}]'
    (warning,) = loaded(toml=text.format("C:/run/ready")).warnings
    assert warning == (
        'settings.toml: [approval] rules: rule "a": require_file has no "{event_id}", so one file satisfies the rule '
        'for every later event; add "{event_id}" to the path'
    )
    assert loaded(toml=text.format("C:/run/ready/{event_id}")).warnings == ()


def test_settings_written_as_toml_can_be_read_back() -> None:
    """The settings in force, written as TOML, are the same settings when read."""
    settings = loaded("--config.file=good.toml", environ={})
    plain = dataclasses.replace(settings, event_hubs=Settings().event_hubs, config_file="settings.toml")
    text = to_toml(plain)
    again = loaded(toml=text)
    hidden = tuple((name, Secret("<secret>")) for name, _ in settings.otlp.headers)
    assert again == dataclasses.replace(plain, otlp=dataclasses.replace(plain.otlp, headers=hidden))


def test_flag_has_priority_over_environment_otel_and_file() -> None:
    """The order of the sources is flag, own variable, OTEL_* variable, file, default."""
    toml = '[otlp]\nendpoint = "http://file:4318"\nservice_name = "file"'
    otel = {"OTEL_SERVICE_NAME": "otel", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://otel:4318"}
    own = {"SCHEDULED_EVENTS_OTLP_SERVICE_NAME": "own", "SCHEDULED_EVENTS_OTLP_ENDPOINT": "http://own:4318"}
    flags = ("--otlp.service-name=flag", "--otlp.endpoint=http://flag:4318")
    cases = [
        ("flag", loaded(*flags, environ={**otel, **own}, toml=toml)),
        ("own", loaded(environ={**otel, **own}, toml=toml)),
        ("otel", loaded(environ=otel, toml=toml)),
        ("file", loaded(toml=toml)),
    ]
    for name, settings in cases:
        assert (settings.otlp.service_name, settings.otlp.logs_url) == (name, f"http://{name}:4318/v1/logs")


@pytest.mark.parametrize("setting", list(catalogue()), ids=lambda setting: setting.name)
def test_every_setting_is_read_from_flag_and_environment(setting) -> None:  # type: ignore[no-untyped-def]  # pytest gives it
    """An invalid value is reported with its flag or variable, so each of them is really read."""
    wrong = "\x07"
    if setting.kind.__class__.__name__ == "Hidden":
        assert errors(environ={setting.env: wrong})[0].startswith(f"{setting.env}: expected ")
        return
    assert errors(environ={setting.env: wrong})[0].startswith(f"{setting.env}: expected ")
    if not setting.secret:
        assert errors(f"{setting.flag}={wrong}")[0].startswith(f"{setting.flag}: expected ")


def test_names_are_the_published_ones() -> None:
    """Flags and variables are spelled as in Prometheus' projects, and all differ."""
    settings = {s.name: s for s in catalogue()}
    assert settings["web.listen_address"].flag == "--web.listen-address"
    assert settings["web.listen_address"].env == "SCHEDULED_EVENTS_WEB_LISTEN_ADDRESS"
    assert settings["web.config_file"].flag == "--web.config.file"
    assert settings["approval.takeover_after"].flag == "--approval.takeover-after"
    assert len({s.flag for s in settings.values()}) == len({s.env for s in settings.values()}) == len(settings)


def test_file_can_be_set_by_the_environment() -> None:
    """--config.file has priority over SCHEDULED_EVENTS_CONFIG_FILE, even if it's empty, which means no file."""
    environ = {"SCHEDULED_EVENTS_CONFIG_FILE": "good.toml"}
    assert loaded(environ=environ).source.vm_name == "web_3"
    assert loaded("--config.file=empty.toml", environ=environ).source.vm_name == ""
    assert loaded("--config.file=", environ=environ) == loaded()


def test_unreadable_settings_file_is_reported_with_its_path() -> None:
    """The file is missing, a directory, or too large."""
    assert errors("--config.file=none.toml") == ("none.toml: cannot be read: No such file or directory",)
    assert errors("--config.file=.") == (".: cannot be read: Is a directory",)
    assert errors(toml="#" * (1 << 20) + "x") == ("settings.toml: expected at most 1048576 bytes, found more",)
    (nested,) = errors(toml="x = " + "[" * 5000)
    assert nested.startswith("settings.toml: expected TOML")


def test_unknown_variables_are_warnings_except_those_of_kubernetes() -> None:
    """Other programs' variables never stop the agent; near matches are shown, values aren't."""
    environ = {
        "SCHEDULED_EVENTS_SOURCE_POLL_INTERVALL": "hunter2",
        "SCHEDULED_EVENTS_PORT": "tcp://10.0.0.1:80",
        "SCHEDULED_EVENTS_PORT_80_TCP_ADDR": "10.0.0.1",
        "SCHEDULED_EVENTS_WEB_SERVICE_HOST": "10.0.0.1",
    }
    assert loaded(environ=environ).warnings == (
        "SCHEDULED_EVENTS_SOURCE_POLL_INTERVALL: not a setting, ignored; did you mean "
        "SCHEDULED_EVENTS_SOURCE_POLL_INTERVAL?",
    )


def test_rules_are_only_read_from_the_file() -> None:
    """Rules in a variable or flag are rejected, with the right place for them."""
    assert errors(environ={"SCHEDULED_EVENTS_APPROVAL_RULES": "[]"}) == (
        "SCHEDULED_EVENTS_APPROVAL_RULES: not supported; set rules in the settings file, as [approval] rules",
    )
    assert "--approval.rules: not a flag; set rules in the settings file" in refused("--approval.rules=[]")


def test_flags_are_not_abbreviated() -> None:
    """A prefix of a flag is unknown, so that a new setting never changes the meaning of an old script."""
    assert 'unknown flag "--source.ur"; did you mean --source.url?' in refused("--source.ur=http://127.0.0.1")


def test_help_and_table_contain_every_setting() -> None:
    """Both are generated from the same definition, and neither has a flag for a secret."""
    text, table = parser().format_help(), settings_table()
    for setting in catalogue():
        assert f"`{setting.env}`" in table
        assert setting.env in text
        assert (setting.flag in text.split()) != setting.secret
    assert "`approval.rules`" in table
    assert all(line.count(" | ") == 4 for line in table.splitlines())


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h",
        "http://",
        "http://u:p@h",
        "http://h/?",
        "http://h/a",
        "http://h:0",
        "http://h:99999",
        "h",
        "http://[::1",
        "http://a b",
    ],
)
def test_source_urls_with_more_than_a_base_are_rejected(url: str) -> None:
    """A path, a query, or a user in the source's URL is an error, without the password in it."""
    (error,) = errors(f"--source.url={url}")
    assert error.startswith("--source.url: expected an http or https URL without path, query, or user")
    assert "u:p" not in error


def test_doubtful_settings_are_warnings() -> None:
    """Valid settings that are probably unintended give a warning, and the agent starts."""
    settings = loaded(
        toml='[source]\napi_version = "2031-01-01"\n[approval]\nmode = "enforce"\ncoordination = "any"\n'
        'takeover_after = "1m"\nrules = [{ name = "new", event_type = ["Hibernate"] }]\n[event_hubs]\nevent_hub = "a"'
    )
    assert [warning.partition(":")[0] for warning in settings.warnings] == [
        "settings.toml",
        "settings.toml",
        "source.api_version",
        "approval.takeover_after",
    ]
    assert '"Hibernate" is unknown to this version' in settings.warnings[0]


def test_sections_and_settings_have_the_same_names() -> None:
    """The sections of the catalogue are the attributes of Settings."""
    names = [field.name for field in dataclasses.fields(Settings)]
    assert names[: len(SECTIONS)] == list(SECTIONS)


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "data:text/html,x",
        "//grafana.example/d",
        "grafana.example",
        "ftp://grafana.example/",
        "https://user:hunter2@grafana.example/",
        "https://{vm_name}.example/",
        "https://grafana.example/{instance}",
        "https://grafana.example/ d",
        'https://grafana.example/"',
    ],
)
def test_dashboard_is_a_url_that_a_browser_can_open(url: str) -> None:
    """Only http and https, without a user; placeholders are allowed, except in the host."""
    (error,) = errors(f"--web.dashboard-url={url}")
    assert error.startswith("--web.dashboard-url: expected an http or https URL without user, for example")
    assert "hunter2" not in error
