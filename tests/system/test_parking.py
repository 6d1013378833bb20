"""An agent with a collector that rejects one record: it is parked, and sent again when the cause is fixed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from exporter.simulator.metadata import scenario
from exporter.simulator.metadata.service import MetadataService
from tests.support.otlp_receiver import Action, Receiver, Reply, success, uid
from tests.support.running import Run


def test_a_parked_record_is_sent_again_by_a_command(tmp_path: Path) -> None:
    """The first record is rejected, all others arrive; `requeue` during the run delivers it, and the gauges and the
    status follow."""
    refused: list[str] = []
    refuses = [True]

    def taste(sent: list[str]) -> tuple[Action, set[str]]:
        if not refused:
            refused.append(sent[0])
        if refuses and refused[0] in sent:
            return Reply(400, {"Content-Type": "text/html"}, b"<html>"), set(sent)
        return success(), set()

    with (
        MetadataService(scenario.load("user-reboot"), speed=20) as service,
        Receiver(taste=taste) as collector,
        Run(
            service.url,
            tmp_path,
            "--otlp.timeout=4s",
            f"--otlp.endpoint=http://127.0.0.1:{collector.port}",
        ) as run,
    ):
        run.wait_for(lambda: run.metric("destination_records_parked", destination="otlp") == 1)
        assert refused[0] not in {uid(log) for log in collector.logs}
        assert collector.logs, "another record was accepted"
        refuses.clear()
        command = [sys.executable, "-m", "exporter", "requeue", "--outbox", str(tmp_path / "outbox.db")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout == "requeued 1 record: otlp 1\n"
        run.wait_for(lambda: refused[0] in {uid(log) for log in collector.logs})
        run.wait_for(lambda: run.metric("destination_records_parked", destination="otlp") == 0)
        run.wait_for(lambda: run.metric("outbox_records", destination="otlp") == 0)
        assert run.stop() == 0
