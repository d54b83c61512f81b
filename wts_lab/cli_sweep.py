"""The command `sweep`: time a grid of walks over all GPUs of this machine, or of a cluster, into one record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost_model.errors import BadInput
from cost_model.workload import require_whole
from wts_lab.cli_inputs import (
    STANDARD_STEPS, STUDIED_VOCABULARY, BatchesOption, CaseOption, HeadsOption, JsonOption, KindOption, L2StatesOption, ModesOption, PrecisionsOption,
    ProcessesOption, RecordsFolderOption, RepeatsOption, SglangRootOption, StepsListOption, TemperaturesOption, VocabsOption, WalksRoundingOption,
    heads_from, whole_from, wholes_from, words_from,
)
from wts_lab.cli_measure import Asked, as_kind
from wts_lab.cli_output import print_json, say, user_errors
from wts_lab.measured_text import number_from

if TYPE_CHECKING:
    from wts_lab.bench_plan import WalkCase


def sweep(
    head: HeadsOption = None,
    vocab: VocabsOption = None,
    rank: Annotated[str | None, typer.Option("--rank", help="Elements of the latent, several numbers separated by commas.")] = None,
    kind: KindOption = None,
    mode: ModesOption = "resident",
    precision: PrecisionsOption = None,
    batch: BatchesOption = "1",
    temperature: TemperaturesOption = "0",
    logits: Annotated[bool, typer.Option("--logits", help="Keep the step logits of sampled walks, as a sampling round needs them.")] = False,
    rounding: WalksRoundingOption = None,
    sglang_root: SglangRootOption = None,
    steps: StepsListOption = STANDARD_STEPS,
    l2_state: L2StatesOption = "warm,serving",
    processes: ProcessesOption = 3,
    repeats: RepeatsOption = 60,
    gpus: Annotated[str, typer.Option("--gpus", help="Numbers of the GPUs to use, separated by commas; all of this machine if left out.")] = "",
    scheduler: Annotated[str | None, typer.Option("--scheduler", help="Address of a Dask scheduler, whose workers measure, one a GPU.")] = None,
    groups_per_job: Annotated[int, typer.Option("--groups-per-job", help="Groups that a worker takes at a time.")] = 8,
    without_failed: Annotated[bool, typer.Option("--without-failed", help="Write the record without jobs that failed.")] = False,
    out: RecordsFolderOption = Path("runs"),
    case: CaseOption = "sweep",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be timed; needs no GPU.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Time a grid of walks over every GPU of this machine, or over a cluster, into one record; resumable."""
    from wts_lab.bench_run import check_run

    with user_errors("finished jobs are kept; give the same command again to go on", out):
        asked = Asked(
            tuple(words_from([mode])), None if precision is None else tuple(words_from([precision])), rounding, False, None, None, sglang_root is not None
        )
        ranks = [None] if rank is None else [whole_from("--rank", word) for word in words_from([rank])]
        heads = [as_kind(each, kind) for size in ranks for each in heads_from(head, vocab, size, (STUDIED_VOCABULARY,))]
        batches = [whole_from("--batch", word) for word in words_from([batch])]
        temperatures = [number_from("--temperature", word) for word in words_from([temperature])]
        cases = grid_cases(asked, heads, batches, temperatures, logits)
        lengths, states = wholes_from("--steps", steps), tuple(words_from([l2_state]))
        require_whole("--groups-per-job", groups_per_job, 1, None)
        check_run(cases, lengths, states, processes=processes, repeats=repeats, out=out, case_name=case)
        if dry_run:
            _show(cases, len(lengths) * len(states), groups_per_job, as_json)
            return
        from wts_lab.sweep import GPU_WORKER, run_sweep
        from wts_lab.sweep_pools import open_pool

        with open_pool(scheduler, words_from([gpus])) as pool:
            path = run_sweep(
                cases, pool, GPU_WORKER, steps=lengths, l2_states=states, out=out, case_name=case, processes=processes, repeats=repeats,
                groups_per_job=groups_per_job, engine_root=sglang_root, without_failed=without_failed, say=say,
            )
        if as_json:
            print_json({"record": str(path), "cases": [each.label for each in cases]})
        else:
            say(f"wrote {path}; `wts-lab fit {path}` fits it")


def grid_cases(asked: Asked, heads: list, batches: list[int], temperatures: list[float], logits: bool) -> tuple[WalkCase, ...]:
    """Every head at every batch and temperature, in all the ways asked for; logits are kept where a walk samples.

    Raises:
        BadInput: an empty grid, or a walk that cannot be run.
    """
    from dataclasses import replace

    if not batches or not temperatures:
        raise BadInput("nothing to measure: give at least one --batch and one --temperature")
    ways = {degree: replace(asked, logits=logits and degree > 0) for degree in temperatures}
    return tuple(case for each in heads for rows in batches for degree in temperatures for case in ways[degree].cases(each, rows, degree))


def _show(cases: tuple[WalkCase, ...], points_of_a_case: int, groups_per_job: int, as_json: bool) -> None:
    """Say what a sweep would time, in jobs and points."""
    from wts_lab.bench_plan import group_cases

    groups = len(group_cases(cases))
    size = {"cases": len(cases), "groups": groups, "jobs": -(-groups // groups_per_job), "points": len(cases) * points_of_a_case}
    if as_json:
        print_json({**size, "labels": [case.label for case in cases]})
        return
    for case in cases:
        typer.echo(case.label)
    cases_told, groups_told, jobs_told, points_told = (
        f"{size[name]:,} {name if size[name] != 1 else name.removesuffix('s')}" for name in ("cases", "groups", "jobs", "points")
    )
    typer.echo(f"{cases_told} in {groups_told} and {jobs_told}, {points_told} in each process")
