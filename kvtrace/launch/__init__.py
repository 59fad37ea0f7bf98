"""`kvtrace record`: checks the command, runs it under a run directory, and reports what was recorded."""
