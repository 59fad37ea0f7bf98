"""Adapters, a file each: what kvtrace knows of a kind of connector. See docs/add-a-connector.md."""
