"""How results look on a terminal: each function shows one kind of result as tables. Numbers are written by `cost_model.units`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cost_model import placement as planner
from cost_model.head_state import RECURRENT_KINDS
from cost_model.options import predicted_option
from cost_model.units import format_bytes, format_count, format_interval_us, format_percent, format_us
from wts_lab.cli_output import print_table
from wts_lab.series_names import series_names, series_order

if TYPE_CHECKING:
    from cost_model.decide import Decision
    from cost_model.fit import SeriesKey, StepFit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.placement import Placement
    from cost_model.predict import Prediction
    from cost_model.residuals import ModeErrors
    from wts_lab.comparison import Comparison
    from wts_lab.environment import Finding
    from wts_lab.outputs import Written
    from wts_lab.study import StudyResult


def show_prediction(gpu: Gpu, prediction: Prediction) -> None:
    """Show a prediction for a GPU: totals with intervals and floors, the terms of entry and step, the placement and what weakens the answer."""
    path = " ".join(word for word in (prediction.mode, prediction.precision, prediction.implementation, prediction.variant) if word)
    steps, call = prediction.workload.steps, predicted_option(prediction, prediction.workload)
    print_table(
        f"{prediction.head.name} on {prediction.gpu_id}: {path}, batch {prediction.workload.batch}, {prediction.workload.l2_state} L2",
        ("", "predicted", "95 % interval", "floor"),
        [
            ("entry", format_us(prediction.entry_us), format_interval_us(prediction.entry_us_low, prediction.entry_us_high),
             format_us(prediction.floor_entry_us)),
            ("step", format_us(prediction.step_us), format_interval_us(prediction.step_us_low, prediction.step_us_high),
             format_us(prediction.floor_step_us)),
            (f"call of {steps} steps", format_us(call.call_us), format_interval_us(*call.interval_us),
             format_us(prediction.floor_entry_us + steps * prediction.floor_step_us)),
        ],
    )
    print_table(
        "Where the time goes", ("term", "adds", "hidden", "bound by"),
        [(f"{part}: {name.replace('_', ' ')}", format_us(term.exposed_us), format_us(term.hidden_us), term.resource)
         for part, terms in prediction.terms.items() for name, term in terms.items()],
    )
    if prediction.placement:
        wanted = {"grid_blocks": prediction.grid_blocks, **planner.built_for(prediction.workload)}
        show_placements("Placement", [placement_row(prediction.placement, gpu, prediction.head, prediction.precision, wanted)])
    for note in prediction.notes:
        typer.echo(f"Note: {note}.")


def placement_row(placement: Placement, gpu: Gpu, head: Head, precision: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return a placement's counts with what its kernel takes of registers and shared memory.

    Args:
        head: the shape as the kernel sees it; `wanted`: the planner's arguments, see `walk_plan.planner_request`.

    `state_rows` and `projector_rows` are those of a recurrent head's matrices that a block keeps, of `state_rows_owned` and
    `projector_rows_owned`; None where the head has no such matrix.
    """
    kernel = planner.kernel_beside(placement, gpu, head, precision, **wanted)
    claim = planner.registers_claim(placement, head.rank, precision, kernel)
    owned = planner.state_placement(head, wanted["grid_blocks"])
    states = (kernel.state_rows, owned[0]) if head.kind in RECURRENT_KINDS else (None, None)
    projector = (kernel.projector_rows, owned[1]) if head.kind == "domino" else (None, None)
    return {
        **placement.as_dict(), "registers_per_thread": claim.registers_per_thread, "spills": claim.spills,
        "shared_bytes": planner.shared_bytes(placement, head.rank, precision, kernel), "kernel_rows": kernel.rows, "wide_words": kernel.wide(placement),
        "state_rows": states[0], "state_rows_owned": states[1], "projector_rows": projector[0], "projector_rows_owned": projector[1],
    }


