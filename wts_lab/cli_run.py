"""Commands that may use the GPU in this machine: study, calibrate and doctor. Long work shows a progress bar."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost_model.errors import BadInput
from cost_model.files import require_writable
from cost_model.gpu import load_gpu, recognise_gpu
from cost_model.paths import data_root
from cost_model.workload import L2_STATES
from wts_lab import cli_views
from wts_lab.cli_inputs import (
    STANDARD_STEPS, BatchOption, GpuHereOption, HeadsOption, JsonOption, KindOption, L2StatesOption, ProcessesOption, RankOption, RepeatsOption,
    RoundingOption, StepsListOption, TemperatureOption, VocabsOption, heads_from, path_from, path_option, read_records, wholes_from, words_from,
)
from wts_lab.cli_measure import as_kind
from wts_lab.cli_output import print_json, say, user_errors
from wts_lab.endings import EXIT_FAILED

if TYPE_CHECKING:
    import pandas

    from cost_model.gpu import Gpu
    from cost_model.residuals import ModeErrors


def study(
    gpu: GpuHereOption = None,
    head: HeadsOption = None,
    vocab: VocabsOption = None,
    rank: RankOption = None,
    kind: KindOption = None,
    steps: StepsListOption = STANDARD_STEPS,
    l2_state: L2StatesOption = ",".join(L2_STATES),
    batch: BatchOption = 1,
    temperature: TemperatureOption = 0.0,
    rounding: RoundingOption = "once",
    processes: ProcessesOption = 3,
    repeats: RepeatsOption = 100,
    live: Annotated[bool, typer.Option("--live", help="Measure here or fail. [default: measure where this machine can, else replay]")] = False,
    replay: Annotated[bool, typer.Option("--replay", help="Replay recorded runs.")] = False,
    records: Annotated[Path | None, path_option("--records", "Folder of recorded runs; those that ship with the lab if left out.")] = None,
    out: Annotated[Path, path_option("--out", "Folder for tables, settings and report.")] = Path("out"),
    as_json: JsonOption = False,
) -> None:
    """Answer the question: predict, measure or replay, fit, compare, decide, and write tables, settings and report."""
    from wts_lab.outputs import write_outputs
    from wts_lab.study import StudyRequest, run_study

    with user_errors("no answer was written", out):
        request = StudyRequest(
            gpu=gpu, heads=tuple(as_kind(each, kind) for each in heads_from(head, vocab, rank, ())), steps=wholes_from("--steps", steps), l2_states=tuple(words_from([l2_state])),
            batch=batch, temperature=temperature, rounding=rounding, processes=processes, repeats=repeats, live=_live(live, replay), records=records,
            out=out,
        )
        require_writable(out, folder=True)
        result = run_study(request, progress=True, on_stage=say)
        written = write_outputs(result, out)
        if as_json:
            print_json(cli_views.study_facts(result, written))
        else:
            cli_views.show_study(result, written)


def _live(live: bool, replay: bool) -> bool | None:
    """Whether to measure or to replay; None for what this machine allows."""
    if live and replay:
        raise BadInput("--live and --replay were both given; a study measures or replays, so leave one out")
    return True if live else False if replay else None


def calibrate(
    records: Annotated[
        list[Path] | None,
        typer.Argument(help="Records of probes and walks, or folders of them; the probes are run here if left out.", parser=path_from,
                       metavar="[RECORDS]..."),
    ] = None,
    gpu: GpuHereOption = None,
    processes: ProcessesOption = 3,
    repeats: RepeatsOption = 100,
    out: Annotated[Path | None, path_option("--out", "File for the calibration; <gpu>.toml here if left out.")] = None,
    engines: Annotated[
        Path | None, path_option("--engines", "Folder of engine descriptions in which to replace torch-stepwise.toml, from its recorded walks.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn probes (and walks, where the records hold some) of this GPU into the parameters of its cost model, with standard errors."""
    from cost_model.calibrate import calibrate as calibrate_gpu
    from cost_model.calibrate import write_calibration
    from cost_model.engine_fit import TABLED_ENGINE, tabulate_engine, write_engine
    from cost_model.fit import fit_frame
    from cost_model.measurement import require_gpu

    with user_errors("no calibration was written", out):
        if engines is not None and not engines.is_dir():
            raise BadInput(f"--engines is {engines}, which is no folder; give the one that holds {TABLED_ENGINE}.toml, such as data/engines")
        require_writable(engines, folder=True)
        require_writable(out or Path(), folder=out is None)
        if not records:
            from wts_lab.bench_run import measure_probes

            named = load_gpu(gpu).id if gpu is not None else None
            records = [measure_probes(processes=processes, repeats=repeats, out=Path("runs"), gpu=named, progress=True)]
            say(f"wrote {records[0]}")
        frame = read_records(records)
        chip = load_gpu(gpu, calibrated=False) if gpu is not None else _gpu_of(frame)
        require_gpu(frame, chip)
        calibrated = calibrate_gpu(chip, frame)
        errors = _model_errors(calibrated, frame)
        engine = None if engines is None else tabulate_engine(calibrated, fit_frame(frame), calibrated.calibration or "")
        path = out or Path(f"{chip.id}.toml")
        write_calibration(calibrated, path)  # after all that takes seconds: an interrupt says that nothing was written
        described = None if engine is None else write_engine(engine, engines / f"{TABLED_ENGINE}.toml")
        if as_json:
            print_json({"calibration": str(path), "engine": None if described is None else str(described), "gpu": calibrated,
                        "errors": errors})
        else:
            cli_views.show_parameters(calibrated)
            cli_views.show_model_errors(errors)
            if described is not None:
                say(f"wrote {described}")
            used = data_root() / "gpus" / "calibrated" / f"{chip.id}.toml"
            say(f"wrote {path}" + ("" if path.resolve() == used.resolve() else f"; predictions use it once it is copied to {used}"))


