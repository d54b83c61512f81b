"""Accepted length from logs of drafting, and its change between two runs, with intervals that know that rounds of a prompt belong together.

A log is JSON lines or Parquet (docs/acceptance.md), one row a round of one sequence:

    prompt     text or whole number; rounds of one prompt are one cluster
    drafted    token ids of the block, or how many there were
    accepted   token ids of those that the target took, the first ones of `drafted`; or how many. The target's own token is not among them

A round yields its accepted tokens and one of the target's own, so the accepted length of a run is (accepted + rounds) / rounds over all its
rounds: what `cost_model.round` takes. Intervals are percentiles of a bootstrap over prompts: rounds of a prompt are alike, so a bootstrap over
rounds would be too sure. Where both runs answered the same prompts these are drawn together, and what makes a prompt easy cancels.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy

from cost_model.errors import BadInput
from cost_model.files import why_unreadable
from cost_model.workload import require_whole

FIELDS = ("prompt", "drafted", "accepted")
RESAMPLES = 10_000
MOST_RESAMPLES = 1_000_000
LONGEST_BLOCK = 4096
"""Most drafted tokens of a round, as of a walk: a count above it is no count of tokens, and its positions would fill the memory."""

SHARE_INSIDE = 0.95
FEW_PROMPTS = 30
"""Below so many clusters a percentile interval is narrower than it claims."""

RESAMPLES_AT_ONCE = 500


class LogError(BadInput):
    """A log cannot be read, or a row of it cannot be; the message names file and row."""


@dataclass(frozen=True)
class AcceptanceLog:
    """What a log says of each prompt; three arrays of one length.

    Attributes:
        prompts: in the order of their first rounds.
        rounds, accepted_tokens: of each prompt, int64; the target's own tokens are not counted.
        accepted_by_length: int64 ``[longest block]``, rounds in which at least k + 1 drafted tokens were accepted.
        drafted_by_length: int64, rounds that drafted at least k + 1 tokens.
    """

    prompts: tuple[str | int, ...]
    rounds: numpy.ndarray
    accepted_tokens: numpy.ndarray
    accepted_by_length: numpy.ndarray
    drafted_by_length: numpy.ndarray

    @property
    def accepted_length(self) -> float:
        """Tokens that a round yields on average, the target's own among them."""
        return 1.0 + float(self.accepted_tokens.sum() / self.rounds.sum())

    @property
    def position_shares(self) -> list[float]:
        """Share of the rounds that drafted a position whose token there was accepted, position by position."""
        return (self.accepted_by_length / self.drafted_by_length).tolist()


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; `told` is how the command line takes it (`--accepted-length`)."""

    value: float
    low: float
    high: float

    @property
    def told(self) -> str:
        """VALUE:LOW:HIGH."""
        return f"{self.value:.4g}:{self.low:.4g}:{self.high:.4g}"


@dataclass(frozen=True)
class LengthChange:
    """Accepted length of two runs and the change between them.

    Attributes:
        before, after: accepted lengths. difference: after − before. ratio: after / before.
        is_paired: whether both runs answered the same prompts, so that these were drawn together.
        prompts_before, prompts_after, rounds_before, rounds_after: how many.
    """

    before: Estimate
    after: Estimate
    difference: Estimate
    ratio: Estimate
    is_paired: bool
    prompts_before: int
    prompts_after: int
    rounds_before: int
    rounds_after: int

    @property
    def is_distinguishable(self) -> bool:
        """Whether the interval of the difference leaves out 0."""
        return self.difference.low > 0 or self.difference.high < 0

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "is_distinguishable": self.is_distinguishable}


def read_log(path: Path | str) -> AcceptanceLog:
    """Read a log; the file's name says the form, ``.jsonl`` or ``.parquet``.

    Raises:
        LogError: the file cannot be read, is empty, or has another form; a row lacks a field or has one that cannot be.
    """
    path = Path(path)
    readers = {".jsonl": _json_rows, ".parquet": _parquet_rows}
    if path.suffix not in readers:
        raise LogError(f"{path}: a log is one of {', '.join(readers)}, by the end of its name")
    return gather(readers[path.suffix](path), str(path))


def gather(rows: Iterable[Mapping[str, Any]], source: str = "the log") -> AcceptanceLog:
    """Count rows, each with the three fields, by prompt; raises as `read_log`."""
    found: dict[str | int, list[int]] = {}
    accepted_by_length: list[int] = []
    drafted_by_length: list[int] = []
    for number, row in enumerate(rows, 1):
        try:
            prompt, drafted, accepted = _checked(row)
        except BadInput as error:
            raise LogError(f"{source}, row {number}: {error}") from error
        counts = found.setdefault(prompt, [0, 0])
        counts[0] += 1
        counts[1] += accepted
        for by_length, length in ((accepted_by_length, accepted), (drafted_by_length, drafted)):
            by_length += [0] * (drafted - len(by_length))
            for place in range(length):
                by_length[place] += 1
    if not found:
        raise LogError(f"{source}: holds no round")
    longest = len(drafted_by_length)
    accepted_by_length += [0] * (longest - len(accepted_by_length))
    counts = numpy.array(list(found.values()), dtype=numpy.int64)
    return AcceptanceLog(tuple(found), counts[:, 0], counts[:, 1], numpy.array(accepted_by_length), numpy.array(drafted_by_length))


def accepted_length(log: AcceptanceLog, *, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Accepted length of one run with its interval.

    Raises:
        BadInput: fewer than two prompts, so that nothing says how prompts differ; `resamples` or `seed` out of range.
    """
    _require_prompts(log)
    return _estimate(log.accepted_length, _resampled(log, _generator(seed), resamples))


