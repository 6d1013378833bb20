"""The OTLP destination: each record as one OpenTelemetry log record over OTLP/HTTP, and the truth about its delivery.

The room of OpenTelemetry's SDK and of protobuf, on top of `http`; imported only when OTLP is configured. Begin with
`sink.OtlpDestination.send`; `attributes` says what a record looks like, `answers` what a collector's answer means.
"""
