"""Planted inputs do what they claim: planned winners win, every place wins, and faults of a kernel change tokens.

The faults are put into a copy of the walk on the CPU: a mutation that no token shows would go unseen on a GPU too.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from wts_lab import reference  # noqa: E402
from wts_lab.planting import KINDS, PATTERN, Layout, cover, plan_targets, plant, walks_needed  # noqa: E402

LAYOUT = Layout(vocab_size=2600, grid_blocks=6, warps=4)  # 27 or 28 tiles a block, 7 slots a warp
RANK, STEPS, COLUMNS = 64, 16, 2640


class Case:
    """Planted inputs with their quantised head, and walks over them with one thing changed."""

    def __init__(self, layout: Layout, **options) -> None:
        walks = max(walks_needed(layout, STEPS), 32)
        self.layout = layout
        self.planted = plant(layout, RANK, steps=STEPS, walks=walks, seed=3, **options)
        head = self.planted.head
        self.w_q, self.w_scale = reference.twin_quantize_rows(head.markov_w2.weight.float().numpy())
        self.latents = reference.twin_quantize_latents(head.markov_w1.weight.float().numpy())
        self.bits = self.planted.base_logits.view(torch.uint16).numpy()
        self.anchors = self.planted.anchors.numpy()
        self.mapping = None if self.planted.draft_to_target is None else self.planted.draft_to_target.numpy()

    def walk(self, *, rounding="once", vocab_size=None, **changed) -> np.ndarray:
        """Draft ids ``[walks, steps]``; ``changed`` replaces w_q, w_scale or latents."""
        head = (changed.get("w_q", self.w_q), changed.get("w_scale", self.w_scale), *changed.get("latents", self.latents))
        vocab_size = vocab_size or self.layout.vocab_size
        options = {"vocab_size": vocab_size, "rounding": rounding, "draft_to_target": self.mapping}
        return reference.twin_walks(*head, self.bits, self.anchors, **options).draft_ids

    def walk_selecting(self, choose, rounding="once") -> np.ndarray:
        """Draft ids with ``choose(values[walks, V]) -> winners`` in place of the selection."""
        projection = reference.Int8x2Projection(self.w_q, self.w_scale, *self.latents)
        rows = slice(0, self.layout.vocab_size)
        previous, chosen = self.anchors, []
        for step in range(STEPS):
            base = reference.bf16_to_float(self.bits[:, step, rows])
            previous = choose(reference.combine(base, projection.corrections(previous, rows), rounding))
            chosen.append(previous)
        return np.stack(chosen, axis=1)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case(LAYOUT, padded_vocab_size=COLUMNS)


@pytest.fixture(scope="module")
def tokens(case) -> np.ndarray:
    return case.walk()


# --- what is promised


def test_every_planned_winner_wins(case, tokens):
    planned = case.planted.planned
    assert np.array_equal(tokens[planned >= 0], planned[planned >= 0])
    assert ((planned < 0) == np.isin(case.planted.kinds, ("random", "close", "fma"))).all()


def test_every_place_wins(case, tokens):
    assert cover(tokens, LAYOUT).complete, cover(tokens, LAYOUT).describe()


def test_every_kind_of_step_is_there_and_one_in_ten_ties_across_blocks(case):
    kinds = case.planted.kinds
    assert set(np.unique(kinds)) == set(KINDS)
    assert (kinds == "tie").mean() >= 0.1
    assert set(PATTERN) | {"zero", "random"} == set(KINDS)


def values_at_the_top(case, tokens, kind) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each step of a kind: float32 values of all rows, and the rows whose key is the largest."""
    projection = reference.Int8x2Projection(case.w_q, case.w_scale, *case.latents)
    history = np.concatenate([case.anchors[:, None], tokens[:, :-1]], axis=1)
    found = []
    for walk, step in np.argwhere(case.planted.kinds == kind)[:40]:
        rows = slice(0, LAYOUT.vocab_size)
        base = reference.bf16_to_float(case.bits[walk, step, rows])
        values = reference.combine(base, projection.corrections(history[walk, step : step + 1], rows)[0])
        keys = reference.ordered_value(values)
        found.append((values, np.flatnonzero(keys == keys.max())))
    return found


