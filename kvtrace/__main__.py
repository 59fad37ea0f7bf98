"""`python -m kvtrace`, for environments whose scripts are not on the path."""

from kvtrace.cli.main import main

main()
