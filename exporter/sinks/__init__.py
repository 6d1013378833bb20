"""The outputs, one package each: `prometheus`, `otlp`, and `event_hubs`; the last two share `reasons`.

They may import `config`, `core`, `http`, `errors`, and lower layers, and never each other. A destination's package is
imported only if it is configured. Begin reading in the `sink.py` of a package.

A *destination* (Event Hubs, OTLP) has this interface, which `agent/delivery.py` declares as a protocol:

    name: str                        the metric label, "event_hubs" or "otlp"
    batch_size: int                  maximum records in the next `send`
    subjects: int | None             maximum subjects in the next `send`; None: any number, in the outbox's order
    send(records) -> None            returns only when the backend has acknowledged every record; raises
                                     `errors.Retryable` or `errors.Permanent`, with the `acknowledged` ids, or
                                     `errors.PartlyRejected`: none of the records may be sent again
    idle() -> float | None           called if there is nothing to send; returns the seconds until the next call is
                                     due, None: not before the next `send`
    close() -> None                  returns within 2 s, even if the backend doesn't respond

`Permanent` for a batch of more than one record means one of them: delivery splits the batch until a single record is
rejected. A repeated failure of a single record for one of `agent.delivery.REJECTED_IF_REPEATED` is a rejection too.
"""
