"""The client of Azure's metadata service: it reads the document and the identity of this VM, and sends approvals.

It may import `http`, `errors`, `retry` and `core.records`, and decides nothing about events. Begin with
`client.MetadataClient.fetch`; `errors` lists every way in which a request can fail.
"""
