"""Ingest: makes one DuckDB file of recordings and other sources."""

if __name__ != "kvtrace.ingest":
    raise ImportError("import kvtrace.ingest, not ingest: this folder is a part of the kvtrace package")
