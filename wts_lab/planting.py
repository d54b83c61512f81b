"""Planted inputs: walks whose winners visit every place of the kernel, with the awkward numbers among them.

Random weights hide faults of selection, because the same few blocks tend to win. Here a list of *targets* (rows of ``W2``) covers
every block, warp, slot, lane and row pair. The latent of target ``i`` points at the row of target ``i + 1``, so that the product
itself leads a walk from target to target: a lost warp, a swapped row pair or a wrong fragment order changes the tokens. Each
target has copies of its row elsewhere (*rivals*), one in another block and one near it, for exact ties at the top.

Kinds of steps (``KINDS``), drawn for each walk from ``PATTERN``:

- ``product``: flat noisy base logits; the product decides. ``spike``: one base logit decides against the product.
- ``tie``: the target and its copy in another block tie exactly. ``near_tie``: with its copy in the same block (the other row
  of its lane, another row of its tile, another slot of its warp, another warp, in turn).
- ``nan``: several NaN, of both signs, and +inf before them: the first NaN wins. ``inf``: several +inf, and the largest finite
  number before them. ``masked``: all −inf but one. ``all_inf``, ``all_nan``: nothing but; index 0 wins.
- ``zero``: the top is −0 and +0 (tiny weights make an underflowing correction of −0): the lower index wins.
- ``close``: 64 rows within about one bf16 step of each other, the rest far below. Which of them wins depends on every bit of
  the arithmetic; only the twin knows (``planned`` is −1).
- ``fma``: two rows that change places if one multiplication and addition are contracted (`contests.py`).
- ``random``: noise alone, in every eighth walk.

Padded columns hold +1e4, +inf and NaN throughout.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from cost_model.errors import BadInput
from wts_lab.contests import CONTRACTIONS, OUTSIDER_BASE, FmaContests, close_contest
from wts_lab.coverage import PLACES, Coverage, Layout, cover
from wts_lab.heads import MarkovHead
from wts_lab.reference import round_to_bf16

__all__ = ["KINDS", "PLACES", "Coverage", "Layout", "PlantedInputs", "cover", "plant", "plan_targets", "walks_needed"]

KINDS = ("product", "spike", "tie", "near_tie", "nan", "inf", "masked", "all_inf", "all_nan", "zero", "close", "fma", "random")
PATTERN = ("product", "tie") * 4 + ("spike", "near_tie", "nan") * 2 + ("close", "fma") + ("inf", "masked", "all_inf", "all_nan")
CONTEST_KINDS = ("close", "fma")  # only the arithmetic knows their winner
UNLED_KINDS = ("all_inf", "all_nan", "zero", "close", "fma")  # their winner is no target and leads to none
RANDOM_EVERY = 8  # one walk in so many is random
ZERO_EVERY = 16  # one walk in so many begins with a step of kind zero

ALIGNED_CORRECTION = 16.0  # what the product adds to the row that it points at; other rows get a spread below 3.1
TARGET_BASE = 0.5
LOW_RANK_LIFT = 8.0  # added to the target's base logit below rank 64, where other rows come too close
RIVAL_BASE = -8.0  # base logit of copies that must lose
SPIKE_BASE = 64.0
LARGEST_FINITE_BITS = 0x7F7F
POSITIVE_INF_BITS, NEGATIVE_INF_BITS = 0x7F80, 0xFF80
NAN_BITS = (0x7FC0, 0xFFC0, 0x7F81, 0x7FFF)
POSITIVE_ZERO_BITS, NEGATIVE_ZERO_BITS = 0x0000, 0x8000
PADDING_BITS = (int(round_to_bf16(np.float32(1e4)).item()), POSITIVE_INF_BITS, NAN_BITS[0])
TINY_LATENT, TINY_ROW = 2.0**-60, 2.0**-115  # their product underflows to zero, their scales are normal numbers


@dataclass(frozen=True)
class PlantedInputs:
    """A head and the inputs of ``walks`` walks over it, all on one device.

    ``base_logits`` bf16 ``[walks, steps, columns]`` (columns beyond the head's vocabulary are padding), ``anchors`` int64
    ``[walks]`` in target ids, ``draft_to_target`` int64 ``[V]`` or None; ``kinds`` ``[walks, steps]`` and ``planned`` int64
    ``[walks, steps]`` (the row of ``W2`` meant to win, −1 where noise decides) on the host.
    """

    head: MarkovHead
    base_logits: torch.Tensor
    anchors: torch.Tensor
    draft_to_target: torch.Tensor | None
    kinds: np.ndarray
    planned: np.ndarray
    layout: Layout


@dataclass(frozen=True)
class _Plan:
    """Rows of each role: ``targets [n]``, their rivals in another block ``across [n]`` and near ``near [n]`` (−1: none),
    the two rows of tiny weights and the token with a tiny latent ``tiny [3]`` (empty where the vocabulary is too small)."""

    targets: np.ndarray
    across: np.ndarray
    near: np.ndarray
    tiny: np.ndarray


def plan_targets(layout: Layout, seed: int = 0, *, tiles_from_slot: int | None = None) -> np.ndarray:
    """Rows that together cover every kind in ``PLACES``; int64 ``[targets]``, shuffled.

    Each (warp, slot, row in tile) gets one row, in blocks taken in turn; then each warp of each block that is still missing.

    :param tiles_from_slot: also one row in every tile whose slot is at least this (the streamed tiles of a placement).
    """
    rng = np.random.default_rng(seed)
    chosen: set[int] = set()
    for warp in range(layout.warps):
        blocks = rng.permutation(layout.grid_blocks)
        places = [(slot, row) for slot in range(layout.slots) for row in range(16)]
        rng.shuffle(places)
        for turn, (slot, row) in enumerate(places):
            candidates = (layout.row_of(blocks[(turn + extra) % len(blocks)], warp, slot, row) for extra in range(len(blocks)))
            chosen.add(next((candidate for candidate in candidates if candidate >= 0), -1))
    chosen.discard(-1)
    missing = cover(np.array(sorted(chosen)), layout).missing
    for block, warp in missing["block_warp"]:
        chosen.add(max(layout.row_of(block, warp, 0, int(row)) for row in (rng.integers(16), 0)))
    if tiles_from_slot is not None:
        missing_tiles = np.array(cover(np.array(sorted(chosen)), layout).missing["tile"], dtype=np.int64).reshape(-1)
        slots = layout.locate(missing_tiles * 16)["slot"]
        for tile in missing_tiles[slots >= tiles_from_slot]:
            chosen.add(min(int(tile) * 16 + int(rng.integers(16)), layout.vocab_size - 1))
    return rng.permutation(np.array(sorted(chosen), dtype=np.int64))


def walks_needed(layout: Layout, steps: int, *, tiles_from_slot: int | None = None) -> int:
    """Walks after which every target has had a turn, and so has won; random walks and steps without target allowed for."""
    turns = len(plan_targets(layout, tiles_from_slot=tiles_from_slot))
    share = (1 - 1 / RANDOM_EVERY) * (1 - (4 / len(PATTERN) + 1 / ZERO_EVERY))
    return int(np.ceil(1.1 * turns / share / steps)) + 2


def plant(
    layout: Layout,
    rank: int,
    *,
    steps: int = 16,
    walks: int = 256,
    seed: int = 0,
    device: torch.device | str = "cpu",
    padded_vocab_size: int | None = None,
    target_vocab_size: int | None = None,
    tiles_from_slot: int | None = None,
    exact_bf16: bool = False,
) -> PlantedInputs:
    """Make a head and the inputs of many walks over it; the module docstring says what is in them.

    :param padded_vocab_size: rows of ``W2`` and columns of the base logits; default: no padding.
    :param target_vocab_size: rows of ``W1``; where given, draft ids map to target ids by a random injection.
    :param exact_bf16: weights are small integers times powers of two, so that bf16 products and their sums are exact in fp32
        in any order (no ``zero`` steps then).
    :raises BadInput: padded or target sizes below the vocabulary.
    """
    vocab_size = layout.vocab_size
    columns, latent_rows = padded_vocab_size or vocab_size, target_vocab_size or vocab_size
    if columns < vocab_size or latent_rows < vocab_size:
        raise BadInput(f"padded and target sizes must be at least the vocabulary, {vocab_size}; got {columns} and {latent_rows}")
    rng = np.random.default_rng([seed, 1])
    plan = _plan(layout, plan_targets(layout, seed, tiles_from_slot=tiles_from_slot), rng, tiny=not exact_bf16)
    generator = torch.Generator(device=device).manual_seed(seed)
    w1, w2 = _weights(plan, rank, columns, vocab_size, generator, exact_bf16)
    kinds, planned, draft_anchors = _schedule(plan, layout, walks, steps, rng)
    if exact_bf16:  # no int8x2 arithmetic to be contracted
        kinds[kinds == "fma"] = "close"
    base_logits = _base_logits(plan, kinds, planned, columns, rank, layout, rng, generator)
    history = np.concatenate([draft_anchors[:, None], planned[:, :-1]], axis=1)
    _plant_contests(base_logits, kinds, history, w1, w2[:vocab_size], rng)
    mapping, anchors = None, torch.from_numpy(draft_anchors).to(device)
    if target_vocab_size is not None:
        mapping = torch.from_numpy(rng.permutation(latent_rows)[:vocab_size].copy()).to(device)
        table = torch.zeros((latent_rows, rank), dtype=w1.dtype, device=device)
        table[mapping] = w1
        w1, anchors = table, mapping[anchors]
    return PlantedInputs(MarkovHead(w1, w2, vocab_size=vocab_size), base_logits, anchors, mapping, kinds, planned, layout)


def _plan(layout: Layout, targets: np.ndarray, rng: np.random.Generator, *, tiny: bool) -> _Plan:
    """Give every target its rivals among the rows that nothing else uses."""
    free = np.ones(layout.vocab_size, dtype=bool)
    free[targets] = False
    free[0] = False  # wins steps of its own
    tiny_rows = np.flatnonzero(free)
    tiny_rows = np.sort(rng.choice(tiny_rows, 3, replace=False)) if tiny and len(tiny_rows) >= 3 else np.zeros(0, dtype=np.int64)
    free[tiny_rows] = False
    at = layout.locate(targets)
    block_rows = layout.first_tiles * 16
    across, near = np.full(len(targets), -1), np.full(len(targets), -1)
    for i, target in enumerate(targets):
        first, end = block_rows[at["block"][i]], min(block_rows[at["block"][i] + 1], layout.vocab_size)
        near[i] = _pick(free, _near_rows(int(target), i, first, end, layout, rng))
        later = rng.integers(end, layout.vocab_size, 24) if end < layout.vocab_size else np.zeros(0, dtype=np.int64)
        earlier = rng.integers(0, first, 24) if first > 0 else np.zeros(0, dtype=np.int64)
        across[i] = _pick(free, np.concatenate([later, earlier] if i % 8 else [earlier, later]))
    return _Plan(targets, across, near, tiny_rows)


def _near_rows(target: int, turn: int, first: int, end: int, layout: Layout, rng: np.random.Generator) -> np.ndarray:
    """Candidate rows for a rival in the target's own block, the closest relation wanted first (it changes with ``turn``)."""
    tile = target - target % 16
    stride = 16 * layout.warps
    relations = (
        np.array([target ^ 1]),  # the other row of the lane's pair
        tile + rng.permutation(16),  # another row of the tile
        np.arange(first + (target - first) % stride, end, stride),  # the same row in other slots of the warp
        rng.integers(first, end, 24),  # anywhere in the block: mostly other warps
    )
    ordered = np.concatenate([relations[(turn + offset) % len(relations)] for offset in range(len(relations))])
    return ordered[(ordered != target) & (ordered < end)]


def _pick(free: np.ndarray, candidates: np.ndarray) -> int:
    """The first free candidate, now taken; −1 where none is free."""
    for candidate in candidates:
        if free[candidate]:
            free[candidate] = False
            return int(candidate)
    return -1


def _weights(plan: _Plan, rank, columns, vocab_size, generator, exact_bf16) -> tuple[torch.Tensor, torch.Tensor]:
    """``W1`` bf16 ``[V, r]`` and ``W2`` bf16 ``[columns, r]``: random, with copies, aligned latents and tiny rows planted."""
    device = generator.device
    # mean of |w||u| is 0.47: this makes the aligned product about ALIGNED_CORRECTION (a power of two where exactness asks)
    latent_scale = ALIGNED_CORRECTION / (0.47 * rank)
    latent_scale = 2.0 ** round(np.log2(latent_scale)) if exact_bf16 else latent_scale

    def signed(rows: int, low: float) -> torch.Tensor:
        """Random signs times magnitudes from ``low`` to 1, in eighths where exactness asks."""
        magnitude = torch.rand((rows, rank), generator=generator, device=device) * (1 - low) + low
        magnitude = torch.round(magnitude * 8) / 8 if exact_bf16 else magnitude
        return torch.where(torch.rand((rows, rank), generator=generator, device=device) < 0.5, -magnitude, magnitude)

    w2, w1 = signed(columns, 0.25), signed(vocab_size, 0.5)
    targets = torch.from_numpy(plan.targets).to(device)
    following = torch.sign(w2[targets.roll(-1)])
    w1[targets] = w1[targets].abs() * following
    for rivals in (plan.across, plan.near):
        present = torch.from_numpy(np.flatnonzero(rivals >= 0)).to(device)
        rows = torch.from_numpy(rivals).to(device)[present]
        w2[rows] = w2[targets[present]]
        w1[rows] = w1[targets[present]]
    w1 *= latent_scale
    if len(plan.tiny):
        first, second, token = plan.tiny
        w1[token] = torch.sign(w1[token]) * TINY_LATENT
        for row in (first, second):  # against the latent: a negative product, too small for any fp32 number
            w2[row] = -torch.sign(w1[token]) * w2[row].abs() * TINY_ROW
    return w1.to(torch.bfloat16), w2.to(torch.bfloat16)


def _schedule(plan: _Plan, layout: Layout, walks: int, steps: int, rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Kinds and planned winners ``[walks, steps]`` and the anchors (draft ids) ``[walks]``."""
    kinds = np.empty((walks, steps), dtype="<U8")
    planned = np.full((walks, steps), -1, dtype=np.int64)
    anchors = np.zeros(walks, dtype=np.int64)
    queue = _Queue(plan)
    for walk in range(walks):
        if walk % RANDOM_EVERY == RANDOM_EVERY - 1:
            kinds[walk], anchors[walk] = "random", rng.integers(layout.vocab_size)
            continue
        anchors[walk] = queue.last_target()
        cycles = -(-steps // len(PATTERN))
        kinds[walk] = np.concatenate([rng.permutation(PATTERN) for _ in range(cycles)])[:steps]
        if walk % ZERO_EVERY == 1 and len(plan.tiny):
            anchors[walk], kinds[walk, 0] = plan.tiny[2], "zero"
        for step in range(steps):
            before = str(kinds[walk, step - 1]) if step else "product"
            kinds[walk, step], planned[walk, step] = queue.take(str(kinds[walk, step]), before)
    return kinds, planned, anchors


class _Queue:
    """Deals out targets in order, again and again, and settles the kind of each step."""

    def __init__(self, plan: _Plan) -> None:
        self.plan, self.position = plan, 0
        self.has_won = np.zeros(len(plan.targets), dtype=bool)

    def last_target(self) -> int:
        """The token that leads to the next target."""
        return int(self.plan.targets[(self.position - 1) % len(self.plan.targets)])

    def take(self, wanted: str, before: str) -> tuple[str, int]:
        """Kind and winning row of the next step, given the kind of the step before."""
        led_astray = before in UNLED_KINDS  # the previous winner does not lead to the next target
        if wanted in CONTEST_KINDS and before in CONTEST_KINDS:
            wanted = "spike"  # a contest is made for a known token
        if wanted in CONTEST_KINDS:
            return wanted, -1
        if wanted in UNLED_KINDS:
            return wanted, int(self.plan.tiny[0]) if wanted == "zero" else 0
        index = self.position % len(self.plan.targets)
        must_win = not self.has_won[index]  # on a later turn a rival before it may win the tie instead
        self.position += 1
        target = int(self.plan.targets[index])
        rival = {"tie": self.plan.across, "near_tie": self.plan.near}.get(wanted, self.plan.targets)[index]
        kind = wanted
        if rival < 0 or led_astray or (must_win and rival < target):
            kind = {"tie": "inf", "near_tie": "product"}.get(wanted, wanted)  # +inf ties too, wherever the latent leads
        if led_astray and kind == "product":
            kind = "spike"
        winner = min(target, int(rival)) if kind in ("tie", "near_tie") else target
        self.has_won[index] |= winner == target
        return kind, winner


def _base_logits(plan, kinds, planned, columns, rank, layout, rng, generator) -> torch.Tensor:
    """bf16 ``[walks, steps, columns]``: noise by kind, then the planted values, then the padding."""
    walks, steps = kinds.shape
    device = generator.device
    base = torch.empty((walks, steps, columns), dtype=torch.bfloat16, device=device)
    for walk in range(walks):
        noise = torch.randn((steps, columns), generator=generator, device=device)
        base[walk] = noise * (3.0 if kinds[walk, 0] == "random" else 1.0)
    bits = base.view(torch.int16).view(walks * steps, columns)
    flat_kinds = kinds.reshape(-1)
    for kind, fill in (("masked", NEGATIVE_INF_BITS), ("all_inf", NEGATIVE_INF_BITS), ("all_nan", NAN_BITS[1])):
        bits[torch.from_numpy(np.flatnonzero(flat_kinds == kind)).to(device)] = _as_int16(fill)
    for index in np.flatnonzero(flat_kinds == "zero"):
        row = base.view(walks * steps, columns)[int(index)]  # below zero everywhere, but for the edits
        row.copy_(-1 - row.abs())
    index_of_target = {int(row): i for rows in (plan.targets, plan.across, plan.near) for i, row in enumerate(rows) if row >= 0}
    steps_at, rows_at, values_at = [], [], []
    turn = 0
    for index, (kind, winner) in enumerate(zip(flat_kinds, planned.reshape(-1), strict=True)):
        turn += kind == "zero"
        for row, value in _edits(kind, int(winner), turn, plan, index_of_target, rank, layout, rng).items():
            steps_at.append(index), rows_at.append(row), values_at.append(_as_int16(value))
    where = tuple(torch.tensor(indices, dtype=torch.int64, device=device) for indices in (steps_at, rows_at))
    bits[where] = torch.tensor(values_at, dtype=torch.int16, device=device)
    padding = torch.tensor([_as_int16(value) for value in PADDING_BITS], dtype=torch.int16, device=device)
    bits[:, layout.vocab_size :] = padding[torch.arange(columns - layout.vocab_size, device=device) % len(PADDING_BITS)]
    return base


def _plant_contests(base_logits, kinds, history, w1, w2, rng) -> None:
    """Set the base logits of ``close`` and ``fma`` steps; an ``fma`` step without such a row becomes ``close``, in ``kinds`` too.

    ``history`` ``[walks, steps]``: the draft id before each step, known for these. ``w2`` ``[V, r]`` without padding.
    """
    finder = FmaContests(w1, w2) if (kinds == "fma").any() else None
    for turn, (walk, step) in enumerate(np.argwhere(np.isin(kinds, ("close", "fma")))):
        contest, previous = None, int(history[walk, step])
        if kinds[walk, step] == "fma":
            contest = finder.find(previous, CONTRACTIONS[turn % len(CONTRACTIONS)], rng)
        if contest is None:
            kinds[walk, step] = "close"
            contest = close_contest(w2, w1[previous], rng)
        row = base_logits[walk, step, : len(w2)]
        row.add_(OUTSIDER_BASE)
        row[contest[0]] = contest[1]


def _edits(kind, winner, turn, plan, index_of_target, rank, layout, rng) -> dict[int, int]:
    """bf16 bit patterns to plant in one step, by row of ``W2``."""
    if kind in ("random", *CONTEST_KINDS, "all_inf", "all_nan"):
        return {}
    if kind == "zero":
        signs = (NEGATIVE_ZERO_BITS, POSITIVE_ZERO_BITS)[:: 1 if turn % 2 else -1]  # −0 before +0, then the other way round
        return {int(plan.tiny[0]): signs[0], int(plan.tiny[1]): signs[1]}
    if kind in ("nan", "inf"):
        return _special_edits(kind, winner, layout.vocab_size, rng)
    if kind in ("spike", "masked"):
        return {winner: _bits(SPIKE_BASE if kind == "spike" else -1e30)}
    target = index_of_target[winner]
    top = _bits(TARGET_BASE + (LOW_RANK_LIFT if rank < 64 else 0.0))
    edits = {int(rivals[target]): _bits(RIVAL_BASE) for rivals in (plan.across, plan.near) if rivals[target] >= 0}
    edits[int(plan.targets[target])] = top
    rivals = {"tie": plan.across, "near_tie": plan.near}.get(kind)
    if rivals is not None:
        edits[int(rivals[target])] = top
    return edits


def _special_edits(kind: str, winner: int, vocab_size: int, rng: np.random.Generator) -> dict[int, int]:
    """NaN or +inf at the winner and at three later rows; something almost as large at an earlier one."""
    edits = {}
    if winner > 0:
        edits[int(rng.integers(winner))] = POSITIVE_INF_BITS if kind == "nan" else LARGEST_FINITE_BITS
    for row in (winner, winner + 1, *rng.integers(winner, vocab_size, 2)):
        if row < vocab_size:
            edits[int(row)] = int(rng.choice(NAN_BITS)) if kind == "nan" else POSITIVE_INF_BITS
    return edits


def _bits(value: float) -> int:
    """bf16 bit pattern of a number."""
    return int(round_to_bf16(np.float32(value)).item())


def _as_int16(bits: int) -> int:
    """A bit pattern as the int16 that torch stores."""
    return bits - 0x10000 if bits >= 0x8000 else bits
