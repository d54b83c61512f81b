"""The command line: `wts-lab`, also `python -m wts_lab`.

A command turns options into the values that the packages take (`cli_inputs`), calls one function, and shows what it returns
(`cli_output`, `cli_views`). Packages that are slow to import are imported by the commands that need them: `predict` answers
within a second of process start.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cost_model.gpu import load_gpu
from wts_lab import __version__, cli_views
from wts_lab.cli_inputs import (
    BatchOption, GpuOption, HeadOption, JsonOption, L2StateOption, ModeOption, PlacementOption, PrecisionOption, RankOption,
    RoundingOption, StepsOption, TargetVocabOption, TemperatureOption, VocabOption, head_from, placement_from, workload_from,
)
from wts_lab.cli_output import print_json, user_errors

app = typer.Typer(
    name="wts-lab", no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="What would fusing a draft head's walk give on your GPU, and what would keeping its weights on chip add?",
)


def main() -> None:
    """Run the command line and leave with its exit status."""
    app(prog_name="wts-lab")


def _show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"wts-lab {__version__}")
        raise typer.Exit


@app.callback()
def _options(version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False) -> None:
    """Options that stand before the command."""


@app.command()
def predict(
    gpu: GpuOption,
    head: HeadOption = None,
    vocab: VocabOption = None,
    rank: RankOption = None,
    target_vocab: TargetVocabOption = None,
    mode: ModeOption = "resident",
    implementation: Annotated[
        str | None, typer.Option("--implementation", help="Whose kernels run a stepwise walk. [default: sglang-0.5.23]")
    ] = None,
    precision: PrecisionOption = None,
    batch: BatchOption = 1,
    steps: StepsOption = 16,
    temperature: TemperatureOption = 0.0,
    rounding: RoundingOption = "once",
    l2_state: L2StateOption = "warm",
    placement: PlacementOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict entry and step cost of a walk, term by term, with intervals and the physical floor."""
    from cost_model.predict import predict as predict_walk

    with user_errors():
        workload = workload_from(mode, precision, batch, steps, temperature, rounding, l2_state)
        prediction = predict_walk(
            load_gpu(gpu), head_from(head, vocab, rank, target_vocab), workload, mode, implementation, placement_from(placement)
        )
        if as_json:
            print_json(prediction)
        else:
            cli_views.show_prediction(prediction)


@app.command()
def plan(
    gpu: GpuOption,
    head: HeadOption = None,
    vocab: VocabOption = None,
    rank: RankOption = None,
    target_vocab: TargetVocabOption = None,
    mode: ModeOption = "resident",
    precision: PrecisionOption = None,
    warps: Annotated[int, typer.Option("--warps", help="Warps of a block.")] = 8,
    blocks: Annotated[int | None, typer.Option("--blocks", help="Blocks of the grid; one a multiprocessor if left out.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List every placement that fits.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Plan where the tiles of W2 lie in a block: registers, shared memory, or streamed."""
    from cost_model import placement as planner

    with user_errors():
        chip, shape, words = load_gpu(gpu), head_from(head, vocab, rank, target_vocab), precision or "int8x2"
        best = planner.plan(chip, shape, words, mode, grid_blocks=blocks, warps=warps)
        chosen = [best]
        if every:
            others = planner.enumerate_placements(chip, shape, words, mode, grid_blocks=blocks, warps=warps)
            chosen += [placement for placement in others if placement != best]
        rows = [cli_views.placement_row(placement, shape.rank, words) for placement in chosen]
        if as_json:
            grid = chip.sm_count if blocks is None else blocks
            print_json({"gpu_id": chip.id, "head": shape, "mode": mode, "precision": words, "grid_blocks": grid,
                        "placement": rows[0], **({"others": rows[1:]} if every else {})})
        else:
            cli_views.show_placements(f"{shape.name} on {chip.name}, {mode}, {words}", rows)
