"""The canned queries over an exported trace: one file's worth in DuckDB, more than that on Spark."""
