"""Record speculative rounds: ``python -m benchmarks.round``.

Target verify, draft backbone, base logits and head at the shapes of Qwen3-4B and Qwen3-8B with random weights, each in a CUDA graph, and
whole rounds with the engine's stepwise head and with the resident one, interleaved in one process. The record goes to
``<out>/<gpu>/<date>-round.parquet``; an interrupted run goes on when the same command is given again. ``--only`` records a part under a
name of its own: ``--only qwen3-8b --only c1,c16 --record round-8b``. ``--steps 7,15`` drafts blocks of these lengths, which tables that tell requests from tokens
need. ``--describe RECORD`` measures nothing: it fits the coefficients of the
round model's passes to a record, and writes them where the model reads them.

Exit status: as `benchmarks.status` has them.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.recording import passed_over
from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.files import require_writable
from cost_model.measurement import require_place
from wts_lab.bench_run import ENGINE_ROOT_OPTION
from wts_lab.cli_inputs import wholes_from
from wts_lab.environment import device_id, require_device, snapshot
from wts_lab.round_plan import RoundCase, RoundPlan, select_cases
from wts_lab.round_run import measure_rounds

DRAFTERS = ("dspark-qwen3-4b", "dspark-qwen3-8b")
CONCURRENCIES = (1, 2, 4, 8, 16)
CONTEXTS = (1024, 8192)
STEPS = 16
"""The block of the published end-to-end comparison."""


def declared(engine: bool, lengths: Sequence[int] = (STEPS,)) -> tuple[RoundCase, ...]:
    """Every case: both targets, all block lengths, concurrencies and contexts."""
    return tuple(RoundCase(drafter, steps, concurrency, context, engine) for drafter in DRAFTERS for steps in lengths for concurrency in CONCURRENCIES for context in CONTEXTS)


def lengths_from(text: str) -> tuple[int, ...]:
    """Block lengths from text such as 7,15, as argparse takes them: it tells the words of an ArgumentTypeError and of no other error."""
    try:
        return wholes_from("--steps", text)
    except BadInput as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parser() -> argparse.ArgumentParser:
    """Command line of this module."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.round", description="Record speculative rounds on this machine's GPU.")
    command.add_argument("--out", type=Path, default=Path("runs"), help="folder of records (default: %(default)s)")
    command.add_argument("--record", default="round", metavar="NAME", help="name of the record (default: %(default)s)")
    command.add_argument("--missing", action="store_true", help="measure nothing where the folder has a record of that name, from whatever day")
    command.add_argument("--only", action="append", default=[], metavar="WORDS",
                         help="only cases with one of these words, such as qwen3-8b or c1,c16 or k8; several must all hold")
    command.add_argument("--steps", type=lengths_from, default=(STEPS,), metavar="LENGTHS", help=f"tokens drafted, several separated by commas (default: {STEPS})")
    command.add_argument(ENGINE_ROOT_OPTION, type=Path, metavar="FOLDER",
                         help="unpacked wheel of SGLang, whose own steps are then the stepwise head; without it the reference in torch is")
    command.add_argument("--gpu", metavar="ID", help="catalogue id, where the device alone does not tell")
    command.add_argument("--processes", type=int, default=3, help="processes with fresh allocations (default: %(default)s)")
    command.add_argument("--repeats", type=int, default=24, help="samples a point (default: %(default)s)")
    command.add_argument("--rounds", type=int, default=3, help="bursts that they are spread over (default: %(default)s)")
    command.add_argument("--describe", type=Path, action="append", default=[], metavar="RECORD", help="fit the round model to this record instead of measuring")
    command.add_argument("--seed", type=int, default=0, help="of weights, inputs and order (default: %(default)s)")
    return command


def plan_of(given: argparse.Namespace) -> RoundPlan:
    """The plan that a command line asks for, before anything is known of the machine."""
    root = given.sglang_root
    cases = select_cases(declared(root is not None, given.steps), given.only)
    lengths = [] if given.steps == (STEPS,) else ["--steps", ",".join(map(str, given.steps))]
    words = ["python", "-m", "benchmarks.round", "--record", given.record, *lengths, *(word for text in given.only for word in ("--only", text))]
    return RoundPlan(cases, given.repeats, given.rounds, given.processes, given.seed, given.gpu or "", {"command": shlex.join(words)},
                     None if root is None else str(root.resolve()))  # fmt: skip


def describe(records: Sequence[Path], gpu: str | None) -> Path:
    """Fit the passes' coefficients to round records of one GPU, write them, and return the file's path."""
    from cost_model.measured_round import measured_parts
    from cost_model.pass_fit import fit_passes
    from cost_model.passes import rates_path, write_rates
    from wts_lab.cli_rounds import read_rounds

    require_writable(rates_path())
    frame, chip = read_rounds(list(records), gpu)
    return write_rates(rates_path(), fit_passes(chip, measured_parts(frame)), chip.id, f"{chip.id}: {', '.join(path.stem for path in records)}")


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = parser().parse_args(arguments)
    if given.describe:
        print(f"wrote {describe(given.describe, given.gpu)}")
        return 0
    plan = plan_of(given)
    require_place(given.out, given.record)
    if given.missing and passed_over(given.out, given.record, given.gpu):
        return 0
    require_device()
    plan = replace(plan, gpu_id=given.gpu or device_id(), provenance=snapshot() | plan.provenance)
    print(f"recorded {measure_rounds(plan, given.out, given.record)}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
