"""Event Hubs: the destination that delivers records to it, and the consumer with which `tail` reads them back.

It may import the core, the failure types and the settings' schema; Azure's SDK is imported here and nowhere else.
Begin with `sink.EventHubsDestination`: `address` knows where, `messages` what, and `errors` what a refusal means.
"""
