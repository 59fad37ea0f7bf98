"""From captures and other sources to one DuckDB file."""

if __name__ != "kvtrace.ingest":
    raise ImportError("import kvtrace.ingest, not ingest: this folder is a part of the kvtrace package")
