"""The OTLP destination: each record as one OpenTelemetry log record over OTLP/HTTP.

The room of OpenTelemetry's SDK and of protobuf, on top of `http`; imported only when OTLP is configured. Begin with
`sink.OtlpDestination.send`; `answers` is what a collector's answer means.
"""
