"""Which records a change of the walk kernel's sources touches: ``python -m benchmarks.touched``.

Records name the commit that made them. A change of sources since then leaves the machine code of most instantiations as it was, bit for
bit, and what was measured of those stands. This compiles every instantiation that a record's walks ran from the sources of its commit and
from those of the working tree, with the compiler that is here, and compares the machine code. A row is planned by the tree that compiles it,
with the placement that was recorded, so that a plan which chooses another instantiation counts as a change, too. What the host does at a
launch is not compared.

``--only`` picks records by words of their names, such as ``headline,phases``; several must all hold. Records without walks of ours (probes,
engines' kernels) and rounds, which do not say what they ran, are not looked at, and it says so. ``--write`` names the runs of shipped records
that stand in ``data/same_code.toml``: what is decided from them holds for the present kernels (`wts_lab/kernel_origin.py`).

Exit status: 0 everything is the same, 1 something has changed or is unknown, else as `benchmarks.status` has them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.kernel_code import Kernel, make_kernels, same_code
from benchmarks.phases import PHASE_PROBE
from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.files import require_writable, write_text_whole
from cost_model.fit import KEY_COLUMNS, SeriesKey
from cost_model.gpu import recognise_gpu
from cost_model.measurement import NO_PROBE, RECORD_SUFFIX, frame_rows, read_walk, read_walk_folder
from cost_model.recorded import asked_of_series, placement_of_series
from cost_model.workload import OURS
from wts_lab.bench_plan import PARTS
from wts_lab.build import BuildCancelled, BuildError, Nvcc, find_nvcc
from wts_lab.kernel_origin import same_code_path
from wts_lab.recordings import measurements_root, recorded_gpus
from wts_lab.tuned import walk_sources_hash

if TYPE_CHECKING:
    import pandas

ROOT = Path(__file__).resolve().parent.parent
PLANNED_FROM = ("csrc", "cost_model", "wts_lab", "data")
"""What a walk is planned and built from, from the root of a checkout."""

KERNEL_PROBES = {NO_PROBE: "none", PHASE_PROBE: "phases", **{recorded: part for part, recorded in PARTS.items()}}
"""Probe of a record's row -> probe of the walk kernel."""

OPTIONAL_COLUMNS = ("hidden_size", "gru_size", "candidate_pool")
MUST_BE_KNOWN = (
    "gpu_name", "gpu_sm_count", "mode", "precision", "rounding", "head_kind", "vocab_size", "target_vocab_size", "padded_vocab_size", "rank", "batch",
    "temperature", "grid_blocks", "warps", "register_tiles", "shared_tiles", "tensor_tiles", "streamed_tiles", "staging_tiles", "probe",
)  # fmt: skip
SAME, CHANGED, UNKNOWN = VERDICTS = ("same", "changed", "unknown")
SHOWN_COMMIT = 9


# --- what records ran -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordedWalks:
    """The walks of ours in a record that one commit made.

    Attributes:
        record: folder and name.
        commit: None where the record does not know it.
        requests: what was asked of `plan_walk`, each once, as `request_of` writes it.
        unclear: why rows cannot be turned into a request, each row once.
    """

    record: str
    commit: str | None
    requests: tuple[str, ...]
    unclear: tuple[str, ...] = ()


@cache
def gpu_of(name: str, sm_count: int) -> str:
    """Catalogue id of a row's device; raises as `recognise_gpu`."""
    return recognise_gpu(name, sm_count).id


