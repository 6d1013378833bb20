"""The faults of the broker (`simulator.faults`): each strikes once at its moment, unless it is written with a count.

`drop-before-store`, `rejected:com.microsoft:server-busy*3` and `silent*always` are faults. The moments are: `connect`
(a TCP connection was accepted), `cbs` (a put-token), `attach` (a link to an event hub), `management` (a request on
$management) and `send` (a complete transfer to an event hub, be it one event or a batch).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from exporter.simulator.faults import Kind

KINDS: Final[Mapping[str, Kind]] = {
    "silent": Kind("accepts the connection, reads, never sends anything", where="connect", times=1),
    "cbs-refused": Kind("put-token is answered with 401", where="cbs", times=1),
    "cbs-silent": Kind("put-token is never answered", where="cbs", times=1),
    "attach-refused": Kind("detaches the link with the condition", condition="amqp:not-found", where="attach", times=1),
    "management-silent": Kind("the request is never answered", where="management", times=1),
    "drop-before-store": Kind("connection reset, nothing stored", where="send", times=1),
    "drop-after-store": Kind("stored, connection reset: the acknowledgement is lost", where="send", times=1),
    "no-disposition": Kind("stored, never acknowledged, connection stays up", where="send", times=1),
    "released": Kind("not stored", where="send", times=1),
    "modified": Kind("not stored", where="send", times=1),
    "rejected": Kind("not stored, for the condition", condition="com.microsoft:server-busy", where="send", times=1),
    "detach": Kind("not stored, link detached", condition="com.microsoft:server-busy", where="send", times=1),
    "accept": Kind("no fault: one send succeeds", where="send", times=1),
}
