"""The composition root: creates the components of `run`, and starts and stops their threads.

    agent            the poll loop (`Agent.tick`), while the main thread waits for it to end (`commands/run.py`)
    approval         one per POST in flight
    files            checks the hold file and the files that rules require, if configured
    web              the HTTP server, with its own asyncio loop
    identity         reads the identity of this VM from the metadata service
    observer         measures interruptions of this VM
    event_hubs, otlp one delivery each, if configured; imports the destination's library
    recorder         writes the recording, if configured
    event_files      writes the event files, if configured
    (log)            writes the log; started by the first log line (`exporter/log/writer.py`)

This module starts all of them except `agent` and `(log)`. No module below it reads environment variables.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from exporter import __version__
from exporter.agent.boot import boot_id
from exporter.agent.delivery import STOP_SECONDS, DeliveryThread
from exporter.agent.destinations import destination_factories
from exporter.agent.files import FileChecker
from exporter.agent.identity import Identity
from exporter.agent.loop import Agent
from exporter.agent.observer import Observer
from exporter.agent.ports import AgentOptions, Environment
from exporter.agent.systemd import Notifier
from exporter.config.load import policy_values
from exporter.config.schema import Settings
from exporter.core.lifecycle import EVENT_MEMORY_BYTES
from exporter.core.snapshot import STARTING, Status, gate_of
from exporter.core.state import Instant
from exporter.daemon import DaemonCall
from exporter.errors import Failure
from exporter.event_files.folder import Folder
from exporter.event_files.writer import EventFiles
from exporter.log.log import Log
from exporter.metadata.client import MetadataClient
from exporter.metadata.errors import REASONS
from exporter.outbox.store import Outbox
from exporter.page.status import STATUS_CONTENT_TYPE, STATUS_HEADERS, status_body, status_value
from exporter.page.view import PAGE_CONTENT_TYPE, PAGE_HEADERS, render_page
from exporter.recorder.recorder import Recorder
from exporter.sinks.prometheus.sink import PrometheusSink
from exporter.text.terminal import is_journal
from exporter.web.config import WebConfig
from exporter.web.responses import GATE, NO_STORE, STATUS, Accept, WebResponse
from exporter.web.server import WebServer
from exporter.windows.places import NO_SHARE, is_on_network

IDENTITY_PATIENCE_SECONDS: Final = 2.0
MAX_WAIT_SECONDS: Final = 5.0
HEALTHY_SECONDS: Final = 30.0
"""Maximum age of the poll loop's last sign of progress. Waiting for the metadata service counts as progress."""
FLUSH_SECONDS: Final = 1.0
GATE_PATIENCE_SECONDS: Final = 1.0
"""Maximum time after the start for which the gate waits for the first pass. Well below the timeout of any prober."""
PLAIN: Final = "text/plain; charset=utf-8"


def system_clock() -> Instant:
    """Read the wall clock and the monotonic clock of the system."""
    return Instant(datetime.now(UTC), time.monotonic())


def spawn(task: Callable[[], None], patience: float) -> None:
    """Run `task` on a separate thread. Block until it is done, at most for `patience` seconds."""
    wait([DaemonCall(task, "approval")], patience)


def with_recorder(environment: Environment, recorder: Recorder) -> Environment:
    """Return the environment with `recorder` attached to everything that a recording contains."""
    return replace(
        environment,
        record_interruption=recorder.interrupted,
        record_document=recorder.keep,
        record_failure=recorder.failed,
        record_files=recorder.record_file_checks,
        record_outbox=recorder.stored,
        record_post_sent=recorder.sent,
        record_post_answer=recorder.posted,
    )


