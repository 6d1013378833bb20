"""The client of Azure's metadata service: the document of events, approvals, and who this VM is.

It imports `http`, `errors`, `retry` and `core.records` alone, and decides nothing about events. Begin with
`client.MetadataClient.fetch`; `errors` lists every way in which the service can fail us.
"""
