"""The outputs, one room each: `prometheus`, `otlp` and `event_hubs`, and `reasons`, the words that the last two share.

They may import `config`, `core`, `http`, `errors` and below, and never each other; a destination's room is imported
only when it is configured. Begin reading in the `sink.py` of a room.

A *destination* (Event Hubs, OTLP) has this shape, which `agent/delivery.py` declares as a protocol of its own:

    name: str                        the metric label, "event_hubs" or "otlp"
    batch_size: int                  how many records it takes in one `send` at the moment
    subjects: int | None             of how many subjects they may be at the moment; None for any, in the outbox's order
    send(records) -> None            returns only when the backend has acknowledged every record; raises
                                     `errors.Retryable` or `errors.Permanent`, with the ids of what is `acknowledged`,
                                     or `errors.PartlyRejected`: nothing of it may be sent again
    idle() -> float | None           called when there is nothing to send; answers in how many seconds it
                                     wants to be called again, None for not before the next `send`
    close() -> None                  within 2 s, whatever the backend does

`Permanent` out of a batch of more than one is taken as "one of them": delivery then sends them in halves, until one is
refused alone. A failure of one record alone for one of `agent.delivery.REFUSED_IF_REPEATED` is a refusal too, if it
repeats.
"""
