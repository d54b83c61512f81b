"""Agreement of int8x2 with bf16 on a user's blocks: equal where arithmetic is exact, counted one by one elsewhere, with exact intervals."""

from __future__ import annotations

import math

import numpy
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
files = pytest.importorskip("safetensors.torch")

from cost_model.errors import BadInput  # noqa: E402
from tests.exact_heads import one_hot_head  # noqa: E402
from wts_lab.agreement import DraftBlocks, clustered_share, estimate_agreement, read_blocks  # noqa: E402
from wts_lab.heads import HEAD_CLASSES, MarkovHead  # noqa: E402
from wts_lab.stepwise import StepwiseWalk, teacher_forced_agreement  # noqa: E402

VOCAB, RANK, HIDDEN, BLOCKS, POSITIONS = 300, 64, 96, 24, 6


def head_of(kind: str, seed: int = 1):
    return HEAD_CLASSES[kind].random(VOCAB, RANK, seed=seed, **({} if kind == "markov" else {"hidden_size": HIDDEN}), **({"gru_size": 64} if kind == "domino" else {}))


def tensors(seed: int = 2, **changes) -> dict[str, torch.Tensor]:
    """Blocks of six prompts, four of each."""
    generator = torch.Generator().manual_seed(seed)
    found = {
        "hidden": torch.randn(BLOCKS, POSITIONS, HIDDEN, generator=generator).to(torch.bfloat16), "anchor": torch.randint(VOCAB, (BLOCKS,), generator=generator),
        "prompt": torch.arange(BLOCKS) // 4,
    }  # fmt: skip
    return {name: value for name, value in (found | changes).items() if value is not None}


def target(folder, vocab=VOCAB + 20, name="lm_head.weight"):
    """Checkpoint of a target whose output matrix is padded."""
    weight = torch.randn(vocab, HIDDEN, generator=torch.Generator().manual_seed(5)) * (2 * HIDDEN**-0.5)
    files.save_file({name: weight.to(torch.bfloat16)}, folder / "target.safetensors")
    return folder / "target.safetensors", weight.to(torch.bfloat16)


def saved(folder, **changes):
    files.save_file(tensors(**changes), folder / "blocks.safetensors")
    return folder / "blocks.safetensors"


def test_exact_corrections_agree_in_every_step(tmp_path):
    head = one_hot_head(VOCAB, RANK, seed=1)
    blocks = read_blocks(saved(tmp_path), head, target(tmp_path)[0])
    found = estimate_agreement(head, blocks, rounding="twice")
    assert (found.equal_step_share, found.equal_block_share, found.prefix_length_mean) == (1, 1, POSITIONS)
    assert (found.blocks, found.steps, found.prompts, found.design_effect) == (BLOCKS, BLOCKS * POSITIONS, 6, None)
    assert found.equal_step_share_high == 1 and found.equal_step_share_low == pytest.approx(0.025 ** (1 / BLOCKS))


@pytest.mark.parametrize("kind", ["markov", "gated", "rnn", "domino"])
def test_shares_are_those_of_an_own_count(kind, tmp_path):
    """One int8 vector changes some tokens; counted by walks that are forced onto the bf16 walk's history, one step at a time."""
    head = head_of(kind)
    path, weight = target(tmp_path)
    blocks = read_blocks(saved(tmp_path), head, path)
    inputs = blocks.inputs(slice(None), head)
    assert torch.equal(inputs.base_logits, blocks.hidden @ weight[:VOCAB].T)
    hidden = None if kind == "markov" else blocks.hidden
    same = estimate_agreement(head, blocks, format="bf16", rounding="twice")
    assert same.equal_step_share == pytest.approx(1, abs=0.02), "bf16 rounded twice is the reference itself, but for the order of sums"
    found = estimate_agreement(head, blocks, rounding="twice")
    assert 0.9 < found.equal_step_share <= 1
    reference = StepwiseWalk(head)(inputs.base_logits, blocks.anchor, hidden=hidden)
    again = teacher_forced_agreement(StepwiseWalk(head), reference, inputs.base_logits, blocks.anchor, hidden=hidden, first_step=head.first_step, max_batch=BLOCKS)
    assert again == 1 and found.steps == BLOCKS * (POSITIONS - head.first_step)


