"""Extensions for other libraries: `prometheus` and `opentelemetry`."""