def length_change(before: AcceptanceLog, after: AcceptanceLog, *, resamples: int = RESAMPLES, seed: int = 0) -> LengthChange:
    """Accepted length of two runs, and by how much it changed.

    Raises:
        BadInput: fewer than two prompts in either, or runs that share some of their prompts but not all, which are neither one
            sample nor two.
    """
    for log in (before, after):
        _require_prompts(log)
    shared = set(before.prompts) & set(after.prompts)
    is_paired = len(shared) == len(before.prompts) == len(after.prompts)
    if shared and not is_paired:
        raise BadInput(f"the runs share {len(shared)} prompts, the first log has {len(before.prompts)} and the second {len(after.prompts)}; "
                       "compare logs of the same prompts, or of entirely different ones")  # fmt: skip
    generator = _generator(seed)
    if is_paired:
        order = {prompt: place for place, prompt in enumerate(after.prompts)}
        second = [order[prompt] for prompt in before.prompts]
        drawn = _resampled(before, generator, resamples, (after.rounds[second], after.accepted_tokens[second]))
    else:
        drawn = numpy.concatenate([_resampled(log, generator, resamples) for log in (before, after)])
    first, last = drawn
    was, now = before.accepted_length, after.accepted_length
    return LengthChange(
        _estimate(was, first), _estimate(now, last), _estimate(now - was, last - first), _estimate(now / was, last / first), is_paired,
        len(before.prompts), len(after.prompts), int(before.rounds.sum()), int(after.rounds.sum()),
    )  # fmt: skip


def _generator(seed: int) -> numpy.random.Generator:
    """The generator of a bootstrap."""
    require_whole("seed", seed, 0, None)
    return numpy.random.default_rng(seed)


def _resampled(
    log: AcceptanceLog, generator: numpy.random.Generator, resamples: int, second: tuple[numpy.ndarray, numpy.ndarray] | None = None
) -> numpy.ndarray:
    """Accepted lengths of bootstrap samples, ``[1 or 2, resamples]``: prompts drawn with replacement, all rounds of each with it.

    Args:
        second: rounds and accepted tokens of the same prompts in another run, which are drawn with them.
    """
    require_whole("resamples", resamples, 100, MOST_RESAMPLES)
    count = len(log.prompts)
    runs = [(log.rounds, log.accepted_tokens), *([second] if second else [])]
    drawn = []
    for start in range(0, resamples, RESAMPLES_AT_ONCE):
        size = min(RESAMPLES_AT_ONCE, resamples - start)
        times = generator.multinomial(count, numpy.full(count, 1 / count), size=size)
        drawn.append([1.0 + (times @ accepted) / (times @ rounds) for rounds, accepted in runs])
    return numpy.concatenate(drawn, axis=1)


def _estimate(value: float, drawn: numpy.ndarray) -> Estimate:
    """A value with the percentiles that hold SHARE_INSIDE of the resampled ones."""
    tail = (1 - SHARE_INSIDE) / 2
    low, high = numpy.quantile(drawn, (tail, 1 - tail))
    return Estimate(value, float(low), float(high))


def _require_prompts(log: AcceptanceLog) -> None:
    """Raise BadInput where there is nothing to resample."""
    if len(log.prompts) < 2:
        raise BadInput(f"a log has {len(log.prompts)} prompt; an interval needs two or more, and is trustworthy from about {FEW_PROMPTS} on")


# --- rows -----------------------------------------------------------------------------------------------------------------


def _json_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Objects of a file of JSON lines; empty lines are passed over."""
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise LogError(f"{path}, line {number}: is no JSON ({error})") from error
    except (OSError, UnicodeDecodeError) as error:
        raise LogError(f"{path}: cannot be read ({why_unreadable(error)})") from error


def _parquet_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Rows of a Parquet file, the three columns alone."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            missing = [name for name in FIELDS if name not in file.schema_arrow.names]
            if missing:
                raise LogError(f"{path}: lacks the columns {', '.join(missing)}")
            for batch in file.iter_batches(columns=list(FIELDS)):
                yield from batch.to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise LogError(f"{path}: cannot be read ({why_unreadable(error)})") from error


def _checked(row: Any) -> tuple[str | int, int, int]:
    """Prompt, and numbers of drafted and accepted tokens."""
    if not isinstance(row, Mapping):
        raise BadInput(f"is {row!r}; it must be an object with {', '.join(FIELDS)}")
    missing = [name for name in FIELDS if name not in row]
    if missing:
        raise BadInput(f"lacks {', '.join(missing)}")
    prompt, drafted, accepted = (row[name] for name in FIELDS)
    if isinstance(prompt, bool) or not isinstance(prompt, (str, int)):
        raise BadInput(f"prompt is {prompt!r}; it must be a text or a whole number")
    if isinstance(drafted, list) and isinstance(accepted, list) and accepted != drafted[: len(accepted)]:
        raise BadInput(f"accepted is {accepted!r}, which are not the first of drafted, {drafted!r}; the target's own token is not among them")
    counts = [_count(name, value) for name, value in (("drafted", drafted), ("accepted", accepted))]
    require_whole("drafted tokens", counts[0], 1, LONGEST_BLOCK)
    require_whole("accepted tokens", counts[1], 0, counts[0])
    return prompt, counts[0], counts[1]


def _count(name: str, given: Any) -> int:
    """How many tokens a field tells of."""
    if isinstance(given, list):
        for token in given:
            require_whole(f"a token of {name}", token, 0, None)
        return len(given)
    require_whole(name, given, 0, None)
    return given
