"""Event Hubs: the destination that delivers records, and the consumer that reads them for `tail`.

May import `core`, the failure types, and the settings' schema; the only package that imports Azure's SDK. Begin with
`sink.EventHubsDestination`: `address` makes the clients, `messages` the messages, and `errors` interprets failures.
"""
