"""Measured numbers as people write them: `9000`, or `9000:8500:9600` with the ends of the 95 % interval."""

from __future__ import annotations

from cost_model.errors import BadInput

FORM = "VALUE, or VALUE:LOW:HIGH with the ends of its 95 % interval"


def number_from(name: str, word: str) -> float:
    """Read one number.  Raises BadInput, which names the option or field."""
    try:
        return float(word)
    except ValueError:
        raise BadInput(f"{name} has {word!r}; it must be a number") from None


def measured_from(name: str, text: str) -> tuple[float, tuple[float, float] | None]:
    """Read VALUE or VALUE:LOW:HIGH: a number and its interval, None where it has none.  Raises BadInput, which names the option or field."""
    words = text.split(":")
    if len(words) not in (1, 3):
        raise BadInput(f"{name} is {text!r}; give a number, or VALUE:LOW:HIGH, for example 9000:8500:9600")
    value, *ends = (number_from(name, word) for word in words)
    if ends and not ends[0] <= value <= ends[1]:
        raise BadInput(f"{name} is {text!r}; {value:g} must lie between {ends[0]:g} and {ends[1]:g}")
    return value, (ends[0], ends[1]) if ends else None
