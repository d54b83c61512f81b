"""The stepwise walk of every head against the same walk in NumPy, candidate pools, sampling, and agreement counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.head import HEAD_KINDS  # noqa: E402
from wts_lab import stepwise  # noqa: E402
from wts_lab.heads import HEAD_CLASSES, DominoHead, MarkovHead  # noqa: E402
from wts_lab.reference import StepwiseWalk, teacher_forced_agreement  # noqa: E402
from wts_lab.stepwise import candidate_ids, free_running_prefix  # noqa: E402

BATCH, STEPS, VOCAB, HIDDEN, GRU, RANK = 3, 5, 200, 40, 24, 64
EVERY_KIND = pytest.mark.parametrize("kind", HEAD_KINDS)


def head_of(kind: str, dtype=torch.bfloat16, **options):
    sizes = {} if kind == "markov" else {"hidden_size": HIDDEN}
    sizes |= {"gru_size": GRU} if kind == "domino" else {}
    return HEAD_CLASSES[kind].random(VOCAB, RANK, padded_vocab_size=208, seed=2, dtype=dtype, **sizes, **options)


@pytest.fixture
def head():
    return head_of("markov")


@pytest.fixture
def inputs():
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(BATCH, STEPS, 208, generator=generator).to(torch.bfloat16)
    base[:, :, VOCAB:] = 1e4
    return base, torch.tensor([3, 0, 199])


@pytest.fixture
def hidden():
    return torch.randn(BATCH, STEPS, HIDDEN, generator=torch.Generator().manual_seed(8)).to(torch.bfloat16)


def extras(kind, hidden):
    return {} if kind == "markov" else {"hidden": hidden}


# --- an independent walk, in NumPy and float64 -----------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_cell(own, token, state):
    gi, gh = own["prefix_gru.weight_ih_l0"] @ own["embed_tokens.weight"][token], own["prefix_gru.weight_hh_l0"] @ state
    r, z = sigmoid(gi[:GRU] + gh[:GRU]), sigmoid(gi[GRU : 2 * GRU] + gh[GRU : 2 * GRU])
    n = np.tanh(gi[2 * GRU :] + r * gh[2 * GRU :])
    return (1 - z) * n + z * state


def numpy_latent(kind, own, token, h, state):
    """Latent and next state of one row."""
    if kind == "domino":
        state = gru_cell(own, token, state)
        f = own["embed_proj.0.weight"] @ np.concatenate([h, state])
        return f * sigmoid(f), state
    e = own["markov_w1.weight"][token]
    if kind == "gated":
        return sigmoid(own["gate_proj.weight"] @ np.concatenate([h, e]) + own["gate_proj.bias"]) * e, None
    if kind == "rnn":
        a, c, o = np.split(own["joint_proj.weight"] @ np.concatenate([state, e, h]) + own["joint_proj.bias"], 3)
        return np.tanh(o), sigmoid(a) * state + (1 - sigmoid(a)) * np.tanh(c)
    return e, None


def numpy_walk(head, base, anchor, hidden, history=None):
    """Tokens ``[B, positions]`` and logits; with a history the choices are made along it, not along themselves."""
    kind, own = head.kind, {name: tensor.double().numpy() for name, tensor in head.state_dict().items()}
    matrix, base, hidden = head.projection.double().numpy()[:VOCAB], base.double().numpy()[:, :, :VOCAB], hidden.double().numpy()
    batch, positions = base.shape[:2]
    tokens, logits = np.zeros((batch, positions), dtype=np.int64), base.copy()
    for row in range(batch):
        previous = int(anchor[row])
        state = {"rnn": np.zeros(RANK), "domino": np.zeros(GRU)}.get(kind)
        allowed = np.arange(VOCAB)
        if kind == "domino":
            state = gru_cell(own, previous, state)
            if head.candidate_pool is not None:
                allowed = np.sort(np.argsort(-base[row, 1:].max(axis=0), kind="stable")[: head.candidate_pool])
        for step in range(positions):
            choices = allowed
            if kind == "domino" and step == 0:
                choices = np.arange(VOCAB)
            else:
                latent, state = numpy_latent(kind, own, previous, hidden[row, step], state)
                logits[row, step] += matrix @ latent
            tokens[row, step] = choices[np.argmax(logits[row, step, choices])]
            previous = tokens[row, step] if history is None else int(history[row, step])
    return tokens, logits


@EVERY_KIND
def test_every_head_walks_as_its_equations_say(kind, inputs, hidden):
    base, anchor = inputs
    head = head_of(kind, torch.float64)  # nothing is rounded: the two can differ only by a fault
    kept = torch.zeros(BATCH, STEPS, 208, dtype=torch.bfloat16)
    tokens = StepwiseWalk(head)(base, anchor, **extras(kind, hidden), logits_out=kept)
    expected, logits = numpy_walk(head, base, anchor, hidden)
    assert np.array_equal(tokens.numpy(), expected)
    np.testing.assert_allclose(kept[:, :, :VOCAB].double().numpy(), logits, rtol=2.0**-8, atol=1e-9)
    assert (kept[:, :, VOCAB:] == 0).all()
    base_alone = base[:, :, :VOCAB].argmax(dim=-1)
    assert (tokens != base_alone)[:, head.first_step :].any() and (tokens == base_alone).any(), "both parts should decide"


@EVERY_KIND
def test_bf16_engines_arithmetic_stays_near_the_equations(kind, inputs, hidden):
    base, anchor = inputs
    head = head_of(kind)
    tokens = {rounding: StepwiseWalk(head, rounding=rounding)(base, anchor, **extras(kind, hidden)) for rounding in ("once", "twice", "none")}
    for found in tokens.values():
        _, logits = numpy_walk(head, base, anchor, hidden, history=found)
        chosen = np.take_along_axis(logits, found.numpy()[:, :, None], axis=2)[:, :, 0]
        assert np.all(chosen >= logits.max(axis=2) - 0.08), "what was chosen is near the best along its own history"


@pytest.mark.parametrize("rounding", ["twice", "once", "none"])
def test_a_markov_step_is_embedding_projection_sum_argmax(head, inputs, rounding):
    base, anchor = inputs
    tokens = StepwiseWalk(head, rounding=rounding)(base, anchor)
    w1, w2 = head.markov_w1.weight.double(), head.markov_w2.weight.double()[:VOCAB]
    for row in range(BATCH):
        previous = int(anchor[row])
        for step in range(STEPS):
            correction = (w2 @ w1[previous]).float()
            if rounding == "twice":
                correction = correction.to(torch.bfloat16).float()
            logits = base[row, step, :VOCAB].float() + correction
            chosen = int(tokens[row, step])
            # summation order may move a correction by an ulp: what was chosen is within one bf16 step of the best
            assert logits[chosen] >= logits.max() * (1 - (1e-5 if rounding == "none" else 2.0**-7))
            previous = chosen
    assert tokens.max() < VOCAB, "padding at +1e4 is never chosen"


@pytest.mark.parametrize(("base", "expected"), [
    ((2.0, 1.0), {"once": 0, "twice": 0, "none": 1}),  # 2 against 2 + 2^-9, which is 2 in bf16: a tie
    ((0.009, 2.0**-7 - 1), {"once": 1, "twice": 0, "none": 1}),  # 0.009 against 2^-7 + 2^-9, of which a rounded correction leaves 2^-7
])
def test_roundings_differ_where_they_should(base, expected):
    w1, w2 = torch.zeros(2, 32, dtype=torch.bfloat16), torch.zeros(2, 32, dtype=torch.bfloat16)
    w1[:, 0], w1[:, 1], w2[1, :2] = 1.0, 2.0**-9, 1.0  # token 1 is corrected by 1 + 2^-9, which is 1 in bf16
    logits, anchor = torch.tensor([[base]], dtype=torch.bfloat16), torch.tensor([0])
    assert {rounding: int(StepwiseWalk(MarkovHead(w1, w2), rounding=rounding)(logits, anchor)) for rounding in expected} == expected


def test_an_exact_case_by_hand():
    head = MarkovHead(torch.eye(32).to(torch.bfloat16), torch.eye(32).roll(1, 0).to(torch.bfloat16))
    base = torch.zeros(1, 4, 32, dtype=torch.bfloat16)
    base[0, 2, 9] = 2.0  # stronger than the product's 1
    assert StepwiseWalk(head)(base, torch.tensor([30])).tolist() == [[31, 0, 9, 10]]


@EVERY_KIND
def test_result_is_written_in_place_and_ids_are_mapped(kind, inputs, hidden):
    base, anchor = inputs
    head = head_of(kind)
    out = torch.zeros(BATCH, STEPS, dtype=torch.int64)
    walk = StepwiseWalk(head)
    assert walk(base, anchor, **extras(kind, hidden), tokens_out=out) is out
    assert torch.equal(out, walk(base, anchor, **extras(kind, hidden)))
    mapping = torch.arange(VOCAB).flip(0)
    tensors = dict(head.state_dict())
    first = next(iter(tensors))
    tensors[first] = tensors[first].flip(0)  # the token table's rows go where the map sends their ids
    permuted = type(head)(*tensors.values(), vocab_size=VOCAB)
    mapped = StepwiseWalk(permuted, draft_to_target=mapping)(base, mapping[anchor], **extras(kind, hidden))
    assert torch.equal(mapped, mapping[out])


# --- candidate pools -----------------------------------------------------------------------------------------------------


def test_the_pool_holds_the_largest_maxima_in_ascending_order():
    base = torch.tensor([[[1.0, 9.0, 0.0, 2.0, 3.0], [8.0, 0.0, 0.0, 2.0, 1.0]], [[0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 5.0, 0.0, 0.0]]])
    assert candidate_ids(base, 2).tolist() == [[0, 1], [2, 4]]
    assert candidate_ids(base, 3).tolist() == [[0, 1, 4], [2, 3, 4]]
    assert candidate_ids(base, 99).tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("pool", [1, 7, 60, VOCAB, 5 * VOCAB])
def test_a_pool_restricts_every_position_but_the_first(inputs, hidden, pool):
    _, anchor = inputs
    # all positions but the first have the same base logits, all different: no tie stands at the pool's edge
    order = torch.stack([torch.randperm(256, generator=torch.Generator().manual_seed(row))[:208] for row in range(BATCH)])
    base = (order[:, None].repeat(1, STEPS, 1) / 64 - 2).to(torch.bfloat16)
    base[:, 0] = base[:, 0].roll(1, dims=-1)
    head = head_of("domino", torch.float64).with_candidate_pool(pool)
    tokens = StepwiseWalk(head)(base, anchor, hidden=hidden)
    full = StepwiseWalk(head.with_candidate_pool(None))(base, anchor, hidden=hidden)
    assert torch.equal(tokens[:, 0], base[:, 0, :VOCAB].argmax(dim=-1)) and torch.equal(tokens[:, 0], full[:, 0])
    if pool >= VOCAB:
        assert torch.equal(tokens, full)
    else:
        assert np.array_equal(tokens.numpy(), numpy_walk(head, base, anchor, hidden)[0])
    if pool == 7:
        assert not torch.equal(tokens, full), "a small pool should have mattered"


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
def test_the_whole_vocabulary_as_a_pool_changes_nothing_in_bf16(inputs, hidden, rounding):
    base, anchor = inputs
    head = head_of("domino", candidate_pool=VOCAB)
    pooled = StepwiseWalk(head, rounding=rounding)(base, anchor, hidden=hidden)
    full = StepwiseWalk(head.with_candidate_pool(None), rounding=rounding)
    assert teacher_forced_agreement(full, pooled, base, anchor, hidden=hidden, first_step=1, max_batch=2) >= 0.9
    assert torch.equal(pooled[:, 0], full(base, anchor, hidden=hidden)[:, 0])


def test_domino_without_steps_is_the_base_argmax(inputs, hidden):
    base, anchor = inputs
    walk = StepwiseWalk(head_of("domino", candidate_pool=5))
    assert torch.equal(walk(base[:, :1], anchor, hidden=hidden[:, :1])[:, 0], base[:, 0, :VOCAB].argmax(dim=-1))


# --- sampling ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def known_noise(monkeypatch):
    """Noise that favours one token a position: 7 for row 0, and on from there; remembers what it was asked for."""
    asked = []

    def gumbel(key, offset, *, rows, step, vocab, device):
        asked.append((key, int(offset), rows, step, vocab))
        noise = torch.zeros(rows, vocab, device=device)
        noise[torch.arange(rows), 7 + torch.arange(rows) + step] = 100.0
        return noise

    monkeypatch.setattr(stepwise, "gumbel", gumbel)
    return asked


@pytest.mark.parametrize("kind", ["markov", "gated", "rnn"])
def test_sampled_rows_add_noise_and_greedy_rows_do_not(kind, inputs, hidden, known_noise):
    base, anchor = inputs
    walk, offset = StepwiseWalk(head_of(kind)), torch.tensor([41])
    greedy = walk(base, anchor, **extras(kind, hidden))
    kept = torch.zeros_like(base)
    mixed = walk(base, anchor, **extras(kind, hidden), temperatures=torch.tensor([0.7, 0.0, 1.3]), noise=(99, offset), logits_out=kept)
    assert torch.equal(mixed[1], greedy[1])
    assert mixed[0].tolist() == [7, 8, 9, 10, 11] and mixed[2].tolist() == [9, 10, 11, 12, 13]
    assert int(offset) == 42 and known_noise == [(99, 41, BATCH, step, VOCAB) for step in range(STEPS)]
    assert kept[:, :, :VOCAB].abs().max() < 20, "kept logits are those before noise"


def test_a_temperature_divides_the_logits(inputs, known_noise):
    base, anchor = inputs
    head = head_of("markov")
    walk = StepwiseWalk(head)
    best = torch.zeros_like(base)
    best[:, :, 50] = 60.0
    for temperature, expected in ((1.0, 7), (0.5, 50)):  # 60 or 120, against noise of 100
        tokens = walk(best[:1, :1], anchor[:1], temperatures=torch.tensor([temperature]), noise=(1, torch.tensor([0])))
        assert tokens.tolist() == [[expected]]


def test_samples_repeat_with_their_offset_and_change_with_it(inputs):
    pytest.importorskip("wts_lab.noise", reason="needs wts_lab.noise")
    base, anchor = inputs
    walk, offset, temperatures = StepwiseWalk(head_of("markov")), torch.tensor([5]), torch.ones(BATCH)
    first = walk(base, anchor, temperatures=temperatures, noise=(12345, offset))
    second = walk(base, anchor, temperatures=temperatures, noise=(12345, offset))
    offset.fill_(5)
    assert torch.equal(walk(base, anchor, temperatures=temperatures, noise=(12345, offset)), first)
    assert not torch.equal(first, second) and first.max() < VOCAB


# --- agreement -----------------------------------------------------------------------------------------------------------


@EVERY_KIND
@pytest.mark.parametrize("max_batch", [1, 2, 64])
def test_agreement_is_1_with_itself(kind, max_batch, inputs, hidden):
    base, anchor = inputs
    head = head_of(kind, **({"candidate_pool": 30} if kind == "domino" else {}))
    walk = StepwiseWalk(head)
    tokens = walk(base, anchor, **extras(kind, hidden))
    before = base.clone()
    options = {"first_step": head.first_step, "max_batch": max_batch, **extras(kind, hidden)}
    assert teacher_forced_agreement(walk, tokens, base, anchor, **options) == 1.0
    assert torch.equal(base, before)


@EVERY_KIND
def test_each_step_is_judged_along_the_references_history(kind, inputs, hidden):
    base, anchor = inputs
    head = head_of(kind, torch.float64)
    reference = torch.randint(VOCAB, (BATCH, STEPS), generator=torch.Generator().manual_seed(4))  # a history nobody would choose
    along, _ = numpy_walk(head, base, anchor, hidden, history=reference)
    reference[:, 3] = torch.from_numpy(along[:, 3])  # agrees here, wherever the earlier tokens led
    reference[1, 0] = int(along[1, 0])
    along, _ = numpy_walk(head, base, anchor, hidden, history=reference)
    reference[:, 3] = torch.from_numpy(along[:, 3])
    equal = (along == reference.numpy())[:, head.first_step :]
    assert 0 < equal.mean() < 1
    options = {"first_step": head.first_step, "max_batch": 2, **extras(kind, hidden)}
    assert teacher_forced_agreement(StepwiseWalk(head), reference, base, anchor, **options) == equal.mean()


def test_one_early_fault_is_counted_once(head, inputs):
    base, anchor = inputs
    reference = StepwiseWalk(head)
    tokens = reference(base, anchor)

    def wrong_at_1(base_logits, previous):
        chosen = reference(base_logits, previous)
        chosen[:, 1] += 1  # a free-running walk would part for good
        return chosen

    assert teacher_forced_agreement(wrong_at_1, tokens, base, anchor, max_batch=BATCH) == 1 - 1 / STEPS
    faulty = tokens.clone()
    faulty[0, 1] = (faulty[0, 1] + 1) % VOCAB
    assert free_running_prefix(faulty, tokens) == (1 + STEPS + STEPS) / BATCH


def test_agreement_with_mapped_ids(head, inputs):
    base, anchor = inputs
    mapping = torch.arange(VOCAB).roll(17)
    walk = StepwiseWalk(head, draft_to_target=mapping)
    tokens = walk(base, anchor)
    assert teacher_forced_agreement(walk, tokens, base, anchor, draft_to_target=mapping, max_batch=BATCH) == 1.0


def test_a_prefix_ends_at_the_first_difference():
    reference = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    tokens = torch.tensor([[1, 2, 3, 4], [1, 2, 0, 4], [0, 2, 3, 4], [1, 0, 0, 0]])
    assert free_running_prefix(tokens, reference) == (4 + 2 + 0 + 1) / 4


# --- refusals ------------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(head, inputs, hidden):
    base, anchor = inputs
    walk = StepwiseWalk(head)
    with pytest.raises(BadInput, match="bfloat16"):
        walk(base.float(), anchor)
    with pytest.raises(BadInput, match="at least 200"):
        walk(base[:, :, :100], anchor)
    with pytest.raises(BadInput, match=r"anchor must be int64 \[3\]"):
        walk(base, anchor[:2])
    with pytest.raises(BadInput, match="rounding"):
        StepwiseWalk(head, rounding="thrice")
    with pytest.raises(BadInput, match="draft_to_target"):
        StepwiseWalk(MarkovHead.random(50, 32, target_vocab_size=40))
    with pytest.raises(BadInput, match=r"logits_out must be bfloat16 \[3, 5, at least 200\]"):
        walk(base, anchor, logits_out=torch.zeros(BATCH, STEPS, 150, dtype=torch.bfloat16))
    for wrong in (None, hidden[:, :2], hidden.float()):
        with pytest.raises(BadInput, match=r"hidden \(of a rnn head\) must be bfloat16 \[3, 5, 40\]; got"):
            StepwiseWalk(head_of("rnn"))(base, anchor, hidden=wrong)


def test_sampling_that_is_not_offered_is_refused(head, inputs, hidden):
    base, anchor = inputs
    noise, ones = (1, torch.tensor([0])), torch.ones(BATCH)
    with pytest.raises(BadInput, match="come together"):
        StepwiseWalk(head)(base, anchor, temperatures=ones)
    with pytest.raises(BadInput, match=r"temperatures must be float32 \[3\]"):
        StepwiseWalk(head)(base, anchor, temperatures=ones.double(), noise=noise)
    with pytest.raises(BadInput, match=r"temperatures are \[1.0, nan, -1.0\]; each must be a finite number"):
        StepwiseWalk(head)(base, anchor, temperatures=torch.tensor([1.0, float("nan"), -1.0]), noise=noise)
    with pytest.raises(BadInput, match=r"offset must be int64 \[1\]"):
        StepwiseWalk(head)(base, anchor, temperatures=ones, noise=(1, torch.tensor(0)))
    with pytest.raises(BadInput, match="greedy only"):
        StepwiseWalk(head, rounding="none")(base, anchor, temperatures=ones, noise=noise)
    domino: DominoHead = head_of("domino", candidate_pool=9)
    with pytest.raises(BadInput, match="greedy only"):
        StepwiseWalk(domino)(base, anchor, hidden=hidden, temperatures=ones, noise=noise)
    with pytest.raises(BadInput, match="candidate pool"):
        StepwiseWalk(domino)(base, anchor, hidden=hidden, logits_out=torch.zeros_like(base))


def test_capture_without_a_gpu_says_so(head, inputs):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU: tests/gpu captures there")
    with pytest.raises(RuntimeError, match="needs tensors on a CUDA device"):
        StepwiseWalk(head).capture(*inputs)
