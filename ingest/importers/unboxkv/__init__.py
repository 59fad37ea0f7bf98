"""The importer of what the UnBoxKV-IO tool recorded: KV patterns, CSVs of utilisation and steps, logs."""
