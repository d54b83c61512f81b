"""The command `wts-lab tune`: which placement and exchange walk a shape fastest on the GPU in this machine, or what would be tried."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost_model.errors import BadInput
from cost_model.files import require_writable, write_text_whole
from cost_model.gpu import load_gpu
from cost_model.units import UNKNOWN, format_bytes, format_interval_us, format_us
from cost_model.workload import DEFAULT_EXCHANGE
from wts_lab.bench_plan import DEFAULT_PROCESSES, DEFAULT_REPEATS
from wts_lab.cli_inputs import (
    BatchOption, GpuHereOption, HeadOption, JsonOption, KindOption, L2StateOption, PlannedModeOption, PrecisionOption, RankOption, RoundingOption,
    StepsListOption, TargetVocabOption, TemperatureOption, VocabOption, head_from, path_option, whole_from, wholes_from, words_from,
)
from wts_lab.cli_measure import as_kind
from wts_lab.cli_output import print_json, print_table, say, user_errors
from wts_lab.tune_plan import DEFAULT_EXCHANGES, DEFAULT_LIMIT, DEFAULT_STEPS, DEFAULT_WARPS, TuneRequest, candidates

if TYPE_CHECKING:
    from cost_model.gpu import Gpu
    from wts_lab.tune import TuneResult


def tune(
    head: HeadOption = None,
    vocab: VocabOption = None,
    rank: RankOption = None,
    target_vocab: TargetVocabOption = None,
    kind: KindOption = None,
    mode: PlannedModeOption = "resident",
    precision: PrecisionOption = None,
    batch: BatchOption = 1,
    temperature: TemperatureOption = 0.0,
    rounding: RoundingOption = "once",
    warps: Annotated[str, typer.Option("--warps", help="Warps of a block to try, separated by commas.")] = ",".join(map(str, DEFAULT_WARPS)),
    exchange: Annotated[
        str | None,
        typer.Option("--exchange", help=f"Exchanges to try on the best placements, separated by commas. [default: all, {DEFAULT_EXCHANGE} with --settings]"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", help="Placements to try, the best predicted first.")] = DEFAULT_LIMIT,
    steps: StepsListOption = ",".join(map(str, DEFAULT_STEPS)),
    l2_state: L2StateOption = "warm",
    processes: Annotated[int, typer.Option("--processes", help="Processes of the final round.")] = DEFAULT_PROCESSES,
    repeats: Annotated[int, typer.Option("--repeats", help="Timed calls of each point in each process of the final round.")] = DEFAULT_REPEATS,
    out: Annotated[Path, path_option("--out", "Folder of records; they lie in <out>/<gpu>/.")] = Path("runs"),
    table: Annotated[Path | None, path_option("--table", "Folder for the table of candidates as .csv and .md.")] = None,
    keep: Annotated[Path | None, path_option("--keep", "File for the winner; one in the user's cache if left out.")] = None,
    settings: Annotated[
        Path | None, path_option("--settings", "Also write the winner as settings that can be deployed; no engine's path is compared.")
    ] = None,
    gpu: GpuHereOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be tried; needs no GPU, but --gpu then.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest placement and exchange for a shape by building and timing candidates, and keep the winner."""
    with user_errors("what is finished is kept; give the same command again to go on", out):
        exchanges = words_from([exchange]) if exchange is not None else DEFAULT_EXCHANGES if settings is None else [DEFAULT_EXCHANGE]
        request = TuneRequest(
            as_kind(head_from(head, vocab, rank, target_vocab), kind), mode, precision or "int8x2", rounding, batch, temperature,
            tuple(whole_from("--warps", word) for word in words_from([warps])), tuple(exchanges), limit,
            wholes_from("--steps", steps), l2_state, processes, repeats,
        )
        if dry_run:
            _show_candidates(request, _gpu_to_plan_for(gpu), as_json)
            return
        for path, is_folder in ((out, True), (table, True), (keep, False), (settings, False)):
            require_writable(path, folder=is_folder)
        from wts_lab.environment import require_device
        from wts_lab.tune import Machine, run_tune
        from wts_lab.tuned import write_tuned

        named = load_gpu(gpu).id if gpu is not None else None
        require_device()
        result = run_tune(request, Machine.here(named), out=out, progress=True)
        kept = None if result.winner is None else write_tuned(result.tuned(), keep)
        written = [] if table is None else [*write_candidates(result, table)]
        if settings is not None and result.winner is not None:
            written.append(_write_settings(result, settings))
        if as_json:
            print_json({"gpu_id": result.machine.gpu_id, "head": request.head, "candidates": result.rows, "records": result.records, "kept": kept})
        else:
            _show_result(result)
        for path in (*result.records, *written):
            say(f"wrote {path}")
        say(f"kept in {kept}" if kept else f"nothing is kept: {result.planned.fit.reason}")


