"""Tables of operand paths: instructions, what they offer to a head on some GPUs, tiers with their sources, and published rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_model.operand_paths import TIER_FACTS, load_instructions, operand_paths
from cost_model.published import load_microbenchmarks
from cost_model.units import UNKNOWN, format_bytes, format_percent
from cost_model.workload import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas

    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.operand_paths import OperandPath
    from wts_lab.kernel_builds import KernelBuilds

NOT_THERE = "not there"
RATES = "tensor_path"
"""The group of published micro-measurements that compares instructions."""


def instructions_table() -> pandas.io.formats.style.Styler:
    """Where each instruction reads its operands and keeps its sums, on which compute capabilities, and by which source; long cells wrap."""
    import pandas

    rows = [
        (
            one.name, one.issued_by, " or ".join(one.a), " or ".join(one.a_copied_from), " or ".join(one.b), one.sums,
            *(", ".join(one.capabilities[precision]) for precision in PRECISIONS), one.note, one.source,
        )
        for one in load_instructions()
    ]  # fmt: skip
    titles = ["instruction", "issued by", "A (the matrix) from", "A copied from", "B (latents) from", "sums in", "in bf16 on", "in int8 on", "note", "source"]
    return _wrapped(pandas.DataFrame(rows, columns=titles).set_index("instruction"))


def tiers_table(gpu: Gpu) -> pandas.io.formats.style.Styler:
    """The tiers of one multiprocessor and of the whole chip, each with the kind and the source of its size; long cells wrap."""
    import pandas

    rows = []
    for tier, fact in TIER_FACTS.items():
        figure = gpu.figure(fact)
        rows.append((tier, format_bytes(figure.value), format_bytes(figure.value * gpu.sm_count), figure.kind, figure.source))
    return _wrapped(pandas.DataFrame(rows, columns=["tier", "a multiprocessor", "whole chip", "kind", "source"]).set_index("tier"))


def _wrapped(frame: pandas.DataFrame) -> pandas.io.formats.style.Styler:
    """A table whose long cells break into lines; the frame itself is the styler's `data`."""
    return frame.style.set_properties(**{"text-align": "left", "white-space": "normal", "max-width": "24em", "vertical-align": "top"})


def paths_table(gpus: Iterable[Gpu], head: Head, *, absent: bool = True) -> pandas.DataFrame:
    """What each instruction offers: room where A is read from, and how much of the matrix could stay there, alone and with copies.

    Room is an upper end: all else that a kernel keeps comes off it. `absent` tells whether instructions that a GPU lacks are listed.
    """
    import pandas

    rows = []
    for gpu in gpus:
        paths = operand_paths(gpu, head)
        for one in load_instructions():
            own = {path.precision: path for path in paths if path.instruction == one}
            room = max(path.direct_bytes for path in own.values())
            if not room and not absent:
                continue
            rows.append((gpu.id, one.name, " + ".join(one.a) if room else NOT_THERE, format_bytes(room) if room else UNKNOWN, *(_shares(own[precision]) for precision in PRECISIONS)))
    titles = ["GPU", "instruction", "the matrix stays in", "room", *(f"{precision}, V {head.vocab_size:,}" for precision in PRECISIONS)]
    return pandas.DataFrame(rows, columns=titles).set_index(titles[:2])


def _shares(path: OperandPath) -> str:
    """How much of a matrix can stay, and how much with tiers that are copied from in each step."""
    if not path.exists:
        return NOT_THERE
    direct, copied = format_percent(path.direct_share), format_percent(path.copied_share)
    return direct if direct == copied else f"{direct}, with copies {copied}"


def builds_table(builds: KernelBuilds) -> pandas.DataFrame:
    """Kernels by batch rows: bytes that a multiprocessor keeps in registers and in shared memory, what streams, and what the compiler reports."""
    import pandas

    rows = [
        (
            each.rows, *(format_bytes(count * builds.tile_bytes) for count in (each.placement.register_tiles, each.placement.shared_tiles, each.placement.streamed_tiles)),
            UNKNOWN if each.registers_per_thread is None else each.registers_per_thread, format_bytes(each.spill_bytes),
        )
        for each in builds.builds
    ]  # fmt: skip
    titles = ["batch rows", "kept in registers", "kept in shared memory", "streamed", "registers a thread", "spilled"]
    return pandas.DataFrame(rows, columns=titles).set_index("batch rows")


def rates_table() -> pandas.DataFrame:
    """Published rates and latencies of the instructions, as others measured them."""
    import pandas

    rows = [
        (figure["metric"], figure["device"], f"{figure['value']:g}" if "value" in figure else f"{figure['low']:g} to {figure['high']:g}", figure["unit"], figure.get("note", ""))
        for figure in load_microbenchmarks()
        if figure["group"] == RATES
    ]
    return pandas.DataFrame(rows, columns=["what", "device", "value", "unit", "note"]).set_index(["what", "device"])
