"""Name, type, default, bounds, and help of every setting.

Flags, environment names, TOML keys, `--help`, and the table in docs/settings.md are made from the fields below
(`catalogue`), except for the approval rules, which aren't a single value: `rules` reads them.
"""

# ruff: noqa: RUF009 - `option` is `dataclasses.field`, which the rule would know by its own name

from __future__ import annotations

import ntpath
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, get_args

from exporter.choices import Compression, LogFormat, LogLevel, MessageFormat, Transport
from exporter.config import types as kinds
from exporter.core.document import KNOWN_TYPES
from exporter.core.policy import DEFAULT_RULES, Coordination, Mode, Policy, Rule
from exporter.core.snapshot import EVENT_TYPES, LEAD_SECONDS, GatePolicy
from exporter.secrets import Secret, header_secrets
from exporter.text.values import split_address
from exporter.windows.places import OUTBOX_FILE, program_data

ENV_PREFIX: Final = "SCHEDULED_EVENTS_"

Scope = Literal["own", "all"]

OTLP_TIMEOUT: Final = kinds.Duration(0.1, 4.0)
"""Of one request: a stop must end within 5 s, even if the receiver does not respond."""
_PATH: Final = kinds.Text("a path, or nothing", kinds.absolute_path, optional=True, path=True, word="FILE")
_FILE: Final = kinds.Text("a path, or nothing", kinds.file_path, optional=True, path=True, word="FILE")


def outbox_path(platform: str = sys.platform, environ: Mapping[str, str] = os.environ) -> str:
    """Return the default path of the outbox: below ProgramData on Windows, else in /var/lib."""
    path = ntpath.join(program_data(environ), OUTBOX_FILE)
    return path if platform == "win32" else "/var/lib/azure-scheduled-events-exporter/outbox.db"


def option(kind: kinds.SettingType, default: Any, help: str, *, flag: str = "", secret: bool = False) -> Any:
    """Return a dataclass field for a setting. `flag` is set only if it isn't `section.key`; secrets have no flag."""
    return field(default=default, metadata={"kind": kind, "help": help, "flag": flag, "secret": secret})


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """The metadata service. `poll_interval` is in seconds."""

    url: str = option(
        kinds.Text(check=kinds.source_url, word="URL"), "http://169.254.169.254", "Base URL of the metadata service."
    )
    api_version: str = option(
        kinds.Text(check=kinds.api_version, word="DATE"),
        "2020-07-01",
        "api-version of Scheduled Events, sent with each request.",
    )
    poll_interval: float = option(
        kinds.Duration(0.05, 60), 1.0, "Poll interval, 50ms to 1m. All clients on the VM share 5 requests per second."
    )
    vm_name: str = option(kinds.Text(), "", "This VM's name, as in Resources. Empty: ask the metadata service.")
    node_name: str = option(kinds.Text(), "", "Kubernetes node name, for `vm_info` and the records.")
    tags: tuple[str, ...] = option(
        kinds.TagNames(),
        (),
        "VM tags to publish in `vm_info` and the records; a list in the file. No other tags are published.",
    )


@dataclass(frozen=True, slots=True)
class ApprovalSettings:
    """The approval policy. `takeover_after` is in seconds; None: never."""

    mode: Mode = option(kinds.Choice(Mode), Mode.DRY_RUN, "off, dry-run, or enforce. Only enforce sends approvals.")
    coordination: Coordination = option(
        kinds.Choice(Coordination),
        Coordination.LEADER,
        "For events of several VMs: leader (the first name in Resources approves), any, or single (none approves).",
    )
    takeover_after: float | None = option(
        kinds.Duration(0.1, 86400, never=True),
        None,
        "With leader, for events with source User: the k-th name may approve after (k-1) times this.",
    )
    hold_file: str = option(
        _FILE, "", "The agent approves nothing unless this file is known to be absent. Empty: no hold file."
    )
    rules: tuple[Rule, ...] = field(default=DEFAULT_RULES)

    @property
    def policy(self) -> Policy:
        """These settings as the core uses them."""
        return Policy(self.mode, self.coordination, self.takeover_after, self.hold_file, self.rules)


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """A parsed Event Hubs connection string; `event_hubs.parse_connection_string` makes it.

    `text` is the whole string, for the SDK. `port` is None unless given; `other_fields`: it has fields that the agent
    ignores.
    """

    text: Secret
    host: str
    port: int | None
    event_hub: str
    key_name: str
    key: Secret
    signature: Secret
    emulator: bool
    other_fields: bool = False


