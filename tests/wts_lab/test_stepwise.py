"""The stepwise walk against the same step written out, and agreement counted by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.reference import StepwiseWalk, teacher_forced_agreement  # noqa: E402

BATCH, STEPS, VOCAB = 3, 5, 200


@pytest.fixture
def head():
    return MarkovHead.random(VOCAB, 64, padded_vocab_size=208, seed=2)


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(BATCH, STEPS, 208, generator=generator).to(torch.bfloat16)
    base[:, :, VOCAB:] = 1e4
    return base, torch.tensor([3, 0, 199])


@pytest.mark.parametrize("rounding", ["twice", "once"])
def test_every_step_is_embedding_projection_sum_argmax(head, inputs, rounding):
    base, anchor = inputs
    tokens = StepwiseWalk(head, rounding=rounding)(base, anchor)
    w1, w2 = head.markov_w1.weight.double(), head.markov_w2.weight.double()[:VOCAB]
    for row in range(BATCH):
        previous = int(anchor[row])
        for step in range(STEPS):
            correction = (w2 @ w1[previous]).float()
            if rounding == "twice":
                correction = correction.to(torch.bfloat16).float()
            logits = (base[row, step, :VOCAB].float() + correction).to(torch.bfloat16)
            chosen = int(tokens[row, step])
            # summation order may move a correction by an ulp: what was chosen is within one bf16 step of the best
            assert logits[chosen] >= logits.max() * (1 - 2.0**-7)
            previous = chosen
    assert tokens.max() < VOCAB, "padding at +1e4 is never chosen"


def test_an_exact_case_by_hand():
    head = MarkovHead(torch.eye(32).to(torch.bfloat16), torch.eye(32).roll(1, 0).to(torch.bfloat16))
    base = torch.zeros(1, 4, 32, dtype=torch.bfloat16)
    base[0, 2, 9] = 2.0  # stronger than the product's 1
    assert StepwiseWalk(head)(base, torch.tensor([30])).tolist() == [[31, 0, 9, 10]]


def test_result_is_written_in_place_and_ids_are_mapped(head, inputs):
    base, anchor = inputs
    out = torch.zeros(BATCH, STEPS, dtype=torch.int64)
    walk = StepwiseWalk(head)
    assert walk(base, anchor, tokens_out=out) is out and torch.equal(out, walk(base, anchor))
    mapping = torch.arange(VOCAB).flip(0)
    permuted = MarkovHead(head.markov_w1.weight.flip(0), head.markov_w2.weight, vocab_size=VOCAB)
    mapped = StepwiseWalk(permuted, draft_to_target=mapping)(base, mapping[anchor])
    assert torch.equal(mapped, mapping[out])


def test_agreement_is_1_with_itself_and_counts_each_step_alone(head, inputs):
    base, anchor = inputs
    reference = StepwiseWalk(head)
    tokens = reference(base, anchor)
    for max_batch in (1, 4, 64):
        assert teacher_forced_agreement(reference, tokens, base, anchor, max_batch=max_batch) == 1.0

    calls = iter(range(BATCH * STEPS))

    def wrong_once(base_logits, previous):
        chosen = reference(base_logits, previous)
        return chosen + 1 if next(calls) == 1 else chosen  # an early step: a free-running walk would part for good

    assert teacher_forced_agreement(wrong_once, tokens, base, anchor) == 1 - 1 / (BATCH * STEPS)


def test_what_does_not_fit_is_refused(head, inputs):
    base, anchor = inputs
    walk = StepwiseWalk(head)
    with pytest.raises(BadInput, match="bfloat16"):
        walk(base.float(), anchor)
    with pytest.raises(BadInput, match="at least 200"):
        walk(base[:, :, :100], anchor)
    with pytest.raises(BadInput, match=r"anchor must be int64 \[3\]"):
        walk(base, anchor[:2])
    with pytest.raises(BadInput, match="rounding"):
        StepwiseWalk(head, rounding="none")
    with pytest.raises(BadInput, match="draft_to_target"):
        StepwiseWalk(MarkovHead.random(50, 32, target_vocab_size=40))


def test_capture_without_a_gpu_says_so(head, inputs):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: tests/gpu captures there")
    with pytest.raises(RuntimeError, match="needs tensors on a CUDA device"):
        StepwiseWalk(head).capture(*inputs)
