"""Commands that only think: predict, plan, fit and decide. None of them touches a GPU."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost_model.errors import BadInput
from cost_model.files import require_writable
from cost_model.gpu import MissingFact, load_gpu
from cost_model.placement import PlanError
from cost_model.workload import Workload
from wts_lab import cli_views
from wts_lab.cli_inputs import (
    BatchOption, GpuOption, HeadOption, JsonOption, KindOption, L2StateOption, ModeOption, PlacementOption, PlannedModeOption, PrecisionOption, RankOption,
    RecordsArgument, RoundingOption, StepsOption, TargetVocabOption, TemperatureOption, VocabOption, head_from, measured_option,
    path_from, path_option, placement_from, read_records, read_walks, require_steps, workload_from,
)
from wts_lab.cli_measure import as_kind
from wts_lab.cli_output import print_json, say, user_errors
from wts_lab.measured_text import measured_from
from wts_lab.split_view import show_split

if TYPE_CHECKING:
    from cost_model.decide import Decision
    from cost_model.fit import SeriesKey, StepFit
    from cost_model.gain import HeadSplit
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.placement import Placement
    from cost_model.predict import Prediction
    from cost_model.round import Round


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
    variant: Annotated[str | None, typer.Option("--variant", help="Path within an engine. [default: the one that it takes]")] = None,
    precision: PrecisionOption = None,
    batch: BatchOption = 1,
    steps: StepsOption = 16,
    temperature: TemperatureOption = 0.0,
    rounding: RoundingOption = "once",
    l2_state: L2StateOption = "warm",
    placement: PlacementOption = None,
    graphed_us: Annotated[
        float | None, typer.Option("--graphed-us", help="Your measured stepwise call as a replayed CUDA graph; says where its time goes.")
    ] = None,
    eager_us: Annotated[float | None, typer.Option("--eager-us", help="The same call launched kernel by kernel, beside --graphed-us.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict entry and step cost of a walk, term by term, with intervals and the physical floor; or split a measured one."""
    from cost_model.predict import predict as predict_walk

    with user_errors():
        workload = workload_from(mode, precision, batch, steps, temperature, rounding, l2_state)
        chip, shape = load_gpu(gpu), head_from(head, vocab, rank, target_vocab)
        prediction = predict_walk(chip, shape, workload, mode, implementation, placement_from(placement), variant=variant)
        split = _split(chip, prediction, graphed_us, eager_us)
        if as_json:
            print_json(prediction.as_dict() | ({} if split is None else {"measured_split": split}))
            return
        cli_views.show_prediction(chip, prediction)
        if split is not None:
            show_split(split, workload.steps)


def _split(gpu: Gpu, prediction: Prediction, graphed_us: float | None, eager_us: float | None) -> HeadSplit | None:
    """Where the time of a measured stepwise call goes; None where none was given."""
    from cost_model.gain import split_measured_head

    if graphed_us is None and eager_us is None:
        return None
    if graphed_us is None:
        raise BadInput("--eager-us was given without --graphed-us; time the call as a replayed CUDA graph too, which is what engines run")
    for flag, time_us in (("--graphed-us", graphed_us), ("--eager-us", eager_us)):
        if time_us is not None and not 0 < time_us < math.inf:
            raise BadInput(f"{flag} is {time_us:g}; give a time in microseconds above 0")
    if prediction.mode != "stepwise":
        raise BadInput(f"--graphed-us is of a stepwise call, and --mode is {prediction.mode}; add --mode stepwise")
    return split_measured_head(
        gpu, prediction.head, prediction.workload, graphed_us=graphed_us, eager_us=eager_us, implementation=prediction.implementation,
        variant=prediction.variant,
    )