@dataclass(frozen=True, slots=True)
class EventHubsSettings:
    """The Event Hubs destination. `idle_close` is in seconds.

    After loading, `event_hub` is the resolved name and `connection` the parsed connection string (None with a
    namespace, or if nothing is configured).
    """

    connection_string: Secret = option(
        kinds.Hidden(),
        Secret(),
        "Connection string of the namespace or hub. Supports UseDevelopmentEmulator=true.",
        secret=True,
    )
    connection_string_file: str = option(
        kinds.Text(optional=True, path=True, word="FILE"),
        "",
        "File that contains the connection string, for example a mounted secret.",
    )
    fully_qualified_namespace: str = option(
        kinds.Text(check=kinds.namespace, optional=True),
        "",
        "Host name of the namespace, to sign in with azure-identity (extra `identity`) instead of a connection string.",
    )
    event_hub: str = option(
        kinds.Text(check=kinds.hub_name, optional=True),
        "",
        "Name of the event hub, if the connection string has no EntityPath.",
    )
    transport: Transport = option(
        kinds.Choice(get_args(Transport)), "amqp", "amqp (port 5671) or websocket (port 443)."
    )
    idle_close: float = option(
        kinds.Duration(1, 3600),
        60.0,
        "Close the connection after this time without a record. Namespaces limit connections.",
    )
    custom_endpoint: str = option(
        kinds.Text(check=kinds.custom_endpoint, optional=True, word="URL"),
        "",
        "Address to connect to instead, for example a private endpoint.",
    )
    certificate: str = option(
        _PATH,
        "",
        "CA certificates (PEM) to trust instead of the public ones, for example of a TLS-inspecting proxy.",
    )
    consumer_group: str = option(kinds.Text(check=kinds.consumer_group), "$Default", "Consumer group that `tail` uses.")
    message_format: MessageFormat = option(
        kinds.Choice(get_args(MessageFormat)),
        "cloudevents",
        "Message body: cloudevents, or azure-sample for consumers of Microsoft's sample.",
    )
    connection: ConnectionString | None = None

    @property
    def configured(self) -> bool:
        """Whether the agent sends records to Event Hubs."""
        return bool(self.connection_string or self.connection_string_file or self.fully_qualified_namespace)


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """The OpenTelemetry destination. `timeout` is in seconds.

    After loading, `logs_url` is the URL for POST requests ("" if off), and `resource_attributes` is the decoded
    OTEL_RESOURCE_ATTRIBUTES.
    """

    endpoint: str = option(
        kinds.Text(check=kinds.otlp_base, optional=True, word="URL"),
        "",
        "Base URL of an OTLP/HTTP receiver; /v1/logs is appended.",
    )
    headers: tuple[tuple[str, Secret], ...] = option(
        kinds.Headers(),
        (),
        'Headers for each request; in the file, a table or "name=value,name=value".',
        secret=True,
    )
    timeout: float = option(OTLP_TIMEOUT, 2.0, "Request timeout, 100ms to 4s; a stop takes at most 5s.")
    certificate: str = option(_PATH, "", "CA certificates (PEM) to trust instead of the system's.")
    client_certificate: str = option(_PATH, "", "Client certificate (PEM).")
    client_key: str = option(_PATH, "", "Key of the client certificate (PEM).")
    compression: Compression = option(kinds.Choice(get_args(Compression)), "none", "none or gzip.")
    service_name: str = option(
        kinds.Text(check=kinds.service_name),
        "azure-scheduled-events-exporter",
        "OpenTelemetry's service.name of the records.",
    )
    logs_url: str = ""
    resource_attributes: tuple[tuple[str, str], ...] = ()

    @property
    def configured(self) -> bool:
        """Whether the agent sends records by OTLP."""
        return bool(self.logs_url)


@dataclass(frozen=True, slots=True)
class RecordsSettings:
    """Which events are published."""

    scope: Scope = option(
        kinds.Choice(get_args(Scope)),
        "own",
        "own: record events that affect this VM; all: also neighbours' events.",
    )


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """The outbox file. `max_bytes` is its maximum size."""

    path: str = option(
        kinds.Text(check=kinds.local_path, path=True, word="FILE"),
        outbox_path(),
        "File for the state and undelivered records.",
    )
    max_bytes: int = option(
        kinds.Size(1 << 20, 1 << 40),
        100 << 20,
        "Maximum size of that file. When it is full, old records are dropped, delivered ones first.",
    )


@dataclass(frozen=True, slots=True)
class EventFilesSettings:
    """Files for local software, one for each event of this VM."""

    path: str = option(
        kinds.Text("a folder, or nothing", kinds.folder_path, optional=True, path=True, word="FOLDER"),
        "",
        "Existing directory for event files and status.json, for local software. Empty: off.",
    )


