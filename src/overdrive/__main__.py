"""`overdrive`, and `python -m overdrive`: the command line, whose imports an interrupt may end as well as its work."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point."""
    try:
        from overdrive.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