class App:
    """The agent with its outbox, web server, deliveries, and other threads.

    Call `start`, then `run`. `stop` may be called from any thread.
    """

    def __init__(
        self,
        settings: Settings,
        log: Log,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], Instant] = system_clock,
        gate_patience: float = GATE_PATIENCE_SECONDS,
    ) -> None:
        """Create the components.

        Raises `WebConfigError` for an invalid web-config file, and `OwnerError` if event files can't get their owner.
        """
        self._settings = settings
        self._log = log
        self._clock = clock
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._first_pass_done = threading.Event()
        self._gate_waits_until = time.monotonic() + gate_patience
        self._notifier = Notifier(environ)
        self._last_progress = time.monotonic()
        self.sink = PrometheusSink(
            __version__,
            tuple(rule.name for rule in settings.approval.rules),
            destinations=tuple(destination_factories(settings)),
            poll_failure_reasons=REASONS,
        )
        self._web_config = WebConfig(Path(settings.web.config_file), log) if settings.web.config_file else None
        if self._web_config is not None:
            config = self._web_config
            self.sink.certificate_not_after = lambda: config.certificate_not_after
            self.sink.config_reload_failures = lambda: config.reload_failures
        self.web = WebServer(settings.web.listen_address, self, web_config=self._web_config, log=log)
        self._agent: Agent | None = None
        source = settings.source
        self._client = MetadataClient(source.url, source.api_version, waiting=self._while_polling)
        self._identity_client = MetadataClient(source.url, source.api_version, tags=source.tags)
        self._identity = Identity(
            self._identity_client, log, vm_name=source.vm_name, node=source.node_name, tags=source.tags
        )
        self._observer = Observer(log)
        self._deliveries: list[DeliveryThread] = []
        self._recorder: Recorder | None = None
        self._event_files: EventFiles | None = None
        if settings.event_files.path:
            folder, rules = Folder(settings.event_files.path), settings.approval.rules
            self._event_files = EventFiles(folder, rules, version=__version__, log=log, now=lambda: clock().wall)

    @property
    def status(self) -> Status:
        """The current status of the agent; call `start` first."""
        assert self._agent is not None, "start comes first"  # noqa: S101  # only a bug calls it before
        return self._agent.status

    def start(self) -> None:
        """Open the outbox, bind the port, then start the threads.

        Raises OSError or `OutboxBusy`, with a message for the user.
        """
        settings = self._settings
        makers = destination_factories(settings)
        path = os.path.realpath(settings.outbox.path)  # two paths of one file are one outbox with one lock
        if sys.platform == "win32" and is_on_network(path):
            raise OSError(f"outbox.path: {settings.outbox.path} is on the share {path}: {NO_SHARE}; use a local drive")
        self._outbox = Outbox(path, settings.outbox.max_bytes, tuple(makers))
        try:
            self.web.start()
        except OSError:
            self._outbox.close()
            raise
        self._identity.start()
        self._observer.start()
        if self._event_files is not None:
            self._event_files.start()
        self._agent = self._make_agent()
        with suppress(Failure):
            # The two-minute timeout is for the VM's first response ever, not for the first one of each process. If the
            # clock was set back, the age of the last response is unknown and counts as 0: two minutes without a poll
            # cost more than an aborted poll. This is the only use of a state that may belong to another VM.
            stored = self._outbox.load()
            if stored is not None and stored.last_good is not None:
                self._client.answered_before(self._clock().since(stored.last_good) or 0.0)
        for name, make in makers.items():
            delivery = DeliveryThread(name, make, self._outbox, self.sink, self._log)
            self._deliveries.append(delivery)
            delivery.start()
        host, port = self.web.address
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._log.info("agent.listening", address=address, mode=settings.approval.mode, destinations=",".join(makers))

    def _make_agent(self) -> Agent:
        settings = self._settings
        options = AgentOptions(
            policy=settings.approval.policy,
            poll_interval=settings.source.poll_interval,
            all_events=settings.records.scope == "all",
            version=__version__,
            boot_id=boot_id(),
            # In a small outbox, closed events take at most a quarter of the space.
            event_memory_bytes=min(EVENT_MEMORY_BYTES, settings.outbox.max_bytes // 4),
        )
        environment = Environment(
            clock=self._clock,
            identity=self._identity.current,
            check_files=FileChecker(),
            interruptions=self._observer.take,
            stopping=self._stopping.is_set,
            notify_deliveries=self._notify_deliveries,
            spawn=spawn,
            wake=self._wake.set,
            publish_status=self._status_published,
        )
        if (event_files := self._event_files) is not None:
            environment = replace(environment, event_files=lambda: event_files.state)
        if settings.recording.path:
            recorder = self._recorder = Recorder(
                settings.recording.path,
                settings.recording.max_bytes,
                settings.recording.files,
                log=self._log,
                identity=self._identity.current,
                poll_interval=options.poll_interval,
            )
            recorder.began(self._clock().wall, __version__, options.boot_id, policy_values(options.policy))
            environment = with_recorder(environment, recorder)
        return Agent(options, self._client, self._outbox, self.sink, log=self._log, environment=environment)

    def _status_published(self, status: Status) -> None:
        self._observer.expect(status.may_hold_own_event)
        self.web.pages.renew()
        if self._event_files is not None:
            self._event_files.publish(status)

    def _while_polling(self) -> None:
        self._last_progress = time.monotonic()
        if self._agent is not None:
            self._agent.while_polling()

    def _notify_deliveries(self) -> None:
        for delivery in self._deliveries:
            delivery.wake()

    def run(self) -> int:
        """Run the poll loop until `stop`, then save the state and stop the threads. Return the exit code, 0.

        A disk that hangs can block the end.
        """
        assert self._agent is not None, "start comes first"  # noqa: S101  # only a bug calls it before
        self._notifier.ready(f"serving on {self.web.address[1]}")
        self._notifier.watch(self._is_healthy, self._stopping)
        self._identity.wait(IDENTITY_PATIENCE_SECONDS)
        while not self._stopping.is_set():
            self._last_progress = time.monotonic()
            try:
                wait = self._agent.tick()
            except Exception as error:  # one of the two loops that catch every error: log it and continue
                self._log.error("agent.unexpected_error", error=f"{type(error).__name__}: {error}")
                wait = self._settings.source.poll_interval
            self._first_pass_done.set()
            self._notifier.alive()
            self._wake.wait(min(wait, MAX_WAIT_SECONDS))
            self._wake.clear()
        self._end()
        return 0

    def _is_healthy(self) -> bool:
        return time.monotonic() - self._last_progress < HEALTHY_SECONDS

    def stop(self) -> None:
        """End `run` and abort a request in flight. May be called from any thread."""
        self._stopping.set()
        self._wake.set()
        self._notifier.stopping()
        self._identity.abort()
        self._client.abort()

    def _end(self) -> None:
        assert self._agent is not None, "start comes first"  # noqa: S101  # only a bug calls it before
        self._agent.stop()
        if self._recorder is not None:
            self._recorder.ended(self._clock().wall)
        deadline = time.monotonic() + FLUSH_SECONDS
        for delivery in self._deliveries:
            delivery.flush(max(0.0, deadline - time.monotonic()))
        ends: list[Callable[[], None]] = [delivery.stop for delivery in self._deliveries]
        ends += [self._identity.stop, self._observer.stop, self.web.stop]
        if self._recorder is not None:
            ends.append(self._recorder.close)
        if self._event_files is not None:
            ends.append(self._event_files.stop)
        for ended in wait([DaemonCall(end, "end") for end in ends], STOP_SECONDS).done:
            if (error := ended.exception()) is not None:
                self._log.error("agent.unexpected_error", error=f"{type(error).__name__}: {error}")
        self._outbox.close()
        self._client.close()
        self._identity_client.close()

    # -- HTTP responses

    def respond(self, path: str, accept: Accept) -> WebResponse:
        """Return the response for `path`, one of the paths of the web server. Only the gate can block, for its wait."""
        if path == "/metrics":
            return WebResponse(200, *self.sink.render(accept == "openmetrics"))
        if path == "/-/healthy":
            return _text(200, "Healthy") if self._is_healthy() else _text(503, "The poll loop is stuck")
        if path == "/-/ready":
            ready = self._agent is not None and self._agent.status.fresh(self._clock())
            return _text(200, "Ready") if ready else _text(503, "No recent document")
        if path == GATE:
            return self._gate()
        if self._agent is None:
            return _text(503, "Starting")
        status, now = self._agent.status, self._clock()
        policy, gate = policy_values(self._settings.approval.policy), gate_of(status, now, self._settings.gate.policy)
        dashboard_url = self._settings.web.dashboard_url
        value = status_value(status, now, __version__, policy=policy, gate=gate, dashboard_url=dashboard_url)
        if path == STATUS:
            return WebResponse(200, STATUS_CONTENT_TYPE, status_body(value), STATUS_HEADERS)
        return WebResponse(200, PAGE_CONTENT_TYPE, render_page(value), PAGE_HEADERS)

    def _gate(self) -> WebResponse:
        """Return the gate's response, computed from the status in memory without waiting for a poll.

        Shortly after its start, the agent waits for the first pass of the loop. Otherwise an agent that restarts during
        an event would report an open gate until that pass, which is long enough for two probes of a load balancer.
        """
        self._first_pass_done.wait(max(0.0, self._gate_waits_until - time.monotonic()))
        agent = self._agent
        gate = STARTING if agent is None else gate_of(agent.status, self._clock(), self._settings.gate.policy)
        return _text(200 if gate.open else 503, gate.sentence, (NO_STORE,))


def _text(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> WebResponse:
    return WebResponse(status, PLAIN, f"{text}\n".encode(), headers)


def make_log(settings: Settings) -> Log:
    """Return the agent's log: on standard error, without the configured secrets, with priorities if it's a journal."""
    level, format, journal = settings.log.level, settings.log.format, is_journal(sys.stderr)
    return Log(sys.stderr, level=level, format=format, hide=settings.secrets, priorities=journal)