def request_of(row: Mapping[str, Any]) -> str:
    """What `describe_kernels` needs to plan a recorded row's walk again, as JSON.

    Raises:
        BadInput: the row does not say it all, or says what no walk is.
    """
    missing = [name for name in MUST_BE_KNOWN if row[name] is None]
    if missing:
        raise BadInput(f"a row does not know its {', '.join(missing)}")
    if row["probe"] not in KERNEL_PROBES:
        raise BadInput(f"the probe {row['probe']!r} is none of the walk kernel's; those are {', '.join(KERNEL_PROBES)}")
    key = SeriesKey(**{name: row.get(name) for name in KEY_COLUMNS})
    (head, workload), placement = asked_of_series(key), placement_of_series(key)
    options = {
        "mode": row["mode"], "precision": workload.precision, "max_batch": workload.batch, "rounding": workload.rounding,
        "sampling": workload.temperature > 0, "probe": KERNEL_PROBES[row["probe"]],
    }  # fmt: skip
    asked = {"gpu": gpu_of(row["gpu_name"], row["gpu_sm_count"]), "grid_blocks": row["grid_blocks"], "head": head.as_dict(), "placement": vars(placement), "options": options}
    return json.dumps(asked, sort_keys=True)


def recorded_walks(frame: pandas.DataFrame) -> list[RecordedWalks]:
    """The walks of ours in a frame of records, by record and commit."""
    ours = frame[(frame["implementation"] == OURS) & frame["mode"].notna()]
    found = []
    for (record, _), rows in ours.groupby(["record", "git_commit"], sort=False, dropna=False):
        facts = frame_rows(rows[[*MUST_BE_KNOWN, *OPTIONAL_COLUMNS, "git_commit", "git_dirty"]].drop_duplicates())
        requests, unclear = {}, []
        for row in facts:
            try:
                if row["git_commit"] is None or row["git_dirty"] is not False:
                    raise BadInput("nobody knows the sources: the record has no commit, or the tree differed from it")
                requests[request_of(row)] = None
            except BadInput as reason:
                unclear.append(str(reason))
        found.append(RecordedWalks(record, facts[0]["git_commit"], tuple(requests), tuple(unclear)))
    return found


def read_records(paths: Sequence[Path]) -> tuple[pandas.DataFrame, tuple[str, ...]]:
    """These walk records, or all that ship, as one frame, its column ``record`` their names; and the names of shipped records of rounds.

    Raises:
        RecordError: one of them is no walk record.
        BadInput: no records ship.
    """
    import pandas

    if paths:
        return pandas.concat([read_walk(path).assign(record=f"{path.resolve().parent.name}/{path.stem}") for path in paths], ignore_index=True), ()
    gpus = recorded_gpus()
    if not gpus:
        raise BadInput(f"{measurements_root()} holds no records; name the records to look at")
    frames = [read_walk_folder(measurements_root() / gpu) for gpu in gpus]
    frame = pandas.concat([one.assign(record=gpu + "/" + one["record"]) for gpu, one in zip(gpus, frames)], ignore_index=True)
    names = {f"{gpu}/{path.stem}" for gpu in gpus for path in (measurements_root() / gpu).rglob(f"*{RECORD_SUFFIX}")}
    return frame, tuple(sorted(names - set(frame["record"])))


def has_words(name: str, only: Sequence[str]) -> bool:
    """Whether a record's name has, of every condition, one of the words between its commas."""
    return all(any(word in name for word in condition.split(",")) for condition in only)


# --- two trees ------------------------------------------------------------------------------------------------------------------


def git(root: Path, *words: str) -> bytes | None:
    """What git prints in a checkout; None where it fails.

    Raises:
        BadInput: there is no git, or no history.
    """
    if not (root / ".git").exists():
        raise BadInput(f"{root} has no history to take a record's sources from; run this in a clone of the repository")
    if shutil.which("git") is None:
        raise BadInput("git is not on the path; install it, since a record's sources are taken from the history")
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True)
    return None if done.returncode else done.stdout


def require_commits(root: Path, walks: Iterable[RecordedWalks]) -> None:
    """Raise BadInput unless there is a history and it has the commits of all records whose sources are to be looked at."""
    for one in walks:
        if one.requests and git(root, "cat-file", "-e", f"{one.commit}^{{commit}}") is None:
            raise BadInput(
                f"{one.record} was made by commit {one.commit}, which the history of {root} does not have; "
                "fetch it (git fetch --unshallow, in a shallow clone), or name other records"
            )


