"""Tables about selection across blocks: words, orders of events, needs of the memory, records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.units import format_count, format_interval_us, format_percent, format_us
from wts_lab.schemes import ROWS_A_BLOCK
from wts_lab.memory_order import exchange_accesses, exchange_needs
from wts_lab.words import LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas

    from cost_model.fit import StepFit
    from wts_lab.schemes import Checked
    from wts_lab.exchange_records import StressStudy
    from wts_lab.weak_memory import Event


def words_table() -> pandas.DataFrame:
    """Fields of both kinds of words, and after how many epochs the epoch field comes round."""
    import pandas

    rows = [(one.bits, one.value_bits, one.row_bits, one.epoch_bits, one.epochs, one.in_unit) for one in LAYOUTS]
    titles = ["bits", "value", "inverted row", "epoch", "epochs until it comes round", "words read together"]
    return pandas.DataFrame(rows, columns=titles, index=[one.name for one in LAYOUTS]).rename_axis("word")


def checked_table(checked: Iterable[Checked]) -> pandas.io.formats.style.Styler:
    """Schemes, how many exchanges were run, and whether any ended with a wrong winner."""
    import pandas

    rows = [(each.scheme.name, each.scheme.about, format_count(each.exchanges), "goes wrong" if each.wrong else "never wrong") for each in checked]
    return _wrapped(pandas.DataFrame(rows, columns=["scheme", "what it is", "exchanges", "found"]).set_index("scheme"))


def fault_table(fault: tuple[tuple[int, int], Sequence[Event]]) -> pandas.DataFrame:
    """Events of an order in which the scheme of one maximum and one count goes wrong, one a row; values of keys as value and row."""
    import pandas

    _, events = fault
    rows = [(event.thread, _deed(event), _value(event), "stale" if event.newer else "") for event in events]
    frame = pandas.DataFrame(rows, columns=["block", "what it does", "value", ""], index=range(1, len(rows) + 1))
    return frame.rename_axis("event")


def _deed(event: Event) -> str:
    place = event.access.place[0] if isinstance(event.access.place, tuple) else event.access.place
    verb = "reads" if event.access.write is None else "raises" if callable(event.access.write) else "writes"
    return f"{verb} the {place}"


def _value(event: Event) -> str:
    if not isinstance(event.value, tuple):
        return str(event.value)
    _, value, row = event.value
    return f"{value} of row {-row} (block {-row // ROWS_A_BLOCK})"


def needs_table() -> pandas.io.formats.style.Styler:
    """What the exchange needs, who gives it, and why that is enough; long cells wrap."""
    import pandas

    rows = [(need.what, need.given_by, need.why) for need in exchange_needs()]
    return _wrapped(pandas.DataFrame(rows, columns=["the exchange needs that", "given by", "why"]).set_index("the exchange needs that"))


def accesses_table() -> pandas.DataFrame:
    """The instructions for words in the kernel's source."""
    import pandas

    rows = [(each.instruction, "load" if each.is_load else "store", f"{each.elements} × {each.element_bits} bits") for each in exchange_accesses()]
    return pandas.DataFrame(rows, columns=["instruction", "kind", "elements"], index=[each.function for each in exchange_accesses()]).rename_axis("function")


def steps_table(steps: Iterable[tuple[str, int, StepFit]]) -> pandas.DataFrame:
    """Step of complete walks by exchange and batch, as fitted."""
    import pandas

    rows = [(exchange, batch, format_us(fit.step_us), format_interval_us(fit.step_us_low, fit.step_us_high)) for exchange, batch, fit in steps]
    return pandas.DataFrame(rows, columns=["exchange", "batch", "step, measured", "95 % interval"]).sort_values(["batch", "exchange"]).set_index(["exchange", "batch"])


def stress_table(study: StressStudy) -> pandas.io.formats.style.Styler:
    """A row for each kind of exchange that was stressed; one row that says so where none was."""
    import pandas

    rows = [
        (each.exchange, 64 if each.wide else 32, each.rows, each.grid_blocks, format_count(each.exchanges), format_percent(each.matching_share), format_us(each.round_us))
        for each in study.rows
    ] or [(study.source, *[""] * 6)]
    titles = ["words on", "bits of a word", "batch rows", "blocks", "exchanges", "right winners", "a round, with delays"]
    return _wrapped(pandas.DataFrame(rows, columns=titles)).hide(axis="index")  # several rows share a place; styles need an index that tells them apart


def _wrapped(frame: pandas.DataFrame) -> pandas.io.formats.style.Styler:
    """A table whose long cells break into lines; the frame itself is the styler's `data`."""
    return frame.style.set_properties(**{"text-align": "left", "white-space": "normal", "max-width": "44em", "vertical-align": "top"})
