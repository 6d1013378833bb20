"""The settings file that `service install` writes where there is none: a hold file is set, all else is a comment."""

from __future__ import annotations

import ntpath
from typing import Final

from exporter.windows.places import EVENTS_FOLDER, HOLD_FOLDER, OUTBOX_FILE, READY_FOLDER, SECRETS_FOLDER

_TEMPLATE: Final = """\
# Settings of azure-scheduled-events-exporter, read when the service starts: after a change, `service stop` and
# `service start`. What is not set here has its default; `check --config.file` and this file's path tells all errors.
# Paths stand in 'single quotes': in "double" ones TOML takes \\ for an escape. A relative path is of this folder.

[approval]
# mode = "dry-run"                 # off | dry-run | enforce: only enforce ever approves
hold_file = '{hold}'  # while it is there, nothing is approved

# [otlp]
# endpoint = "http://collector.example:4318"

# [event_hubs]                     # the connection string in a file that only administrators and the service can read
# connection_string_file = '{secret}'
# event_hub = "scheduled-events"

# [web]
# listen_address = "0.0.0.0:10169"

{outbox}
# [log]
# level = "info"                   # debug | info | warn | error

# [event_files]                    # a file for each event of this VM, for local software that is let into the folder
# path = '{events}'

# A rule that waits until local software is ready, which then makes the file in {ready}:
# [[approval.rules]]
# name = "prepared"
# event_source = ["Platform"]
# event_type = ["Reboot", "Redeploy"]
# require_file = '{require}'
"""


def config_template(folder: str, *, usual: bool) -> str:
    """The text of the file for a service with this folder; one whose folder is not the usual has its outbox in it."""
    path = ntpath.join(folder, OUTBOX_FILE)
    mark = "# " if usual else ""
    ready = ntpath.join(folder, READY_FOLDER)
    return _TEMPLATE.format(
        hold=ntpath.join(folder, HOLD_FOLDER, "hold"),
        secret=ntpath.join(folder, SECRETS_FOLDER, "event-hubs"),
        outbox=f"{mark}[outbox]\n{mark}path = '{path}'\n",
        events=ntpath.join(folder, EVENTS_FOLDER),
        ready=ready,
        require=ntpath.join(ready, "{event_id}"),
    )
