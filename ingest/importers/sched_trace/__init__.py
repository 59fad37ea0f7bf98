"""The importer of scheduler traces."""
