"""`wts-lab` and `python -m wts_lab`: the command line of `wts_lab.cli`, from its first import on."""

import sys

from wts_lab.endings import EXIT_INTERRUPTED


def main() -> None:
    """Run the command line and leave with its exit status."""
    try:
        from wts_lab.cli import main as run

        run()
    except KeyboardInterrupt:  # while modules are still being imported
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
