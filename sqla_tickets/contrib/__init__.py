"""Extensions for other libraries: Prometheus and OpenTelemetry."""