def plan(
    gpu: GpuOption,
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
    warps: Annotated[int, typer.Option("--warps", help="Warps of a block.")] = 8,
    blocks: Annotated[int | None, typer.Option("--blocks", help="Blocks of the grid; one a multiprocessor that has a tile if left out.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List every placement that fits.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Plan where the tiles of W2 lie in a block of the kernel that would be built (registers, shared memory, or streamed), and predict its step."""
    from cost_model import placement as planner
    from wts_lab.walk_plan import planner_request

    with user_errors():
        chip, shape = load_gpu(gpu), as_kind(head_from(head, vocab, rank, target_vocab), kind)
        asked = Workload(batch, temperature=temperature, precision=precision or "int8x2", rounding=rounding)
        walked, wanted = planner_request(chip, shape, max_batch=batch, rounding=rounding, sampling=temperature > 0)
        if blocks is not None:
            wanted["grid_blocks"] = blocks
        best = planner.plan(chip, walked, asked.precision, mode, warps=warps, **wanted)
        chosen = [best]
        if every:
            others = planner.enumerate_placements(chip, walked, asked.precision, mode, warps=warps, **wanted)
            chosen += [placement for placement in others if placement != best]
        steps_us, unknown = _steps_of(chosen, chip, shape, asked, mode, blocks)
        rows = [cli_views.placement_row(placement, chip, walked, asked.precision, wanted) | {"step_us": step_us} for placement, step_us in zip(chosen, steps_us)]
        if as_json:
            print_json({"gpu_id": chip.id, "head": shape, "mode": mode, "precision": asked.precision, "batch": batch, "temperature": temperature,
                        "rounding": rounding, "walked_vocab_size": walked.vocab_size, "grid_blocks": wanted["grid_blocks"],
                        "placement": rows[0], **({"others": rows[1:]} if every else {})})
            return
        sampled = f"temperature {temperature:g}" if temperature else "greedy"
        cli_views.show_placements(f"{shape.name} on {chip.name}, {mode}, {asked.precision}, batch {batch}, {sampled}, rounding {rounding}", rows)
        if walked != shape:
            typer.echo(f"Note: each batch row is a walk of its own over {walked.vocab_size:,} rows, its candidates and the first token.")
        if unknown:
            typer.echo(f"Note: no step is predicted: {unknown}")


def _steps_of(placements: list[Placement], gpu: Gpu, head: Head, workload: Workload, mode: str, blocks: int | None) -> tuple[list[float | None], str]:
    """Return the predicted step of each placement in microseconds; None, and why, where the GPU lacks a fact for it."""
    from cost_model.predict import predict as predict_walk

    try:
        return [predict_walk(gpu, head, workload, mode, placement=placement, grid_blocks=blocks).step_us for placement in placements], ""
    except MissingFact as error:
        return [None] * len(placements), str(error)


def fit(
    records: RecordsArgument,
    every: Annotated[bool, typer.Option("--all", help="Fit every run of a configuration, not only the fullest.")] = False,
    out: Annotated[Path | None, path_option("--out", "Folder for the table as .csv, .parquet and .md.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit entry and step cost of every recorded series, with intervals, repeatability and a check of the line."""
    from cost_model.fit import fit_frame

    with user_errors(out=out):
        require_writable(out, folder=True)
        walks, left_out = read_walks(records, every)
        fits = fit_frame(walks)
        if left_out:
            say(f"left out {left_out}: other runs of the same configurations have more processes or walk lengths, or are newer; --all fits these too")
        if out is not None:
            for path in cli_views.write_fits(fits, out):
                say(f"wrote {path}")
        if as_json:
            print_json([{"series": key, "fit": series_fit} for key, series_fit in fits])
        else:
            cli_views.show_fits(fits)


def decide(
    gpu: GpuOption,
    records: Annotated[
        list[Path] | None,
        typer.Argument(help="Records whose fits replace predictions; predictions alone if left out.", parser=path_from, metavar="[RECORDS]..."),
    ] = None,
    head: HeadOption = None,
    vocab: VocabOption = None,
    rank: RankOption = None,
    target_vocab: TargetVocabOption = None,
    batch: BatchOption = 1,
    steps: StepsOption = 16,
    temperature: TemperatureOption = 0.0,
    rounding: RoundingOption = "once",
    l2_state: L2StateOption = "serving",
    verify_us: Annotated[str | None, measured_option("--verify-us", "The target's pass over a drafted block.")] = None,
    backbone_us: Annotated[str | None, measured_option("--backbone-us", "The parallel drafter's pass, with its base logits.")] = None,
    base_logits_us: Annotated[str | None, measured_option("--base-logits-us", "The draft's output projection, where it was timed apart.")] = None,
    accepted_length: Annotated[str | None, measured_option("--accepted-length", "Tokens that a round yields on average.")] = None,
    schedule: Annotated[str, typer.Option("--schedule", help="serial, or overlapped: the draft runs beside verify, as in DPara.")] = "serial",
    hidden_share: Annotated[str | None, measured_option("--hidden-share", "Overlapped: part of the shorter of both that is hidden; all if left out.")] = None,
    out: Annotated[Path | None, path_option("--out", "Write the settings to this file.")] = None,
    check: Annotated[Path | None, path_option("--check", "Only check that a settings file holds for this GPU and head.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Decide whether to deploy, in which mode and placement, and why. Give the round's times for a verdict end to end."""
    with user_errors(out=out):
        chip, shape = load_gpu(gpu), head_from(head, vocab, rank, target_vocab)
        require_steps(steps)
        if check is not None:
            from cost_model.settings import load_settings

            settings = load_settings(check, chip, shape)
            say(f"{check} holds for {chip.id} and {shape.name}")
            if as_json:
                print_json(settings)
            return
        require_writable(out)
        workload = Workload(batch, steps, temperature, rounding=rounding, l2_state=l2_state, logits_kept=temperature > 0)
        rest = _round(verify_us, backbone_us, accepted_length, steps, batch)
        decision = _decision(chip, shape, workload, records, _joined(rest, base_logits_us, schedule, hidden_share))
        if out is not None:
            from cost_model.settings import write_settings

            say(f"wrote {write_settings(decision.settings, out)}")
        if as_json:
            print_json(decision)
        else:
            sampled = f"temperature {temperature:g}" if temperature else "greedy"
            cli_views.show_options(decision, f"{shape.name} on {chip.name}, batch {batch}, {sampled}, {l2_state} L2, {steps} steps")


def _decision(gpu: Gpu, head: Head, workload: Workload, records: list[Path] | None, rest: Round | None) -> Decision:
    """Decide from the predictions of every way that can be predicted, and the fits of the records."""
    from cost_model.decide import decide as decide_walk
    from cost_model.settings import REPLAYED
    from wts_lab.compare import ALL_WAYS, predicted_comparisons

    predictions = []
    for way in ALL_WAYS:
        try:
            predictions += [each.prediction for each in predicted_comparisons(gpu, head, workload, (way,))]
        except PlanError as error:
            say(f"{' '.join(way)} is left out: {error}")
    fits, environment = recorded(gpu, records, workload) if records else ((), None)
    return decide_walk(gpu, head, workload, predictions, fits, rest, environment=environment, source=REPLAYED)


def recorded(gpu: Gpu, records: list[Path], workload: Workload | None = None) -> tuple[list[tuple[SeriesKey, StepFit]], dict[str, Any]]:
    """Return the fits that a replay of these records would show, and what the records know of the machine and kernels that made them.

    With a workload those of its batch, temperature and rounding only; there may be none.
    """
    from cost_model.fit import fit_frame
    from cost_model.measurement import require_gpu
    from wts_lab.kernel_origin import known_environment
    from wts_lab.recordings import describe_origin, recording_of

    frame = read_records(records)
    require_gpu(frame, gpu)
    recording = recording_of(frame, gpu.id)
    if workload is not None:
        known = sorted(set(recording.frame[["batch", "temperature", "rounding"]].itertuples(index=False, name=None)))
        recording = recording.about(workload.batch, workload.temperature, workload.rounding)
        if recording.frame.empty:
            shown = "; ".join(f"batch {batch}, temperature {temperature:g}, {rounding}" for batch, temperature, rounding in known)
            say(f"no walk in the records has batch {workload.batch}, temperature {workload.temperature:g} and rounding {workload.rounding}, so times are "
                f"predicted; recorded are {shown}")
    return [] if recording.frame.empty else fit_frame(recording.frame), known_environment(describe_origin(recording.rows))


def _joined(rest: Round | None, base_logits_us: str | None, schedule: str, hidden_share: str | None) -> Round | None:
    """The round with its base logits and schedule."""
    if rest is None:
        if base_logits_us is not None or hidden_share is not None or schedule != "serial":
            raise BadInput("--base-logits-us, --schedule and --hidden-share are about a round; give --verify-us, --backbone-us and --accepted-length too")
        return None
    if schedule == "serial" and hidden_share is not None:
        raise BadInput("--hidden-share was given with a serial round, in which nothing is hidden; leave it out, or choose --schedule overlapped")
    base, base_ends = measured_from("--base-logits-us", base_logits_us) if base_logits_us is not None else (0.0, None)
    share, share_ends = measured_from("--hidden-share", hidden_share) if hidden_share is not None else (1.0, None)
    return replace(rest, base_logits_us=base, base_logits_interval_us=base_ends, schedule=schedule, hidden_share=share, hidden_share_interval=share_ends)


def _round(verify_us: str | None, backbone_us: str | None, accepted_length: str | None, steps: int, batch: int) -> Round | None:
    """Return the rest of a round from its three numbers, or None where none was given."""
    from cost_model.round import Round

    given = {"--verify-us": verify_us, "--backbone-us": backbone_us, "--accepted-length": accepted_length}
    missing = [flag for flag, value in given.items() if value is None]
    if len(missing) == len(given):
        return None
    if missing:
        raise BadInput(f"{' and '.join(missing)} not given; a verdict end to end needs {', '.join(given)} together")
    numbers = [measured_from(flag, text) for flag, text in given.items() if text is not None]
    values, intervals = zip(*numbers)
    length = max(values[2], *(intervals[2] or ()), 0.0)
    if length > steps + 1:
        raise BadInput(f"--accepted-length is {length:g}; a round of {steps} drafted tokens yields at most {steps + 1}, the target's own token among them")
    return Round(*values, *intervals, concurrency=batch)