def show_placements(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Show placements of one head, one a row, with their predicted step where rows have one; of a recurrent head also how many rows of its own
    matrices a block keeps. Where registers may spill it says so."""
    timed = ("predicted step",) if "step_us" in rows[0] else ()
    kept = [name for name in ("state_rows", "projector_rows") if rows[0][name] is not None]
    print_table(
        title,
        ("warps", "tiles: registers", "shared", "streamed", "staging", "resident", "registers a thread", "shared memory", *timed,
         *(f"{name.replace('_', ' ')} kept" for name in kept)),
        [(row["warps"], row["register_tiles"], row["shared_tiles"], row["streamed_tiles"], row["staging_tiles"],
          format_percent(row["residency"]), f"{row['registers_per_thread']}{', may spill' * row['spills']}", format_bytes(row["shared_bytes"]),
          *("n/a" if row["step_us"] is None else format_us(row["step_us"]) for _ in timed),
          *(f"{row[name]} of {row[f'{name}_owned']}" for name in kept)) for row in rows],
    )


def show_fits(fits: Sequence[tuple[SeriesKey, StepFit]]) -> None:
    """Show every series with its fitted step and entry, smallest vocabulary first; a series without a fit says why."""
    named = [(name, key, fit) for name, (key, fit) in zip(series_names([key for key, _ in fits]), fits)]
    named.sort(key=lambda one: (series_order(one[1]), one[0]))
    print_table(
        "Fitted cost of each recorded series, batch 1 unless said",
        ("way", "vocabulary", "rank", "L2", "step", "95 % interval", "repeats\nwithin", "entry", "status"),
        [(name, format_count(key.vocab_size), key.rank, key.l2_state, format_us(fit.step_us),
          format_interval_us(fit.step_us_low, fit.step_us_high), format_us(fit.repeatability_us), format_us(fit.entry_us), fit.status)
         for name, key, fit in named],
    )
    for name, key, fit in named:
        if fit.reason:
            typer.echo(f"Note: {name}, V {format_count(key.vocab_size)}, rank {key.rank}, {key.l2_state} L2: {fit.reason}.")


def write_fits(fits: Sequence[tuple[SeriesKey, StepFit]], folder: Path) -> list[Path]:
    """Write fitted series as `step_costs.csv`, `.parquet` and `.md` and return the paths."""
    from cost_model import tables

    rows = tables.step_cost_rows(fits)
    writers = {".csv": tables.write_csv, ".parquet": tables.write_parquet, ".md": tables.write_markdown}
    return [write(rows, folder / f"step_costs{suffix}") for suffix, write in writers.items()]


def show_study(result: StudyResult, written: Written) -> None:
    """Show where the numbers come from, one table a head in the L2 state that its verdict uses, the verdicts and the files."""
    typer.echo(f"\n{result.gpu.name}: {result.source}\n")
    for head in result.heads:
        state = shown_state(result, head)
        print_table(
            f"{_kind(head)}vocabulary {head.vocab_size:,}, rank {head.rank}, {', '.join(result.request.load)}, {state} L2",
            ("way", "step\nmeasured", "95 % interval", "step\npredicted", "95 % interval", "entry\nmeasured", f"call of\n{result.request.longest} steps"),
            [_way_row(each, result.request.longest) for each in result.shown(head, state)],
        )
        show_decision(result.decisions[head])
    for note in result.notes:
        typer.echo(f"Note: {note}.")
    typer.echo("\nWritten:")
    for path in written:
        typer.echo(f"  {path}")
    for line in written.left_out:
        typer.echo(f"Note: {line}")


def _kind(head: Head) -> str:
    """Kind of a head that is no Markov head, to stand before its sizes."""
    return "" if head.kind == "markov" else f"{head.kind} head, "


def shown_state(result: StudyResult, head: object) -> str:
    """Return the L2 state to show: serving where it was studied, since verdicts use that one."""
    from wts_lab.study_answer import VERDICT_L2_STATES

    states = [each.l2_state for each in result.comparisons if (each.vocab_size, each.rank) == (head.vocab_size, head.rank)]
    return next((state for state in VERDICT_L2_STATES if state in states), VERDICT_L2_STATES[0])


def _way_row(way: Comparison, steps: int) -> tuple[str, ...]:
    """One row of the study's table; the call is the predicted one where nothing was measured."""
    fit = way.fit if way.fit is not None and way.fit.usable else None
    call_us = fit.call_us(steps) if fit else way.prediction.call_us(steps) if way.prediction else None
    return (
        way.label,
        format_us(fit.step_us) if fit else "-",
        format_interval_us(fit.step_us_low, fit.step_us_high) if fit else "-",
        format_us(way.prediction.step_us) if way.prediction else "-",
        format_interval_us(way.prediction.step_us_low, way.prediction.step_us_high) if way.prediction else "-",
        format_us(fit.entry_us) if fit else "-",
        format_us(call_us),
    )


def show_decision(decision: Decision) -> None:
    """Show a verdict and its reasons."""
    typer.echo(f"Verdict: {decision.verdict}")
    for reason in decision.reasons:
        typer.echo(f"  - {reason}")
    typer.echo("")


def show_options(decision: Decision, title: str) -> None:
    """Show everything that a verdict compared, fastest call first, then the verdict."""
    print_table(
        title, ("option", "call", "95 % interval", "step", "entry", "kind"),
        [(each.name, format_us(each.call_us), format_interval_us(each.call_us_low, each.call_us_high), format_us(each.step_us),
          format_us(each.entry_us), "measured" if each.measured else "predicted") for each in decision.options],
    )
    show_decision(decision)


def study_facts(result: StudyResult, written: Written) -> dict[str, Any]:
    """Return what `study --json` prints: source, verdicts with reasons, table rows and files."""
    return {
        "kind": result.kind, "source": result.source, "gpu_id": result.gpu.id,
        "decisions": {head.name: decision for head, decision in result.decisions.items()},
        "rows": result.rows, "notes": result.notes, "files": [str(path) for path in written], "left_out": written.left_out,
        "record": str(result.record) if result.record else None,
    }


def show_parameters(gpu: Gpu) -> None:
    """Show the parameters and residual coefficients that a calibration fixed, with their standard errors."""
    from cost_model.gpu import CALIBRATED_PARAMETERS
    from cost_model.parameters import ENTRY_ERROR, MODEL_ERROR, RESIDUALS, class_error
    from cost_model.walk_class import WALK_CLASSES

    errors = [class_error(name, one) for name in (MODEL_ERROR, ENTRY_ERROR) for one in WALK_CLASSES]
    names = (*CALIBRATED_PARAMETERS, *RESIDUALS, *errors)
    known = [(name, gpu.figure(name)) for name in names if gpu.has(name)]
    print_table(
        f"Parameters of {gpu.name}", ("parameter", "value", "standard error", "unit", "kind"),
        [(name, f"{figure.value:.5g}", "n/a" if figure.standard_error is None else f"{figure.standard_error:.2g}", figure.unit, figure.kind)
         for name, figure in known],
    )


def show_model_errors(rows: Sequence[ModeErrors]) -> None:
    """Show how far the calibrated model is from the recorded walks; nothing where there are none."""
    if rows:
        print_table(
            "Predicted against measured", ("mode", "precision", "series", "step median", "step worst", "in interval", "entry median", "entry worst"),
            [(each.mode, each.precision, str(each.series), format_percent(each.step_median_share), format_percent(each.step_worst_share),
              format_percent(each.inside_share), format_percent(each.entry_median_share), format_percent(each.entry_worst_share)) for each in rows],
            text_columns=2,
        )


def show_findings(findings: Sequence[Finding]) -> None:
    """Show what the doctor looked at; faults with their mend and what needs them. What may be missing is no fault."""
    states = ["ok" if each.ok else "FAULT" if each.fault else "absent" for each in findings]
    print_table("This machine", ("check", "", "found"), [(each.name, state, each.detail) for each, state in zip(findings, states)], text_columns=3)
    faults = [each for each in findings if each.fault]
    for each in faults:
        typer.echo(f"{each.name} (needed for {each.needed_for}): {each.mend}")
    typer.echo("Nothing that measuring needs is missing." if not faults else f"{len(faults)} of {len(findings)} checks found a fault.")