def _model_errors(gpu: Gpu, frame: pandas.DataFrame) -> list[ModeErrors]:
    """Return how well the calibrated GPU predicts the walks of a frame, which may hold none."""
    from cost_model.fit import fit_frame
    from cost_model.measurement import NO_PROBE
    from cost_model.residuals import errors_by_mode

    walks = frame[frame["probe"].isna() | (frame["probe"] == NO_PROBE)]
    return errors_by_mode(gpu, fit_frame(walks)) if len(walks) else []


def _gpu_of(frame: pandas.DataFrame) -> Gpu:
    """Return the catalogue's GPU for the device that a frame of records came from.

    Raises:
        BadInput: several devices are mixed, or the device is in no catalogue or fits several entries.
    """
    devices = {(row["gpu_name"], int(row["gpu_sm_count"])) for _, row in frame[["gpu_name", "gpu_sm_count"]].dropna().iterrows()}
    if len(devices) != 1:
        told = ", ".join(sorted(name for name, _ in devices)) or "none"
        raise BadInput(f"a calibration needs records of one GPU; these name {told}. Give the records of one, or name it with --gpu")
    ((name, sm_count),) = devices
    return load_gpu(recognise_gpu(name, sm_count).id, calibrated=False)


def doctor(
    clear_locks: Annotated[bool, typer.Option("--clear-locks", help="First delete build locks that no process holds.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Look for everything that keeps the kernels from being built and run here, each with its mend; status 1 if there is any."""
    from wts_lab.environment import clear_stale_locks
    from wts_lab.environment import doctor as examine

    with user_errors():
        if clear_locks:
            for path in clear_stale_locks():
                say(f"deleted {path}")
        findings = examine()
        if as_json:
            print_json(findings)
        else:
            cli_views.show_findings(findings)
    if any(finding.fault for finding in findings):
        raise typer.Exit(EXIT_FAILED)


def app(
    state: Annotated[Path | None, path_option("--state", "A state that a panel saved, in which it opens; the explorer if left out.")] = None,
    port: Annotated[int, typer.Option("--port", help="Port of the page on this machine.")] = 8866,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Serve the panels as a page of their own, without a notebook around them; Ctrl-C ends it."""
    from wts_lab.page import serve

    with user_errors():
        serve(state, port, browser)
