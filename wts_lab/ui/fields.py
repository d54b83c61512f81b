"""Fields of requests: label, unit, range and help of each, written once as metadata, and the checks that follow from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from cost_model.errors import BadInput
from cost_model.files import why_unreadable, write_text_whole


class RequestError(BadInput):
    """A field holds something that cannot be asked for: names the field, what was given, what is allowed, what to do."""

    def __init__(self, name: str, given: object, allowed: str, mend: str) -> None:
        self.field_name = name
        super().__init__(f"{name}: {given!r} is not possible; allowed: {allowed}. {mend}")


@dataclass(frozen=True)
class FieldSpec:
    """How a field is shown and limited: the only place where a control's label, unit, help and range are written.

    Attributes:
        min, max: least and greatest value of a number.
        step: what a whole number must be a multiple of; of a fraction only how far an arrow key moves it.
        whole: whether the number is a whole one.
        slider: whether the control is a slider rather than a box.
        form: what a free text may be, in words; check: raises RequestError where it is something else.
    """

    name: str
    label: str
    help: str
    unit: str = ""
    choices: tuple[str, ...] | None = None
    min: float | None = None
    max: float | None = None
    step: float = 1
    whole: bool = True
    slider: bool = False
    form: str = ""
    check: Callable[[str], object] | None = None

    @property
    def caption(self) -> str:
        """Label with its unit in brackets, as a control shows it."""
        return f"{self.label} [{self.unit}]" if self.unit else self.label

    @property
    def allowed(self) -> str:
        """The allowed values in words, for messages and help."""
        if self.choices is not None:
            return ", ".join(self.choices)
        if self.min is None:
            return self.form
        kind = f"multiples of {self.step}" if self.whole and self.step > 1 else "whole numbers" if self.whole else "numbers"
        return f"{kind} from {self.min} to {self.max}"


def spec(default: object, **about: Any) -> Any:
    """A dataclass field whose metadata is the text and range of its control."""
    return field(default=default, metadata=about)


class Request:
    """What all requests share: checks from the field metadata, changed copies, and the way to text and back."""

    def __post_init__(self) -> None:
        for name, spec in describe(type(self)).items():
            _check_field(spec, getattr(self, name))

    def to_json(self) -> str:
        """This request as a JSON object, keys in field order."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The request that `to_json` wrote.  Raises RequestError for unknown keys, other types or values out of range."""
        return cls.from_values(values_of_json(text))

    @classmethod
    def from_values(cls, values: object) -> Self:
        """The request of plain values, as JSON gives them."""
        if not isinstance(values, dict):
            raise RequestError("request", values, "a JSON object", "Save a panel's request and edit that.")
        known = [each.name for each in fields(cls)]
        for name in values:
            if name not in known:
                raise RequestError("request", name, f"the fields {', '.join(known)}", "Remove the unknown field.")
        return cls(**values)

    def save(self, path: Path | str) -> Path:
        """Write this request to a file, whole or not at all."""
        return write_text_whole(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """The request in a file.  Raises RequestError where it cannot be read or is none."""
        return cls.from_values(read_values(path))


def values_of_json(text: str) -> object:
    """The plain values of a JSON text.  Raises RequestError where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError("request", text[:40], "a JSON object", f"The text is not JSON: {error}.") from None


def read_values(path: Path | str) -> object:
    """The plain values of a file that a panel saved.  Raises RequestError where it cannot be read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("path", str(path), "a file that a panel saved", f"It cannot be read: {why_unreadable(error)}.") from None
    return values_of_json(text)


def describe(request_type: type) -> dict[str, FieldSpec]:
    """Field name to FieldSpec, in field order; choices that live in data files are looked up now."""
    return {each.name: _field_spec(each.name, each.metadata) for each in fields(request_type) if each.metadata}


def _field_spec(name: str, about: Mapping[str, Any]) -> FieldSpec:
    choices: tuple[str, ...] | Callable[[], tuple[str, ...]] | None = about.get("choices")
    return FieldSpec(name=name, **{**about, "choices": choices() if callable(choices) else choices})


def _check_field(spec: FieldSpec, value: object) -> None:
    """Raise RequestError unless `value` is one of the choices, a number in range and of the right multiple, or a good text."""
    if spec.choices is not None:
        if value not in spec.choices:
            raise RequestError(spec.name, value, spec.allowed, "Choose one of these.")
        return
    if spec.min is None:
        if not isinstance(value, str):
            raise RequestError(spec.name, value, spec.form, "Give a text.")
        if spec.check is not None:
            spec.check(value)
        return
    if isinstance(value, bool) or not isinstance(value, int if spec.whole else (int, float)) or not math.isfinite(value):
        raise RequestError(spec.name, value, spec.allowed, "Give a whole number." if spec.whole else "Give a number.")
    if not spec.min <= value <= spec.max or spec.whole and value % spec.step:
        near = round(value / spec.step) * spec.step if spec.whole else value
        raise RequestError(spec.name, value, spec.allowed, f"The nearest possible value is {min(max(near, spec.min), spec.max)}.")
