"""The importer of what the UnBoxKV-IO tool recorded: KV read and write patterns, CSVs of utilisation and steps, logs."""