def test_a_planted_difference_is_counted_where_it_is(monkeypatch):
    """A format that is wrong for one latent: steps whose history brings it differ, and no others."""
    from wts_lab import agreement
    from wts_lab.projection_formats import FORMATS

    head = MarkovHead.random(VOCAB, RANK, seed=3)
    base = torch.randn(BLOCKS, POSITIONS, VOCAB, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    blocks = DraftBlocks(torch.zeros(BLOCKS, dtype=torch.int64), None, base, torch.arange(BLOCKS) // 4)
    wrong = head.embedding[0].float()

    def spoiled(stored, latents, original=agreement.corrections):
        found = original(stored, latents)
        whole = sum(factor[:, None] * vectors for factor, vectors in latents)
        hit = (whole - wrong).abs().amax(dim=1) < 1e-3
        found[hit, 7] += 1e4
        return found

    bf16 = next(form for form in FORMATS if form.name == "bf16")
    before = estimate_agreement(head, blocks, format=bf16.name, rounding="twice")
    monkeypatch.setattr(agreement, "corrections", spoiled)
    found = estimate_agreement(head, blocks, format=bf16.name, rounding="twice")
    assert before.equal_step_share == 1 and found.equal_block_share == 0 and found.prefix_length_mean == 0, "every block's anchor is token 0"
    assert found.equal_step_share == pytest.approx((POSITIONS - 1) / POSITIONS, abs=0.02)


def test_chunks_do_not_change_the_counts(tmp_path, monkeypatch):
    head = head_of("gated")
    blocks = read_blocks(saved(tmp_path), head, target(tmp_path)[0])
    whole = estimate_agreement(head, blocks, format="int8")
    monkeypatch.setattr("wts_lab.accuracy_run.CHUNK_VALUES", 3 * POSITIONS * VOCAB)
    assert estimate_agreement(head, blocks, format="int8") == whole


def test_a_tied_embedding_is_the_output_matrix_and_base_logits_need_none(tmp_path):
    head = head_of("markov")
    path, weight = target(tmp_path, name="model.embed_tokens.weight")
    base = tensors()["hidden"] @ weight.T
    (tmp_path / "with").mkdir()
    own = read_blocks(saved(tmp_path / "with", base_logits=base, hidden=None), head)
    assert estimate_agreement(head, own) == estimate_agreement(head, read_blocks(saved(tmp_path), head, path))
    assert read_blocks(saved(tmp_path, prompt=None), head, path).prompt.tolist() == list(range(BLOCKS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"anchor": None}, "anchor is missing"), ({"hidden": None}, "hidden is missing"),
        ({"anchor": torch.zeros(BLOCKS, dtype=torch.int32)}, r"anchor is torch.int32 \(24,\) where torch.int64 \(24,\) is wanted"),
        ({"hidden": torch.zeros(BLOCKS, POSITIONS, HIDDEN)}, "hidden is torch.float32"), ({"prompt": torch.zeros(3, dtype=torch.int64)}, r"prompt is torch.int64 \(3,\)"),
        ({"hidden": torch.zeros(BLOCKS, POSITIONS, 32, dtype=torch.bfloat16)}, r"hidden is torch.bfloat16 \(24, 6, 32\) where torch.bfloat16 \(24, 6, 96\)"),
        ({"anchor": torch.full((BLOCKS,), VOCAB)}, "anchor has ids from 300 to 300; the target's are 0 to 299"),
    ],
)
def test_blocks_that_do_not_fit_the_head_are_refused_with_what_is_wanted(changes, message, tmp_path):
    with pytest.raises(BadInput, match=message) as refusal:
        read_blocks(saved(tmp_path, **changes), head_of("gated"), target(tmp_path)[0])
    assert "A file of blocks holds anchor int64 [blocks]; hidden bfloat16" in str(refusal.value)


def test_what_else_is_missing_is_said(tmp_path):
    head = head_of("gated")
    with pytest.raises(BadInput, match="has no base_logits; give the target's checkpoint, whose lm_head.weight"):
        read_blocks(saved(tmp_path), head)
    with pytest.raises(BadInput, match=r"output matrix is \(200, 96\); the head has 300 tokens"):
        read_blocks(saved(tmp_path), head, target(tmp_path, vocab=200)[0])
    blocks = read_blocks(saved(tmp_path, prompt=torch.zeros(BLOCKS, dtype=torch.int64)), head, target(tmp_path)[0])
    with pytest.raises(BadInput, match="the blocks are of 1 prompt"):
        estimate_agreement(head, blocks)
    with pytest.raises(BadInput, match="format is 'fp2'"):
        estimate_agreement(head, blocks, format="fp2")


# --- the interval


def test_independent_steps_have_clopper_and_pearsons_interval():
    """With one value a cluster and many clusters, the design effect is 1 and the exact interval's tails hold 2.5 % each."""
    same = (numpy.arange(400) % 20 != 0)[:, None]
    share, low, high, effect = clustered_share(same, numpy.arange(400))
    assert share == 0.95 and effect == pytest.approx(400 / 399)
    count, hits = 400 / effect, 380 / effect

    def tail(p: float, at_least: float) -> float:
        from scipy.special import betainc

        return betainc(at_least, count - at_least + 1, p)

    assert tail(low, hits) == pytest.approx(0.025) and 1 - tail(high, hits + 1) == pytest.approx(0.025)


def test_steps_that_are_all_alike_within_a_prompt_count_as_one():
    alike = numpy.repeat((numpy.arange(100) % 10 != 0)[:, None], 8, axis=1)
    share, low, high, effect = clustered_share(alike, numpy.arange(100))
    single = clustered_share(alike[:, :1], numpy.arange(100))
    assert share == single[0] == 0.9 and effect == pytest.approx(8 * single[3])
    assert (low, high) == pytest.approx(single[1:3], abs=2e-3)


def test_intervals_hold_the_truth_as_often_as_they_say():
    generator, inside = numpy.random.default_rng(1), []
    for _ in range(300):
        chance = generator.beta(38, 2, size=40)
        same = generator.random((160, 6)) < numpy.repeat(chance, 4)[:, None]
        _, low, high, _ = clustered_share(same, numpy.repeat(numpy.arange(40), 4))
        inside.append(low <= 0.95 <= high)
    assert numpy.mean(inside) >= 0.92


def test_all_and_none_have_one_sided_ends():
    ones = numpy.ones((10, 4), dtype=bool)
    assert clustered_share(ones, numpy.arange(10) % 2)[:3] == (1.0, pytest.approx(0.025 ** (1 / 10)), 1.0)
    assert clustered_share(~ones, numpy.arange(10) % 2)[:3] == (0.0, 0.0, pytest.approx(1 - 0.025 ** (1 / 10)))
    assert math.isclose(sum(clustered_share(ones, numpy.arange(10))[1:3]), 1 + 0.025**0.1)
