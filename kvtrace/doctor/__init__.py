"""`kvtrace doctor` without the command line: what a recording here would hold, and what it would lack."""