def _write_settings(result: TuneResult, path: Path) -> Path:
    """Write the winner as settings, for the longest walk and the temperature that were tuned."""
    from cost_model.settings import write_settings
    from wts_lab.deploy import settings_of_tuned

    request = result.request
    found = settings_of_tuned(result.tuned(), result.machine.gpu, request.head, steps=max(request.steps), temperature=request.temperature)
    return write_settings(found, path)


def _gpu_to_plan_for(name: str | None) -> Gpu:
    """The GPU of that name, else the one in this machine."""
    if name is not None:
        return load_gpu(name)
    from wts_lab.study import capable_device

    if capable_device() is None:
        raise BadInput("this machine has no GPU to plan for; name one with --gpu, such as --gpu h200-sxm")
    from wts_lab.tune import Machine

    return Machine.here().gpu


def _show_candidates(request: TuneRequest, gpu: Gpu, as_json: bool) -> None:
    """Show what would be tried, with what the planner expects of it."""
    rows = [trial.row(None) for trial in candidates(gpu, request)]
    if as_json:
        print_json({"gpu_id": gpu.id, "head": request.head, "exchanges": request.exchanges, "candidates": rows})
        return
    print_table(
        f"Candidates for {_title(request)} on {gpu.name}, the planner's choice first",
        ("warps", "tiles: registers", "shared", "streamed", "staging", "registers a thread\npredicted", "shared memory", "step\npredicted"),
        [(*_tiles(row), row["predicted_registers_per_thread"], format_bytes(row["shared_bytes"]), format_us(row["predicted_step_us"])) for row in rows],
    )
    typer.echo(f"The best of them are tried with the exchanges {', '.join(request.exchanges)}.")


def _show_result(result: TuneResult) -> None:
    """Show every candidate beside the planner's choice, and what is kept."""
    print_table(
        f"{_title(result.request)} on {result.machine.gpu_name}, {result.request.l2_state} L2", _titles(result.request),
        [_cells(row) for row in result.rows],
    )
    winner = result.winner
    if winner is None:
        return
    word = "The planner's choice stays" if winner.planned else f"{winner.name} is faster than the planner's choice"
    typer.echo(f"{word}: a step of {format_us(winner.fit.step_us)}" + ("." if winner.planned else f", {format_us(result.planned.fit.step_us)} there."))


def _title(request: TuneRequest) -> str:
    """The walk that is tuned, in words."""
    sampled = "greedy" if request.temperature == 0 else f"temperature {request.temperature:g}"
    return f"{request.head.name}, {request.mode} {request.precision}, batch {request.batch}, {sampled}"


def _titles(request: TuneRequest) -> tuple[str, ...]:
    """Column titles of the table of candidates."""
    return ("warps", "tiles: registers", "shared", "streamed", "staging", "exchange", "registers\na thread", "bytes\nspilled", "step", "95 % interval",
            f"call of\n{max(request.steps)} steps", "screened\nstep", "verdict")


def _tiles(row: Mapping) -> tuple[int, ...]:
    """Warps and tiles of a block."""
    return tuple(row[name] for name in ("warps", "register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles"))


def _cells(row: Mapping) -> tuple[str, ...]:
    """One candidate under `_titles`."""
    interval = UNKNOWN if row["step_us"] is None else format_interval_us(row["step_us_low"], row["step_us_high"])
    registers, spilled = (UNKNOWN if row[name] is None else str(row[name]) for name in ("registers_per_thread", "spill_bytes"))
    verdict = f"{row['verdict']}, kept" if row["kept"] else row["verdict"]
    return (*map(str, _tiles(row)), row["exchange"], registers, spilled, format_us(row["step_us"]), interval, format_us(row["call_us"]),
            format_us(row["screened_step_us"]), verdict)


def write_candidates(result: TuneResult, folder: Path) -> tuple[Path, Path]:
    """Write `candidates.csv`, a row a candidate with all that is known of it, unknown empty, and `candidates.md`, for reading."""
    rows, text = result.rows, io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
    return write_text_whole(folder / "candidates.csv", text.getvalue()), write_text_whole(folder / "candidates.md", markdown(result))


def markdown(result: TuneResult) -> str:
    """The candidates as a Markdown table."""
    titles = [title.replace("\n", " ") for title in _titles(result.request)]
    lines = [titles, ["---:"] * len(titles), *map(_cells, result.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
