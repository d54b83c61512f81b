"""The command `step-table`: measured rounds as the cost table that an engine's scheduler loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost_model.errors import BadInput
from cost_model.files import require_writable
from cost_model.units import format_us
from cost_model.workload import MODES, require_word
from wts_lab.cli_inputs import GpuHereOption, HeadOption, JsonOption, path_from, path_option
from wts_lab.cli_output import print_json, print_table, say, user_errors

if TYPE_CHECKING:
    import pandas

    from cost_model.gpu import Gpu
    from cost_model.settings import Fingerprint

FORMATS = {"sps": "SGLang's SpsCostTable", "additive": "SGLang's SpsAdditiveCostTable", "tensorrt": "TensorRT-LLM's plain cost table"}


def step_table(
    records: Annotated[
        list[Path] | None, typer.Argument(help="Round records of one machine.", parser=path_from, metavar="[RECORDS]...", show_default=False)
    ] = None,
    head: HeadOption = None,
    kind: Annotated[str, typer.Option("--format", help="; ".join(f"{name}: {about}" for name, about in FORMATS.items()) + ".")] = "sps",
    mode: Annotated[str, typer.Option("--mode", help=f"How the head walked in the rounds, one of {', '.join(MODES)}.")] = "resident",
    implementation: Annotated[str | None, typer.Option("--implementation", help="Whose head it was, where the records hold several of a mode.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Target model, where the records hold several. [default: that of the head's drafter]")] = None,
    context: Annotated[int | None, typer.Option("--context", help="Tokens of context, where the records hold several.")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Tokens that are drafted, where the records hold several block lengths. [default: the most]")
    ] = None,
    max_batch_tokens: Annotated[
        int | None, typer.Option("--max-batch-tokens", help="Largest batch that the engine may ask an sps table for. [default: the largest measured]")
    ] = None,
    gpu: GpuHereOption = None,
    out: Annotated[Path | None, path_option("--out", "File for the table, a .json.")] = None,
    check: Annotated[Path | None, path_option("--check", "Only check that a table's file is sound and holds for --gpu and --head.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the times of whole measured rounds as a cost table for an engine's scheduler, or check one."""
    from cost_model import engine_tables
    from cost_model.head import load_head

    with user_errors(out=out):
        require_word("--mode", mode, MODES)
        if head is None:
            raise BadInput("name the drafter's head with --head; a table holds for one head")
        shape = load_head(head)
        if check is not None:
            _check(check, gpu, head, as_json)
            return
        if not records:
            raise BadInput("no record was given; a table is made of round records, as benchmarks/round.py makes them")
        require_writable(out)
        from wts_lab.cli_rounds import read_rounds

        frame, chip = read_rounds(records, gpu)
        chosen = {"head_mode": mode, "head_implementation": implementation, "target": target or _target_of(head, frame), "context_tokens": context}
        rows = _chosen(frame, {name: value for name, value in chosen.items() if value is not None})
        whole = rows[rows["phase"] == engine_tables.WHOLE]
        drafted = int(whole["draft_tokens"].max()) if steps is None else steps
        shorter = kind != "sps"
        found = engine_tables.step_times(rows, drafted, shorter=shorter)
        for thinned in engine_tables.thinned_steps(rows, shorter=shorter):
            say(f"left out, because the GPU throttled: {thinned}")
        table = engine_tables.make_table(kind, found, max_batch_tokens)
        origin = {name: _plain(whole.iloc[0][name]) for name in engine_tables.ROUND_FIELDS}
        origin |= {"draft_tokens": drafted, "records": [path.stem for path in records], "format": kind}
        if out is not None:
            say(f"wrote {engine_tables.write_table(table, out, _fingerprint(chip, shape, whole), origin)}")
        if as_json:
            print_json({"format": kind, "table": table, "origin": origin, "steps": found})
            return
        print_table(
            f"Steps of {origin['target']} at {origin['context_tokens']:,} tokens of context, {drafted} drafted, head {origin['head_implementation']} {mode}, on {chip.name}",
            ("requests", "tokens verified", "step", "repeats within"),
            [(str(step.requests), str(step.tokens), format_us(step.step_us), format_us(step.repeatability_us)) for step in found], text_columns=0,
        )


def _chosen(frame: pandas.DataFrame, wanted: dict[str, object]) -> pandas.DataFrame:
    """Rows of whole rounds that have the wanted values, and of the verify passes of their target and context; BadInput lists what there is where none has."""
    from cost_model.measured_round import VERIFY, WHOLE

    rows = frame[frame["phase"] == WHOLE]
    for name, value in wanted.items():
        kept = rows[rows[name] == value]
        if kept.empty:
            there = sorted(map(str, rows[name].dropna().unique()))
            raise BadInput(f"no whole round has {name} {value}; there are {', '.join(there) or 'none'}")
        rows = kept
    beside = frame[(frame["phase"] == VERIFY) & frame["target"].isin(set(rows["target"])) & frame["context_tokens"].isin(set(rows["context_tokens"]))]
    return frame.loc[rows.index.union(beside.index)]


def _target_of(head: str, frame: pandas.DataFrame) -> str | None:
    """Of several targets in a record, the one whose catalogued drafter has that head; None where that tells nothing."""
    from cost_model.targets import list_drafters, load_drafter

    there = set(frame["target"].dropna())
    fitting = {drafter.target for drafter in map(load_drafter, list_drafters()) if drafter.head == head} & there
    return fitting.pop() if len(there) > 1 and len(fitting) == 1 else None


def _plain(value: object) -> object:
    """A cell of a frame as JSON takes it."""
    return value.item() if hasattr(value, "item") else value


def _fingerprint(gpu: Gpu, head: object, rows: pandas.DataFrame) -> Fingerprint:
    """What the table holds for: machine, shape and, where git can tell, kernels."""
    from cost_model.measurement import frame_rows
    from cost_model.settings import fingerprint
    from wts_lab.kernel_origin import known_environment
    from wts_lab.recordings import describe_origin

    return fingerprint(gpu, head, None, None, known_environment(describe_origin(frame_rows(rows))))


def _check(path: Path, gpu: str | None, head: str, as_json: bool) -> None:
    """Read a table as this tool's loader does, for a GPU by name."""
    from cost_model.engine_tables import load_table
    from cost_model.gpu import load_gpu
    from cost_model.head import load_head
    from cost_model.settings import fingerprint

    if gpu is None:
        raise BadInput("name the GPU with --gpu, such as --gpu h200-sxm; a table holds for one")
    chip = load_gpu(gpu)
    table = load_table(path, fingerprint(chip, load_head(head), None, None))
    say(f"{path} is sound, and holds for {chip.id} and {head}")
    if as_json:
        print_json(table)
