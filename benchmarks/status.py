"""How the benchmark commands end: as `wts_lab.endings` has it for every program of the lab."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import wraps

from wts_lab.endings import EXIT_FAILED, ending_of

Main = Callable[[Sequence[str] | None], int]


def ending_with_status(main: Main) -> Main:
    """A command's main function whose errors are told on standard error, in their own words, and become its exit status.

    Where the reader of the output has left (a pipe to `head`, say) it ends as quietly, with the status of a failure.
    """

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        try:
            status = main(arguments)
            sys.stdout.flush()
            return status
        except BrokenPipeError:
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # Python flushes it once more as it ends
            return EXIT_FAILED
        except (Exception, KeyboardInterrupt) as error:
            ending = ending_of(error, "what is told as recorded is kept")
            if ending is None:
                raise
        print(ending.told, file=sys.stderr)
        return ending.status

    return run
