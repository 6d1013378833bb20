"""The client of Azure's metadata service: it reads the document and the VM's identity, and sends approvals.

It may import `http`, `errors`, and `core`, and decides nothing about events. Start reading with
`client.MetadataClient.fetch`; `errors` lists every way in which a request can fail.
"""
