"""The importer of Nsight Systems exports (SQLite)."""