@dataclass(frozen=True, slots=True)
class GateSettings:
    """When `/-/gate` returns 503. `lead` is in seconds."""

    lead: float = option(
        kinds.Duration(0, 86400),
        LEAD_SECONDS,
        "How long before NotBefore /-/gate starts to return 503. It returns 200 again when the event is over.",
    )
    event_types: tuple[str, ...] = option(
        kinds.Words(KNOWN_TYPES),
        EVENT_TYPES,
        "Types of this VM's events that close the gate; a list in the file. Empty: always open.",
    )

    @property
    def policy(self) -> GatePolicy:
        """These settings as the core uses them."""
        return GatePolicy(self.lead, self.event_types)


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The scrape endpoint."""

    listen_address: str = option(
        kinds.Text(check=kinds.listen_address, word="ADDRESS"), "0.0.0.0:10169", "Address to serve /metrics on."
    )
    config_file: str = option(
        kinds.Text(optional=True, path=True, word="FILE"),
        "",
        "TLS and basic auth, in exporter-toolkit's web-config format.",
        flag="web.config.file",
    )
    dashboard_url: str = option(
        kinds.Text(check=kinds.dashboard_url, optional=True),
        "",
        "Dashboard that the page links to; {vm_name} and {resource_group} are replaced by this VM's.",
    )

    @property
    def address(self) -> tuple[str, int]:
        """Host ("" for all addresses) and port (0 for a free one)."""
        return split_address(self.listen_address)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The agent's own log, on standard error."""

    level: LogLevel = option(kinds.Choice(get_args(LogLevel)), "info", "debug, info, warn, or error.")
    format: LogFormat = option(kinds.Choice(get_args(LogFormat)), "logfmt", "logfmt or json.")


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """A bounded recording of the raw documents, for `replay`. At most `files` files of `max_bytes` each."""

    path: str = option(_FILE, "", "File to record raw documents to, for replay. Empty: off.")
    max_bytes: int = option(kinds.Size(1 << 16, 1 << 40), 10 << 20, "Size at which the recording starts a new file.")
    files: int = option(kinds.Integer(1, 100), 3, "Number of recording files to keep, including the newest.")


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the agent. `Settings()` has the defaults; `load` returns validated ones."""

    source: SourceSettings = SourceSettings()
    approval: ApprovalSettings = ApprovalSettings()
    event_hubs: EventHubsSettings = EventHubsSettings()
    otlp: OtlpSettings = OtlpSettings()
    records: RecordsSettings = RecordsSettings()
    outbox: OutboxSettings = OutboxSettings()
    event_files: EventFilesSettings = EventFilesSettings()
    gate: GateSettings = GateSettings()
    web: WebSettings = WebSettings()
    log: LogSettings = LogSettings()
    recording: RecordingSettings = RecordingSettings()
    config_file: str = ""
    warnings: tuple[str, ...] = ()
    approval_given: bool = field(default=False, compare=False)
    """Whether file, environment, or flags set anything in `[approval]`, even to its default."""

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """All secrets in these settings, for the log to redact."""
        hubs = self.event_hubs
        parts = (hubs.connection.key, hubs.connection.signature) if hubs.connection else ()
        headers = [secret for _, value in self.otlp.headers for secret in header_secrets(value.reveal())]
        return tuple(secret for secret in (hubs.connection_string, *parts, *headers) if secret)


SECTIONS: Final[dict[str, type]] = {
    section.name: type(section.default) for section in fields(Settings) if is_dataclass(section.default)
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One entry of the catalogue, common to the flag, environment variable, and TOML key."""

    section: str
    key: str
    kind: kinds.SettingType
    default: Any
    help: str
    secret: bool
    flag: str

    @property
    def name(self) -> str:
        """Name as `section.key`."""
        return f"{self.section}.{self.key}"

    @property
    def env(self) -> str:
        """The environment variable."""
        return f"{ENV_PREFIX}{self.section}_{self.key}".upper()


def catalogue() -> Iterator[Setting]:
    """Yield all settings except the rules, in the order of the sections and fields above."""
    for section, cls in SECTIONS.items():
        for entry in fields(cls):
            if "kind" not in entry.metadata:
                continue
            meta = entry.metadata
            flag = "--" + (meta["flag"] or f"{section}.{entry.name}".replace("_", "-"))
            yield Setting(section, entry.name, meta["kind"], entry.default, meta["help"], meta["secret"], flag)


def settings_of(section: str) -> dict[str, Setting]:
    """Return the settings of a section, by key."""
    return {setting.key: setting for setting in catalogue() if setting.section == section}