def take_commit(root: Path, commit: str, folder: Path) -> Path:
    """Unpack what a commit plans and builds walks from into a new folder; returns it."""
    packed = git(root, "archive", commit, *PLANNED_FROM)
    if packed is None:
        raise BadInput(f"commit {commit} does not have all of {', '.join(PLANNED_FROM)}; it is older than the lab's layout, so name other records")
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder


def take_present(root: Path, folder: Path) -> Path:
    """Copy the same of the working tree, so that an edit meanwhile changes nothing; returns the folder."""
    for name in PLANNED_FROM:
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def judge(before: Kernel | str, now: Kernel | str, scratch: Path, nvcc: Nvcc) -> tuple[str, str]:
    """One of VERDICTS, and the kernel's name, or why nobody can tell."""
    for side, when in ((before, "its commit"), (now, "the working tree")):
        if isinstance(side, str):
            return UNKNOWN, f"{when}: {side}"
    try:
        same = before == now or (before.arch == now.arch and same_code(before, now, scratch, nvcc))
    except (BuildError, subprocess.TimeoutExpired) as error:
        return UNKNOWN, f"{now.name} does not compile: {error}"
    return SAME if same else CHANGED, now.name if before.name == now.name else f"{now.name}, before {before.name}"


# --- the answer -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Touched:
    """What has become of a record's instantiations: their names, sorted; of what is unknown the reasons, one for each kind of row."""

    record: str
    commit: str | None
    same: tuple[str, ...]
    changed: tuple[str, ...]
    unknown: tuple[str, ...]

    @property
    def instantiations(self) -> int:
        """All of them."""
        return len(self.same) + len(self.changed) + len(self.unknown)


def compare_sources(walks: Sequence[RecordedWalks], root: Path = ROOT) -> list[Touched]:
    """Compare what the commits of records and the working tree of a checkout compile to; nothing is kept.

    Raises:
        BadInput: there is no history, or it lacks a commit.
        BuildError: there is no CUDA compiler.
        BuildCancelled: interrupted.
    """
    require_commits(root, walks)
    nvcc = find_nvcc()
    asked: dict[str, dict[str, None]] = {}
    for one in walks:
        if one.requests:
            asked.setdefault(one.commit, {}).update(dict.fromkeys(one.requests))
    with tempfile.TemporaryDirectory(prefix="wts-touched-") as folder:
        scratch = Path(folder)
        now = make_kernels(take_present(root, scratch / "present"), list({request: None for requests in asked.values() for request in requests}))
        before = {commit: make_kernels(take_commit(root, commit, scratch / commit), list(requests)) for commit, requests in asked.items()}
        pairs = {(commit, request): (before[commit][request], now[request]) for commit, requests in asked.items() for request in requests}
        verdicts = judge_all(set(pairs.values()), scratch, nvcc)
    found = []
    for one in walks:
        told = [verdicts[pairs[one.commit, request]] for request in one.requests]
        same, changed = ({name for verdict, name in told if verdict == wanted} for wanted in (SAME, CHANGED))
        unknown = (*(reason for verdict, reason in told if verdict == UNKNOWN), *one.unclear)
        found.append(Touched(one.record, one.commit, *(tuple(sorted(texts)) for texts in (same, changed, unknown))))
    return found


Pair = tuple[Kernel | str, Kernel | str]


def judge_all(pairs: Iterable[Pair], scratch: Path, nvcc: Nvcc) -> dict[Pair, tuple[str, str]]:
    """`judge` every pair, as many at a time as there are processors; raises BuildCancelled where interrupted."""
    from tqdm import tqdm

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs: dict[Future[tuple[str, str]], Pair] = {pool.submit(judge, *pair, scratch, nvcc): pair for pair in pairs}
        try:
            done = tqdm(as_completed(jobs), desc="comparing", total=len(jobs), unit="kernel", file=sys.stderr)
            return {jobs[job]: job.result() for job in done}
        except KeyboardInterrupt:
            raise BuildCancelled("nothing is kept; --only compares fewer records") from None
        finally:
            pool.shutdown(cancel_futures=True)  # after an error nobody waits for what has not begun


