"""The command `kvtrace`, and `python -m kvtrace` for environments whose scripts are not on the path."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is imported ends it as later: without a traceback."""
    try:
        from kvtrace.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
