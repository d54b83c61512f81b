"""How a measured stepwise call, taken apart, looks on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cost_model.units import format_percent, format_us
from wts_lab.cli_output import print_table

if TYPE_CHECKING:
    from cost_model.gain import HeadSplit


def show_split(split: HeadSplit, steps: int) -> None:
    """Show the parts of a measured call, which sum to it, and what a CUDA graph would still save."""
    parts = (
        ("launches", split.launch_us), (f"byte floor: W2 read {steps} times at the best rate", split.byte_floor_us), ("selection", split.selection_us),
        ("projection beyond the floor", split.projection_excess_us), ("all", split.total_us),
    )  # fmt: skip
    print_table(
        f"Where the measured {format_us(split.total_us)} go", ("part", "time", "share"),
        [(name, format_us(time_us), format_percent(time_us / split.total_us)) for name, time_us in parts],
    )
    saving = split.launch_saving_us
    typer.echo(f"Replaying it as a CUDA graph saves {format_us(saving)}." if saving else "It is replayed as a CUDA graph, so there is no launch saving left.")