def lines(found: Sequence[Touched]) -> list[str]:
    """The answer as text: a table of records, the instantiations that changed, why some are unknown, and what must be made again."""
    width = max(len("record"), *(len(one.record) for one in found))
    text = [f"{'record':{width}}  {'commit':{SHOWN_COMMIT}}  instantiations  {'  '.join(VERDICTS)}"]
    for one in found:
        counts = "  ".join(f"{len(getattr(one, verdict)):{len(verdict)}}" for verdict in VERDICTS)
        text.append(f"{one.record:{width}}  {(one.commit or 'unknown')[:SHOWN_COMMIT]:{SHOWN_COMMIT}}  {one.instantiations:{len('instantiations')}}  {counts}")
    for verdict in (CHANGED, UNKNOWN):
        for name in sorted({name for one in found for name in getattr(one, verdict)}):
            holders = dict.fromkeys(one.record for one in found if name in getattr(one, verdict))
            text.append(f"{verdict}: {name} ({', '.join(holders)})")
    again = dict.fromkeys(one.record for one in found if one.changed)
    known = ", as far as is known" * any(one.unknown for one in found)
    return [*text, f"to be made again{known}: {', '.join(again) or 'nothing'}"]


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table and return the exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.touched", description="Tell which records a change of the walk kernel's sources touches.")
    command.add_argument("records", nargs="*", type=Path, metavar="RECORD", help="walk records (default: all that ship)")
    command.add_argument("--only", action="append", default=[], metavar="WORDS",
                         help="only records with one of these words in their names, such as headline,phases; several must all hold")
    command.add_argument("--write", action="store_true", help="compare all that ship, and write which of them stand to data/same_code.toml")
    given = command.parse_args(arguments)
    if given.write:
        if given.records or given.only:
            raise BadInput("--write compares all shipped records; leave RECORD and --only out")
        require_writable(same_code_path())
    frame, rounds = read_records(given.records)
    names = [*dict.fromkeys(frame["record"]), *rounds]
    chosen = [name for name in names if has_words(name, given.only)]
    walks = recorded_walks(frame[frame["record"].isin(chosen)])
    if not walks:
        raise BadInput(f"no record with walks of ours has {' and '.join(given.only) or 'been named'}; there are {', '.join(names)}")
    compared = compare_sources(walks)
    print("\n".join(lines(compared)))
    passed_over = [name for name in chosen if name not in {one.record for one in walks}]
    if passed_over:
        print(f"not looked at, having no walks of ours or not saying what they ran: {', '.join(passed_over)}")
    if given.write:
        print(f"wrote {write_text_whole(same_code_path(), standing_runs(frame, compared))}")
    return 1 if any(one.changed or one.unknown for one in compared) else 0


def standing_runs(frame: pandas.DataFrame, compared: Sequence[Touched]) -> str:
    """Text of ``data/same_code.toml``: the runs of those records of which nothing changed or is unknown."""
    stands = {one.record for one in compared} - {one.record for one in compared if one.changed or one.unknown}
    rows = frame[frame["record"].isin(stands)].drop_duplicates("run_id").sort_values(["record", "run_id"])
    runs = [f"{json.dumps(run)} = {json.dumps(record)}" for run, record in zip(rows["run_id"], rows["record"])]
    about = "# Runs whose kernels are those of the present sources in machine code, though the sources may have changed since: python -m benchmarks.touched --write"
    return "\n".join([about, f"kernel_hash = {json.dumps(walk_sources_hash())}", "", "[runs]", *runs]) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
