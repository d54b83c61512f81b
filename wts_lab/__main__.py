"""`python -m wts_lab` is the command line of `wts_lab.cli`."""

import sys

if __name__ == "__main__":
    try:
        from wts_lab.cli import main

        main()
    except KeyboardInterrupt:  # while modules are still being imported
        sys.exit(130)
