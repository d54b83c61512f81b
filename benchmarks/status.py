"""How the benchmark commands end: 0 done, 1 measuring failed, 2 the request cannot be used, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps

from cost_model.errors import BadInput
from wts_lab.bench_run import MeasurementInterrupted
from wts_lab.sweep import SweepInterrupted

FAILED, BAD_REQUEST, INTERRUPTED = 1, 2, 130

Main = Callable[[Sequence[str] | None], int]


def ending_with_status(main: Main) -> Main:
    """A command's main function whose errors are told on standard error, in their own words, and become its exit status."""

    @wraps(main)
    def run(arguments: Sequence[str] | None = None) -> int:
        try:
            return main(arguments)
        except (BadInput, OSError) as error:
            status, told = BAD_REQUEST, str(error)
        except (MeasurementInterrupted, SweepInterrupted) as error:
            status, told = INTERRUPTED, str(error)
        except KeyboardInterrupt:
            status, told = INTERRUPTED, "interrupted"
        except RuntimeError as error:
            status, told = FAILED, str(error)
        print(told, file=sys.stderr)
        return status

    return run