def test_ties_are_exact_and_where_they_are_said_to_be(case, tokens):
    for _, tied in values_at_the_top(case, tokens, "tie"):
        assert len(tied) == 2 and len(set(LAYOUT.locate(tied)["block"])) == 2
    relations = set()
    for _, tied in values_at_the_top(case, tokens, "near_tie"):
        at = LAYOUT.locate(tied)
        assert len(tied) == 2 and at["block"][0] == at["block"][1]
        relations.add(tuple(bool(at[name][0] == at[name][1]) for name in ("warp", "slot")) + (bool(tied[0] ^ 1 == tied[1]),))
    assert {(True, True, True), (True, True, False), (True, False, False)} <= relations
    assert any(not same_warp for same_warp, _, _ in relations), "some ties are between warps"


def test_close_contests_are_close(case, tokens):
    for values, tied in values_at_the_top(case, tokens, "close"):
        at_the_top = np.sort(values)[-64:]
        assert at_the_top[0] > 1.9 and at_the_top[-1] < 2.1 and np.sort(values)[-65] < -30
        assert 1 <= len(tied) < 64


def test_special_steps_hold_what_they_claim(case, tokens):
    for values, tied in values_at_the_top(case, tokens, "nan"):
        assert np.isnan(values[tied]).all() and (len(tied) >= 2 or tied[0] == LAYOUT.vocab_size - 1)
    for values, tied in values_at_the_top(case, tokens, "inf"):
        assert np.isposinf(values[tied]).all()
    for values, tied in values_at_the_top(case, tokens, "masked"):
        assert len(tied) == 1 and np.isneginf(np.delete(values, tied)).all()
    for values, _ in values_at_the_top(case, tokens, "all_inf"):
        assert np.isneginf(values).all()
    zeros = values_at_the_top(case, tokens, "zero")
    assert zeros
    for values, tied in zeros:
        assert (values[tied] == 0).all() and set(np.signbit(values[tied])) == {True, False}, "both −0 and +0 are at the top"


def test_padding_holds_large_numbers(case):
    padding = reference.bf16_to_float(case.bits[:, :, LAYOUT.vocab_size :])
    assert (padding[..., 0] == 9984).all() and np.isposinf(padding[..., 1]).all() and np.isnan(padding[..., 2]).all()


