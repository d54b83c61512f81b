"""`python -m wts_lab` is the command line of `wts_lab.cli`."""

from wts_lab.cli import main

if __name__ == "__main__":
    main()
