"""Measures how often a number format of W2·u changes a token, and by how much it moves the logits.

The reference is the bf16 walk that engines run: latent, product and sum with the base logits are each rounded to bf16 (rounding
twice). It walks once, and leaves its tokens, its logits and its latents ``u``. Every format then multiplies those same latents:

    reference   y = bf16(base + bf16(W2·u))
    exact       c = W2·u, in float64 from the same bf16 numbers
    format      c_f as `projection_formats` says, y_f = bf16(base + c_f) (rounding once, unless asked otherwise)

A format's step is equal where argmax y_f is the reference's token. Each step has the reference's own history, so one difference
does not spread. A walk on its own history has that history too until its first difference, so the equal prefix of a free-running
walk is the number of equal steps before the first that is not: it needs no walk of its own.

Runs on a CPU or a GPU, a few walks at a time; `inputs` decide which.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import torch

from cost_model.errors import BadInput
from cost_model.workload import ROUNDINGS, require_whole, require_word
from wts_lab.accuracy import QUANTILES, accuracy_row
from wts_lab.environment import snapshot
from wts_lab.heads import DraftHead
from wts_lab.projection_formats import FORMATS, ProjectionFormat, StoredMatrix, corrections, level_shares, magnitude_shares
from wts_lab.stepwise import StepwiseWalk

CHUNK_VALUES = 1 << 22
"""Logits compared at once; a walk is not divided. Bounds the temporaries to some hundred megabytes."""

QUANTILE_VALUES = 1 << 23
"""Most errors that quantiles rest on."""

VALUES_ABOVE_A_QUANTILE = 10
"""A quantile is given only where so many values lie above it; fewer would repeat the maximum."""

BASE_SPREAD = 2.0
INPUTS_SEED = 0x1A7E57
"""Added to the seed of inputs: drawn from the seed itself they would repeat the numbers that random weights are made of."""


@dataclass(frozen=True)
class WalkInputs:
    """Inputs of some walks on one device.

    Attributes:
        base_logits: bfloat16 ``[walks, positions, at least V]``.
        anchor: int64 ``[walks]``, target ids.
        hidden: bfloat16 ``[walks, positions, hidden_size]``; None for Markov heads.

    Positions are steps, and for Domino one more before them.
    """

    base_logits: torch.Tensor
    anchor: torch.Tensor
    hidden: torch.Tensor | None = None


@dataclass(frozen=True)
class ReferenceRun:
    """What the reference leaves, one entry a step that counts: Domino's position 0 has no correction and is left out.

    Attributes:
        tokens: int64 ``[walks, steps]``, rows of ``W2``.
        logits: bfloat16 ``[walks, steps, V]``.
        base: bfloat16 ``[walks, steps, V]``.
        latents: bfloat16 ``[walks, steps, rank]``.
    """

    tokens: torch.Tensor
    logits: torch.Tensor
    base: torch.Tensor
    latents: torch.Tensor


def measure_formats(
    head: DraftHead, inputs: WalkInputs, *, formats: Sequence[ProjectionFormat] = FORMATS, rounding: str = "once"
) -> list[dict]:
    """Measure each format on a head; returns one dict a format, columns of `accuracy.COLUMNS`.

    Raises:
        BadInput: inputs that do not fit the head, an unknown rounding, weights that are not finite, or corrections that do not differ.
    """
    require_word("rounding", rounding, ROUNDINGS)
    run = run_reference(head, inputs)
    matrix = head.projection[: head.vocab_size].detach()
    exact_matrix = matrix.to(torch.float64)
    stored = {form.store: form.store(matrix) for form in formats}
    tallies = [_Tally(run.logits.numel()) for _ in formats]
    spread = _Moments()
    for walks in walk_chunks(*run.logits.shape):
        part = ReferenceRun(run.tokens[walks], run.logits[walks], run.base[walks], run.latents[walks])
        latents = part.latents.flatten(0, 1)
        exact = latents.to(torch.float64) @ exact_matrix.T
        spread.add(exact)
        for form, tally in zip(formats, tallies):
            tally.add(part, exact, corrections(stored[form.store], form.split(latents)), rounding)
    deviation = spread.deviation()
    if not deviation > 0:
        raise BadInput("the corrections of this head are all the same number: there is nothing to compare; give other weights")
    shared = {"walks": len(run.tokens), "steps": run.tokens.shape[1], "rounding": rounding, "correction_std": deviation,
              "magnitude_shares": magnitude_shares(matrix)}
    return [
        shared | {"format": form.name} | tally.columns(deviation) | _weight_columns(form, stored[form.store], matrix)
        for form, tally in zip(formats, tallies)
    ]  # fmt: skip


@torch.no_grad()
def run_reference(head: DraftHead, inputs: WalkInputs) -> ReferenceRun:
    """Walk in bf16 as engines do, over the whole vocabulary: a Domino head's candidate pool is not applied.

    Raises:
        BadInput: as `stepwise.StepwiseWalk`: inputs that do not fit the head.
    """
    if head.candidate_pool is not None:
        head = head.with_candidate_pool(None)
    base, hidden, first = inputs.base_logits[..., : head.vocab_size], inputs.hidden, head.first_step
    logits = torch.empty_like(base, memory_format=torch.contiguous_format)
    tokens = StepwiseWalk(head)(base, inputs.anchor, hidden=hidden, logits_out=logits)
    history = torch.cat([inputs.anchor[:, None], tokens], dim=1)
    state, latents = head.initial_state(inputs.anchor), []
    for position in range(first, base.shape[1]):
        latent, state = head.latent(history[:, position], None if hidden is None else hidden[:, position], state)
        latents.append(latent)
    if not latents:
        raise BadInput(f"a {head.kind} head's position 0 is no step; give base logits of at least {first + 1} positions")
    return ReferenceRun(tokens[:, first:], logits[:, first:], base[:, first:], torch.stack(latents, 1))


def random_inputs(
    head: DraftHead, walks: int, steps: int, *, base_spread: float = BASE_SPREAD, seed: int = 0, device: torch.device | str = "cpu"
) -> WalkInputs:
    """Normal base logits of a given standard deviation, normal hidden vectors, and uniform anchors.

    Drawn on the device that the walks run on, so another device draws other numbers from the same seed.

    Raises:
        BadInput: walks or steps below 1, or a spread that is no number of at least 0.
    """
    require_whole("walks", walks, 1, None)
    require_whole("steps", steps, 1, None)
    if not 0 <= base_spread < math.inf:
        raise BadInput(f"the spread of the base logits is {base_spread}; give a standard deviation of at least 0")
    generator = torch.Generator(device).manual_seed(INPUTS_SEED + seed)
    positions = steps + head.first_step

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)

    base = torch.stack([(base_spread * normal(positions, head.vocab_size)).to(torch.bfloat16) for _ in range(walks)])
    anchor = torch.randint(head.target_vocab_size, (walks,), generator=generator, device=device)
    hidden = None if head.hidden_size is None else normal(walks, positions, head.hidden_size).to(torch.bfloat16)
    return WalkInputs(base, anchor, hidden)


def measure_head(
    head: DraftHead, source: str, *, walks: int, steps: int, base_spread: float = BASE_SPREAD, seed: int = 0, rounding: str = "once"
) -> list[dict]:
    """Measure every format on a head over random inputs on the head's device; returns rows without provenance.

    Args:
        source: `random`, or what the head was read from.

    Raises:
        BadInput: as `random_inputs` and `measure_formats`.
    """
    device, shape = head.projection.device, head.shape
    inputs = random_inputs(head, walks, steps, base_spread=base_spread, seed=seed, device=device)
    sizes = ("vocab_size", "target_vocab_size", "padded_vocab_size", "rank", "hidden_size", "gru_size")
    facts = {name: getattr(shape, name) for name in sizes} | {
        "device": device.type, "head_name": shape.name, "head_source": source, "head_kind": shape.kind, "seed": seed, "base_spread": base_spread,
    }  # fmt: skip
    return [facts | row for row in measure_formats(head, inputs, rounding=rounding)]


def with_provenance(rows: Sequence[dict], **stated: object) -> list[dict]:
    """Rows of one record: those of `measure_head` with what is known of this run and machine; `stated` takes precedence."""
    known = snapshot() | {"run_id": uuid.uuid4().hex, "recorded_at_utc": datetime.now(timezone.utc).isoformat(timespec="seconds")}
    return [accuracy_row(**known | stated | row) for row in rows]


def walk_chunks(walks: int, steps: int, vocab_size: int) -> Iterator[slice]:
    """Slices of walks, each of about CHUNK_VALUES logits."""
    size = max(1, CHUNK_VALUES // (steps * vocab_size))
    return (slice(start, start + size) for start in range(0, walks, size))


def rounded_logits(base: torch.Tensor, correction: torch.Tensor, rounding: str) -> torch.Tensor:
    """float32 ``[N, V]``: logits from bf16 base logits and fp32 corrections, as `cost_model.workload.ROUNDINGS` names them."""
    if rounding == "twice":
        correction = correction.to(torch.bfloat16).to(torch.float32)
    logits = base.to(torch.float32) + correction
    return logits if rounding == "none" else logits.to(torch.bfloat16).to(torch.float32)


def _weight_columns(form: ProjectionFormat, stored: StoredMatrix, matrix: torch.Tensor) -> dict:
    """Error of the stored weights over their standard deviation, and where the format's levels lie."""
    weights = matrix.to(torch.float32)
    error = (stored.values() - weights).square_().mean().sqrt() / weights.std(correction=0)
    return {"weight_error_rms": float(error), "level_shares": None if form.levels is None else level_shares(form.levels())}


