"""Responses on `$cbs` (AMQP Claims-based Security) and `$management` (AMQP Management), in the format of Event Hubs."""

from __future__ import annotations

from typing import Any

from exporter.simulator.event_hubs.amqp import Array, Described, Int, Symbol, Timestamp, ULong, encode
from exporter.simulator.event_hubs.store import Hub, Message, Partition, Store, milliseconds

_ACCEPTED, _BAD_REQUEST, _UNAUTHORIZED, _NOT_FOUND, _OK = 202, 400, 401, 404, 200


def answer_token(request: Message, *, refuse: bool) -> tuple[bool, bytes]:
    """Whether a put-token was accepted, and the reply. Any token is accepted: the broker has no keys."""
    properties = request.application_properties
    if properties.get("operation") != "put-token" or not isinstance(request.value, str | bytes):
        return False, _reply(request, _BAD_REQUEST, "expected a put-token", None)
    if refuse:
        return False, _reply(request, _UNAUTHORIZED, "InvalidSignature: The token has an invalid signature.", None)
    return True, _reply(request, _ACCEPTED, "Accepted", None)


def answer_management(request: Message, store: Store, *, authorised: bool) -> bytes:
    """The reply to a READ of `com.microsoft:eventhub` or `com.microsoft:partition`.

    A client that has put no token on `$cbs` (`authorised`) must send one with the request: Azure's SDK for Java does.
    """
    properties = request.application_properties
    token = properties.get("security_token")
    if not authorised and not (isinstance(token, str | bytes) and token):
        return _reply(request, _UNAUTHORIZED, "Unauthorized access. No token was put on $cbs or sent with this.", None)
    name, kind = properties.get("name"), properties.get("type")
    if properties.get("operation") != "READ" or kind not in ("com.microsoft:eventhub", "com.microsoft:partition"):
        return _reply(request, _BAD_REQUEST, "expected READ of an event hub or a partition", None)
    hub = store.hubs.get(name) if isinstance(name, str) else None
    if hub is None:
        return _reply(request, _NOT_FOUND, "The messaging entity could not be found.", None)
    if kind == "com.microsoft:eventhub":
        return _reply(request, _OK, "OK", _describe_hub(hub))
    partition = hub.partitions.get(str(properties.get("partition")))
    if partition is None:
        return _reply(request, _NOT_FOUND, "The partition could not be found.", None)
    return _reply(request, _OK, "OK", _describe_partition(hub, partition))


def _describe_hub(hub: Hub) -> dict[str, Any]:
    return {
        "name": hub.name,
        "type": "com.microsoft:eventhub",
        "created_at": Timestamp(milliseconds(hub.created_at)),
        "partition_count": Int(len(hub.partitions)),
        "partition_ids": Array(hub.partitions),
        "georeplication_factor": Int(1),
    }


def _describe_partition(hub: Hub, partition: Partition) -> dict[str, Any]:
    last = partition.messages[-1] if partition.messages else None
    return {
        "name": hub.name,
        "type": "com.microsoft:partition",
        "partition": partition.id,
        "begin_sequence_number": partition.first_sequence,
        "last_enqueued_sequence_number": partition.next_sequence - 1,
        "last_enqueued_offset": last.offset if last else "-1",
        "last_enqueued_time_utc": Timestamp(milliseconds(last.enqueued_time if last else hub.created_at)),
        "is_partition_empty": last is None,
    }


def _reply(request: Message, status: int, description: str, body: dict[str, Any] | None) -> bytes:
    properties: list[Any] = [None] * 13
    properties[5] = request.property_at(0)  # correlation-id repeats message-id
    outcome = {"status-code": Int(status), "status-description": description}
    if status >= _BAD_REQUEST:
        outcome["error-condition"] = Symbol(_CONDITIONS[status])
    sections = (Described(ULong(0x73), properties), Described(ULong(0x74), outcome), Described(ULong(0x77), body))
    return b"".join(map(encode, sections))


_CONDITIONS = {
    _BAD_REQUEST: "com.microsoft:argument-error",
    _UNAUTHORIZED: "amqp:unauthorized-access",
    _NOT_FOUND: "amqp:not-found",
}
