"""The OTLP destination: each record as one OpenTelemetry log record over OTLP/HTTP.

The only package that imports OpenTelemetry's SDK and protobuf; imported only if OTLP is configured. Begin with
`sink.OtlpDestination.send`; `answers` interprets a collector's response.
"""