class _Moments:
    """Standard deviation of numbers that come in parts."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, 0.0, 0.0

    def add(self, values: torch.Tensor) -> None:
        """Take in a part, float64."""
        self.count += values.numel()
        self.total += float(values.sum())
        self.squares += float(values.square().sum())

    def deviation(self) -> float:
        """Of all values so far, about their mean."""
        mean = self.total / self.count
        return max(0.0, self.squares / self.count - mean * mean) ** 0.5

    def rms(self) -> float:
        """Their root mean square."""
        return (self.squares / self.count) ** 0.5


class _Errors:
    """Distribution of absolute errors: every so-many-th is kept for quantiles; largest and root mean square are of all."""

    def __init__(self, total: int) -> None:
        self._stride = -(-total // QUANTILE_VALUES) | 1  # odd, so that it does not always meet the same columns of an even vocabulary
        self._kept: list[torch.Tensor] = []
        self.largest, self.moments = 0.0, _Moments()

    def add(self, errors: torch.Tensor) -> None:
        """Take in absolute errors of any shape."""
        self._kept.append(errors.flatten()[:: self._stride].to(torch.float32))
        self.largest = max(self.largest, float(errors.max()))
        self.moments.add(errors.to(torch.float64))

    @property
    def samples(self) -> int:
        """Errors kept."""
        return sum(map(len, self._kept))

    def columns(self, prefix: str, unit: float) -> dict:
        """Quantiles and maximum over a unit; a quantile with too few values above it is None."""
        errors = torch.cat(self._kept)
        found = torch.quantile(errors, errors.new_tensor(list(QUANTILES.values()))).tolist()
        told = {
            f"{prefix}_{name}": value / unit if (1 - share) * len(errors) >= VALUES_ABOVE_A_QUANTILE else None
            for (name, share), value in zip(QUANTILES.items(), found)
        }
        return told | {f"{prefix}_max": self.largest / unit}


class _Tally:
    """What is counted of one format over all walks."""

    def __init__(self, total: int) -> None:
        self._logit, self._correction = _Errors(total), _Errors(total)
        self._equal: list[torch.Tensor] = []
        self._preference = 0.0

    def add(self, part: ReferenceRun, exact: torch.Tensor, got: torch.Tensor, rounding: str) -> None:
        """Take in some walks: exact corrections float64 ``[N, V]`` and the format's, float32 ``[N, V]``."""
        logits, wanted = rounded_logits(part.base.flatten(0, 1), got, rounding), part.logits.flatten(0, 1).to(torch.float32)
        chosen, tokens = logits.argmax(dim=-1, keepdim=True), part.tokens.flatten()[:, None]
        self._equal.append((chosen == tokens).reshape(part.tokens.shape))
        self._preference = max(self._preference, float((wanted.gather(1, tokens) - wanted.gather(1, chosen)).max()))
        self._logit.add((logits - wanted).abs_())
        self._correction.add((got - exact).abs_())

    def columns(self, deviation: float) -> dict:
        """Columns of the record; corrections' errors are over their standard deviation."""
        equal = torch.cat(self._equal).to(torch.float64)
        prefix = equal.cumprod(dim=1).sum(dim=1)
        return {
            "equal_step_share": float(equal.mean()), "prefix_length_mean": float(prefix.mean()),
            "equal_walk_share": float((prefix == equal.shape[1]).double().mean()), "preference_max": self._preference,
            "correction_error_rms": self._correction.moments.rms() / deviation, "error_samples": self._logit.samples,
            **self._correction.columns("correction_error", deviation), **self._logit.columns("logit_error", 1.0),
        }  # fmt: skip
