"""A trace in the formats of other tools: Perfetto, Parquet, CSV, OpenTelemetry."""