def test_tiles_that_were_asked_for_all_win():
    layout = Layout(1300, 4, 3)
    planted = plant(layout, RANK, steps=STEPS, walks=walks_needed(layout, STEPS, tiles_from_slot=5), tiles_from_slot=5)
    won = planted.planned[planted.planned >= 0]
    tiles = np.arange(layout.tiles)
    wanted = tiles[layout.locate(tiles * 16)["slot"] >= 5]
    assert len(wanted) and set(wanted) <= set(won // 16)


@pytest.mark.parametrize("vocab_size", [1, 2, 5, 17, 100])
def test_small_vocabularies_work(vocab_size):
    case = Case(Layout(vocab_size, 4, 2), padded_vocab_size=vocab_size + 3)
    tokens, planned = case.walk(), case.planted.planned
    assert np.array_equal(tokens[planned >= 0], planned[planned >= 0])
    assert cover(tokens, case.layout).complete


def test_mapped_ids_give_the_same_draft_ids():
    layout = Layout(700, 4, 2)
    case = Case(layout, target_vocab_size=900)
    planned = case.planted.planned
    assert case.planted.head.target_vocab_size == 900 and len(np.unique(case.mapping)) == 700
    assert np.array_equal(case.walk()[planned >= 0], planned[planned >= 0])


@pytest.mark.parametrize("rank", [32, 512])
def test_exact_bf16_inputs_are_exact_and_go_as_planned(rank):
    layout = Layout(1500, 5, 2)
    planted = plant(layout, rank, steps=STEPS, walks=walks_needed(layout, STEPS), exact_bf16=True)
    w2, w1 = planted.head.markov_w2.weight.double(), planted.head.markov_w1.weight.double()
    step = (w2.abs().amin() * w1.abs()[w1 != 0].amin()).log2().floor()
    grid = 2.0 ** float(step - 8)  # all products are multiples of it ...
    assert torch.equal((w2[:64] @ w1[:64].T / grid).round() * grid, w2[:64] @ w1[:64].T)
    assert float((w2.abs() @ w1.abs().T).max()) / grid < 2**24, "... and no partial sum can leave 24 bits"
    bits = planted.base_logits.view(torch.uint16).numpy()
    walks = reference.twin_walks_bf16(w2.numpy(), w1.numpy(), bits, planted.anchors.numpy())
    assert np.array_equal(walks.draft_ids[planted.planned >= 0], planted.planned[planted.planned >= 0])
    assert cover(walks.draft_ids, layout).complete


@pytest.mark.parametrize("seed", range(12))
def test_a_single_step_can_be_planted(seed):
    planted = plant(Layout(60, 2, 2), 32, steps=1, walks=1, seed=seed)
    assert planted.base_logits.shape == (1, 1, 60) and planted.kinds.shape == (1, 1)


def test_one_seed_gives_one_set():
    layout = Layout(300, 2, 2)
    first, again, other = (plant(layout, 32, walks=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.base_logits.view(torch.int16), again.base_logits.view(torch.int16))
    assert torch.equal(first.head.markov_w1.weight, again.head.markov_w1.weight) and torch.equal(first.anchors, again.anchors)
    assert not np.array_equal(first.planned, other.planned)


def test_targets_of_a_large_layout_cover_it():
    layout = Layout(151936, 132, 8)
    assert cover(plan_targets(layout), layout).complete
    assert walks_needed(layout, 16) <= 256


def test_sizes_below_the_vocabulary_are_refused():
    with pytest.raises(BadInput, match="at least the vocabulary, 300; got 299"):
        plant(Layout(300, 2, 2), 32, padded_vocab_size=299)


# --- faults that must show


def losing(mask):
    """A selection that never sees the rows in ``mask``."""

    def choose(values):
        keys = reference.ordered_value(values)
        keys[:, mask] = 0
        return np.argmax(keys, axis=1)

    return choose


def last_of_equals(values):
    return values.shape[1] - 1 - np.argmax(reference.ordered_value(values)[:, ::-1], axis=1)


def raw_bits(values):
    """Orders −0 below +0."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
    return np.argmax(np.where(np.isnan(values), np.uint32(0xFFFFFFFF), keys), axis=1)


def nan_ignored(values):
    return np.argmax(np.where(np.isnan(values), -np.inf, values), axis=1)


def negative_nan_low(values):
    bits = np.ascontiguousarray(values).view(np.uint32)
    keys = reference.ordered_value(values)
    return np.argmax(np.where(np.isnan(values) & (bits >> 31 == 1), np.uint32(0), keys), axis=1)


def infinity_not_finite(values):
    return np.argmax(np.where(np.isinf(values), -np.inf, np.where(np.isnan(values), np.inf, values)), axis=1)


def starting_from_zero(values):
    """A running best that starts at +0: negative maxima are lost."""
    keys = np.maximum(reference.ordered_value(values), np.uint32(0x80000000))
    return np.argmax(keys, axis=1)


def swapped_pairs(values):
    winner = np.argmax(reference.ordered_value(values), axis=1)
    return np.minimum(winner ^ 1, values.shape[1] - 1)


def later_warp_wins_ties(values):
    """Tiles merged in the wrong order: among equals the highest warp, then the lowest index."""
    keys = reference.ordered_value(values).astype(np.int64)
    warp = LAYOUT.locate(np.arange(values.shape[1]))["warp"]
    return np.argmax((keys << 4) + warp, axis=1)


def later_slot_wins_ties(values):
    keys = reference.ordered_value(values).astype(np.int64)
    slot = LAYOUT.locate(np.arange(values.shape[1]))["slot"]
    return np.argmax((keys << 4) + slot, axis=1)


def odd_row_wins_ties(values):
    keys = reference.ordered_value(values).astype(np.int64)
    return np.argmax((keys << 1) + np.arange(values.shape[1]) % 2, axis=1)


SELECTION_FAULTS = [
    last_of_equals, nan_ignored, infinity_not_finite, raw_bits, starting_from_zero, swapped_pairs,
    later_warp_wins_ties, later_slot_wins_ties, odd_row_wins_ties,
]  # fmt: skip


def test_the_mutable_walk_is_the_walk(case, tokens):
    assert np.array_equal(case.walk_selecting(reference.select), tokens)


@pytest.mark.parametrize("choose", SELECTION_FAULTS, ids=lambda choose: choose.__name__)
def test_a_fault_of_selection_changes_tokens(case, tokens, choose):
    assert (case.walk_selecting(choose) != tokens).any()


def test_order_of_a_negative_nan_shows_where_nothing_rounds_it_away(case):
    assert (case.walk_selecting(negative_nan_low, "none") != case.walk(rounding="none")).any()


@pytest.mark.parametrize("place", ["block", "warp", "slot", "row"])
def test_a_lost_place_changes_tokens(case, tokens, place):
    at = LAYOUT.locate(np.arange(LAYOUT.vocab_size))
    for value in (0, int(at[place].max())):
        assert (case.walk_selecting(losing(at[place] == value)) != tokens).any()


def test_one_lost_slot_of_one_warp_changes_tokens(case, tokens):
    at = LAYOUT.locate(np.arange(LAYOUT.vocab_size))
    lost = (at["warp"] == 2) & (at["slot"] == 5) & (at["row"] // 2 == 5)
    assert (case.walk_selecting(losing(lost)) != tokens).any()


def test_a_fault_of_arithmetic_changes_tokens(case, tokens):
    q1, q2, s1, s2 = case.latents
    swapped = case.w_q.reshape(-1, RANK // 4, 2, 2).swapaxes(2, 3).reshape(-1, RANK)
    tile_rows_swapped = case.w_q.copy()
    tile_rows_swapped[: LAYOUT.vocab_size] = case.w_q[np.arange(LAYOUT.vocab_size) ^ 1]
    faults = {
        "second vector dropped": {"latents": (q1, q2 * 0, s1, s2)},
        "second scale for the first": {"latents": (q1, q2, s1, s1)},
        "scales of the next row": {"w_scale": np.roll(case.w_scale, 1)},
        "elements out of order": {"w_q": swapped},
        "row pairs swapped": {"w_q": tile_rows_swapped},
        "latents of the next token": {"latents": tuple(np.roll(part, 1, axis=0) for part in case.latents)},
        "a k-step lost": {"w_q": np.where(np.arange(RANK) < RANK - 32, case.w_q, 0).astype(np.int8)},
        "padding chosen": {"vocab_size": COLUMNS, "latents": tuple(np.resize(p, (COLUMNS, *p.shape[1:])) for p in case.latents)},
        "rounding twice": {"rounding": "twice"},
        "no rounding": {"rounding": "none"},
    }
    unseen = [name for name, fault in faults.items() if np.array_equal(case.walk(**fault), tokens)]
    assert not unseen


class FirstProductFused(reference.Int8x2Projection):
    """The projection with the first product and the addition rounded once, where the arithmetic rounds twice."""

    def corrections(self, previous, rows):
        latents = np.concatenate([self._q1[previous], self._q2[previous]]).astype(np.float32)
        c1, c2 = np.split(latents @ self._matrix[rows].T, 2)
        second = self._s2[previous][:, None] * c2
        exact = self._s1[previous].astype(np.float64)[:, None] * c1 + second
        return self._scale[rows] * exact.astype(np.float32)


def test_a_contracted_product_changes_tokens(case, tokens):
    projection = FirstProductFused(case.w_q, case.w_scale, *case.latents)
    walks = reference.run_walks(projection, case.bits, case.anchors, vocab_size=LAYOUT.vocab_size)
    assert (walks.draft_ids != tokens).any()


def test_a_contracted_final_sum_changes_tokens(case, tokens):
    """The last multiplication fused with the addition of the base logit."""
    projection = reference.Int8x2Projection(case.w_q, np.ones_like(case.w_scale), *case.latents)  # scale 1: the inner sum
    rows = slice(0, LAYOUT.vocab_size)
    previous, chosen = case.anchors, []
    for step in range(STEPS):
        base = reference.bf16_to_float(case.bits[:, step, rows])
        inner = projection.corrections(previous, rows).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            total = (base.astype(np.float64) + case.w_scale[rows] * inner).astype(np.float32)
        previous = reference.select(reference.bf16_to_float(reference.round_to_bf16(total)))
        chosen.append(previous)
    assert (np.stack(chosen, axis=1) != tokens).any()
