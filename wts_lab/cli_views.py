"""How results look on a terminal: each function shows one kind of result as tables. Numbers are written by `cost_model.units`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from cost_model import placement as planner
from cost_model.units import format_bytes, format_interval_us, format_percent, format_us
from wts_lab.cli_output import print_table

if TYPE_CHECKING:
    from cost_model.placement import Placement
    from cost_model.predict import Prediction


def show_prediction(prediction: Prediction) -> None:
    """Show totals with intervals and floors, the terms of entry and step, the placement and what weakens the answer."""
    path = " ".join(word for word in (prediction.mode, prediction.precision, prediction.implementation, prediction.variant) if word)
    steps = prediction.workload.steps
    print_table(
        f"{prediction.head.name} on {prediction.gpu_id}: {path}, batch {prediction.workload.batch}, {prediction.workload.l2_state} L2",
        ("", "predicted", "95 % interval", "floor"),
        [
            ("entry", format_us(prediction.entry_us), format_interval_us(prediction.entry_us_low, prediction.entry_us_high),
             format_us(prediction.floor_entry_us)),
            ("step", format_us(prediction.step_us), format_interval_us(prediction.step_us_low, prediction.step_us_high),
             format_us(prediction.floor_step_us)),
            (f"call of {steps} steps", format_us(prediction.call_us()), "", ""),
        ],
    )
    print_table(
        "Where the time goes", ("term", "adds", "hidden", "bound by"),
        [(f"{part}: {name.replace('_', ' ')}", format_us(term.exposed_us), format_us(term.hidden_us), term.resource)
         for part, terms in prediction.terms.items() for name, term in terms.items()],
    )
    if prediction.placement:
        show_placements("Placement", [placement_row(prediction.placement, prediction.head.rank, prediction.precision)])
    for note in prediction.notes:
        typer.echo(f"Note: {note}.")


def placement_row(placement: Placement, rank: int, precision: str) -> dict:
    """Return a placement's counts with what it asks of registers and shared memory."""
    claim = planner.registers_claim(placement, rank, precision)
    return {
        **placement.as_dict(), "registers_per_thread": claim.registers_per_thread, "spills": claim.spills,
        "shared_bytes": planner.shared_bytes(placement, rank, precision),
    }


def show_placements(title: str, rows: Sequence[dict]) -> None:
    """Show placements, one a row."""
    print_table(
        title, ("warps", "tiles: registers", "shared", "streamed", "staging", "resident", "registers a thread", "shared memory"),
        [(row["warps"], row["register_tiles"], row["shared_tiles"], row["streamed_tiles"], row["staging_tiles"],
          format_percent(row["residency"]), row["registers_per_thread"], format_bytes(row["shared_bytes"])) for row in rows],
    )
