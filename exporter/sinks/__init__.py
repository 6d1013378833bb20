"""The outputs, one backend each. Each is imported only when it is configured.

A *destination* (Event Hubs, OTLP) has this shape, which `delivery.py` declares as a protocol of its own:

    name: str                        the metric label, "event_hubs" or "otlp"
    batch_size: int                  how many records of one subject it takes in one `send`
    send(records) -> None            returns only when the backend has acknowledged every record;
                                     raises `failures.Retryable` or `failures.Permanent`
    idle() -> None                   called about once a second while there is nothing to send
    close() -> None                  within 2 s, whatever the backend does

`Permanent` out of a batch of more than one is taken as "one of them": delivery then sends them one by one.
"""
