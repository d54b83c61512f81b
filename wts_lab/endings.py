"""How the lab's programs end: the exit status, and in one line why. The command line and the benchmarks have it from here.

Exit status: 0 done; 1 the doctor found a fault, or a build or a measurement failed; 2 the input cannot be used (`BadInput`);
130 interrupted. A fault of the program itself has no ending: its traceback is what a report of it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cost_model.errors import BadInput

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

OWN_PACKAGES = ("cost_model", "wts_lab", "benchmarks")
"""A RuntimeError of a class defined here was raised on purpose, and its message is for the user."""

INTERRUPTIONS = ("MeasurementInterrupted", "SweepInterrupted", "BuildCancelled")
"""Those that say that the user stopped the work, by name, since their modules are slow to import."""


@dataclass(frozen=True)
class Ending:
    """Exit status, and what to tell on standard error."""

    status: int
    told: str


def ending_of(error: BaseException, kept: str = "nothing was written", out: Path | None = None) -> Ending | None:
    """How a program ends that this error has stopped; None where it is to be raised further: a fault of the program, or a reader of
    the output that has left.

    Args:
        kept: after an interrupt, what is kept and how to go on.
        out: where the program writes, named where the system refuses a write without saying to which file.
    """
    if isinstance(error, BadInput):
        return Ending(EXIT_BAD_INPUT, error_line(str(error)))
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return Ending(EXIT_BAD_INPUT, error_line(_refused(error, out)))
    if isinstance(error, KeyboardInterrupt):
        return Ending(EXIT_INTERRUPTED, f"interrupted: {kept}")
    if not isinstance(error, RuntimeError) or type(error).__module__.split(".")[0] not in OWN_PACKAGES:
        return None
    if type(error).__name__ in INTERRUPTIONS:
        return Ending(EXIT_INTERRUPTED, f"interrupted: {error}")
    return Ending(EXIT_FAILED, f"error: {error}")


def error_line(message: str) -> str:
    """What is wrong, as one line whatever the message holds."""
    return f"error: {' '.join(message.split())}"


def _refused(error: OSError, out: Path | None) -> str:
    """Say what the system refused. Writing into an open file (a full disk, say) raises an error that names no file."""
    place = error.filename or out or "a file of this command"
    reason = error.strerror or str(error) or type(error).__name__
    return f"{place}: {reason}; check that the path is right, may be used, and has room"
