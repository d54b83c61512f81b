"""Sampled walks on a real GPU: the twin's tokens and logits bit for bit at temperature 1, its keys within their rounding at others,
the softmax's distribution, and rows that mind nobody else's temperature."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.exact_heads import one_hot_head  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.noise import gumbel  # noqa: E402
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402
from wts_lab.twin_torch import Int8x2Matrix, expected_walks, select_step  # noqa: E402
from wts_lab.walk import Walk  # noqa: E402

FULL_V = 151_936
KEY = 0x7EDCBA9876543210
NEAR_WRAP = 2**32 - 2  # the offset's low word wraps within a few calls
STEPS = 16

INSTANTIATIONS = {
    # vocabulary, rank, batch, mode, precision, rounding
    "resident-1": (FULL_V, 256, 1, "resident", "int8x2", "once"),
    "resident-4": (FULL_V, 256, 4, "resident", "int8x2", "once"),
    "resident-32": (FULL_V, 256, 32, "resident", "int8x2", "once"),
    "partial-2": (248_320, 256, 2, "resident", "int8x2", "once"),
    "partial-8": (248_320, 256, 8, "resident", "int8x2", "once"),
    "partial-32": (248_320, 256, 32, "resident", "int8x2", "once"),
    "partial-32-rank-512": (129_280, 512, 32, "resident", "int8x2", "once"),
    "streaming-16-twice": (FULL_V, 256, 16, "streaming", "int8x2", "twice"),
    "streaming-4": (FULL_V, 256, 4, "streaming", "int8x2", "once"),
    "odd-8-twice": (30_007, 96, 8, "resident", "int8x2", "twice"),
    "bf16-4-twice": (20_011, 160, 4, "streaming", "bf16", "twice"),
}


def make_inputs(head, batch: int, steps: int = STEPS, seed: int = 5):
    """Base logits bf16 with a few columns of padding (which would win), and anchors."""
    generator = torch.Generator("cuda").manual_seed(seed)
    base = torch.full((batch, steps, head.vocab_size + 4), 1e4, dtype=torch.bfloat16, device="cuda")
    base[..., : head.vocab_size] = 2 * torch.randn(batch, steps, head.vocab_size, generator=generator, device="cuda")
    return base, torch.randint(head.target_vocab_size, (batch,), generator=generator, device="cuda")


def offset_of(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int64, device="cuda")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("name", INSTANTIATIONS)
def test_tokens_and_kept_logits_equal_the_twins_at_temperature_1(name):
    vocab, rank, batch, mode, precision, rounding = INSTANTIATIONS[name]
    head = one_hot_head(vocab, rank, device="cuda") if precision == "bf16" else MarkovHead.random(vocab, rank, device="cuda")
    walk = Walk(head, steps=7, max_batch=batch, mode=mode, precision=precision, rounding=rounding, sampling=True)
    base, anchor = make_inputs(head, batch, steps=7)
    offset, temperatures = offset_of(NEAR_WRAP), torch.ones(batch, device="cuda")
    logits = torch.empty((batch, 7, vocab), dtype=torch.bfloat16, device="cuda")
    for call in range(4):
        twin = expected_walks(
            head, base, anchor, precision=precision, rounding=rounding, temperatures=temperatures, noise=(KEY, NEAR_WRAP + call),
            rows=torch.arange(batch), keep_logits=True,
        )  # fmt: skip
        tokens = walk(base, anchor, temperatures=temperatures, noise=(KEY, offset), logits_out=logits)
        walk.check()
        wrong = (tokens != twin.tokens).nonzero().tolist()
        assert not wrong, f"call {call}: {len(wrong)} tokens differ, first at (row, step) {wrong[0]}"
        assert same_bits(logits, twin.logits) and offset.item() == NEAR_WRAP + call + 1
        plain = walk(base, anchor, temperatures=temperatures, noise=(KEY, offset_of(NEAR_WRAP + call)))
        assert torch.equal(plain, tokens), "keeping the logits must change no token"


def test_streamed_rows_of_any_temperature_mind_nobody_else():
    """Greedy rows beside sampled ones, logits that differ by less than the bounds of noise can tell, infinities, and a call with fewer rows."""
    head = MarkovHead.random(20_011, 96, seed=4, device="cuda")
    walk = Walk(head, steps=7, max_batch=16, mode="streaming", sampling=True)
    base, anchor = make_inputs(head, 13, steps=7)
    base[3:6] = torch.where(base[3:6] > 1e3, base[3:6], 0.0)
    base[6, :, 5_000:19_000] = float("-inf")
    base[7, :, 40:60] = float("inf")
    temperatures = torch.tensor([0.0, 1.0] * 6 + [1.0], device="cuda")
    twin = expected_walks(head, base, anchor, temperatures=temperatures, noise=(KEY, 3), rows=torch.arange(13))
    assert torch.equal(walk(base, anchor, temperatures=temperatures, noise=(KEY, offset_of(3))), twin.tokens)
    walk.check()


@pytest.fixture(scope="module")
def sampled():
    """A head of 40,000 rows, its sampling walk of up to 16 steps and 4 rows, and inputs."""
    head = MarkovHead.random(40_000, 64, seed=3, device="cuda")
    return head, Walk(head, steps=STEPS, max_batch=4, mode="resident", sampling=True), *make_inputs(head, 4)


def test_greedy_rows_stay_greedy_beside_sampled_ones(sampled):
    head, walk, base, anchor = sampled
    greedy = expected_walks(head, base, anchor).tokens
    assert torch.equal(walk(base, anchor), greedy), "without temperatures the sampling kernel is greedy"
    temperatures = torch.tensor([0.0, 1.0, 0.0, 1.0], device="cuda")
    tokens = walk(base, anchor, temperatures=temperatures, noise=(KEY, offset_of(9)))
    twin = expected_walks(head, base, anchor, temperatures=temperatures, noise=(KEY, 9), rows=torch.arange(4))
    assert torch.equal(tokens, twin.tokens) and torch.equal(tokens[::2], greedy[::2])
    assert (tokens[1::2] != greedy[1::2]).any(dim=1).all()
    none_samples = walk(base, anchor, temperatures=torch.zeros(4, device="cuda"), noise=(KEY, offset_of(9)))
    assert torch.equal(none_samples, greedy)
    walk.check()


def test_other_temperatures_choose_the_largest_key_within_its_rounding(sampled):
    """The kernel divides approximately (2 ulp), so the winner may trail the twin's by that where two keys nearly tie."""
    head, walk, base, anchor = sampled
    temperatures = torch.tensor([0.3, 0.7, 1.3, 2.5], device="cuda")
    logits = torch.empty((4, STEPS, head.vocab_size), dtype=torch.bfloat16, device="cuda")
    tokens = walk(base, anchor, temperatures=temperatures, noise=(KEY, offset_of(21)), logits_out=logits)
    walk.check()
    matrix, table = Int8x2Matrix(*quantize_rows(head.markov_w2.weight)), quantize_latents(head.markov_w1.weight)
    previous = anchor
    for step in range(STEPS):
        noise = gumbel(KEY, 21, rows=4, step=step, vocab=head.vocab_size, device="cuda")
        _, best, y = select_step(
            matrix, tuple(part[previous] for part in table), base[:, step], vocab_size=head.vocab_size, temperatures=temperatures, noise_rows=noise
        )
        assert same_bits(logits[:, step], y), f"logits of step {step} are not those after the tokens chosen"
        previous = tokens[:, step]
        scaled = y.float().gather(1, previous[:, None])[:, 0] / temperatures
        chosen = scaled + noise.gather(1, previous[:, None])[:, 0]
        assert (best - chosen <= 2.0**-23 * 4 * (scaled.abs() + best.abs())).all(), f"step {step}"


def test_each_rows_result_is_its_own_and_nothing_else_is_written(sampled):
    head, walk, base, anchor = sampled
    temperatures = torch.tensor([1.0, 0.0, 1.0, 1.0], device="cuda")
    kept = torch.empty((4, STEPS, head.vocab_size), dtype=torch.bfloat16, device="cuda")
    whole = walk(base, anchor, temperatures=temperatures, noise=(KEY, offset_of(3)), logits_out=kept)
    for rows in (1, 2, 3):
        tokens = torch.full((rows + 2, STEPS), -7, device="cuda")
        logits = torch.full((rows + 2, STEPS, head.vocab_size), -7.0, dtype=torch.bfloat16, device="cuda")
        walk(
            base[:rows], anchor[:rows], temperatures=temperatures[:rows], noise=(KEY, offset_of(3)),
            tokens_out=tokens[1:-1], logits_out=logits[1:-1],
        )  # fmt: skip
        walk.check()
        assert torch.equal(tokens[1:-1], whole[:rows]) and same_bits(logits[1:-1], kept[:rows])
        assert (tokens[[0, -1]] == -7).all() and (logits[[0, -1]] == -7).all()


def test_strided_inputs_sample_the_same_tokens(sampled):
    _, walk, base, anchor = sampled
    temperatures = torch.ones(4, device="cuda")
    expected = walk(base, anchor, temperatures=temperatures, noise=(KEY, offset_of(4)))
    by_step = base.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(walk(by_step, anchor, temperatures=temperatures, noise=(KEY, offset_of(4))), expected)
    assert torch.equal(walk(base[:, :5], anchor, temperatures=temperatures, noise=(KEY, offset_of(4))), expected[:, :5])
    walk.check()


def test_replays_of_a_graph_draw_fresh_noise(sampled):
    head, walk, base, anchor = sampled
    temperatures, offset = torch.ones(4, device="cuda"), offset_of(100)
    tokens = torch.empty((4, STEPS), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        walk(base, anchor, temperatures=temperatures, noise=(KEY, offset), tokens_out=tokens)
    assert offset.item() == 100
    for replay in range(3):
        graph.replay()
        twin = expected_walks(head, base, anchor, temperatures=temperatures, noise=(KEY, 100 + replay), rows=torch.arange(4))
        assert torch.equal(tokens, twin.tokens) and offset.item() == 101 + replay
    walk.check()


def test_tokens_follow_the_softmax(sampled):
    """32,000 draws over 12 ids at temperature 0.7: a chi-square test at one in ten thousand. Corrections are all 0."""
    stats = pytest.importorskip("scipy.stats", reason="needs SciPy")
    y = torch.tensor([0.5, -1, 2, 0, 1.5, -0.25, 1, -2, 0.75, 1.25, -0.5, 0.25])
    nothing = torch.zeros(12, 64, dtype=torch.bfloat16, device="cuda")
    walk = Walk(MarkovHead(nothing, nothing), steps=STEPS, max_batch=4, mode="resident", sampling=True, placement=sampled[1].placement)
    base = y.to(device="cuda", dtype=torch.bfloat16).expand(4, STEPS, 12).contiguous()
    temperatures, offset = torch.full((4,), 0.7, device="cuda"), offset_of(0)
    tokens = torch.empty((500, 4, STEPS), dtype=torch.int64, device="cuda")
    for call in range(500):
        walk(base, torch.zeros(4, dtype=torch.int64, device="cuda"), temperatures=temperatures, noise=(17, offset), tokens_out=tokens[call])
    walk.check()
    assert offset.item() == 500
    counts = torch.bincount(tokens.flatten(), minlength=12).cpu().numpy()
    expected = torch.softmax(y.double() / 0.7, dim=0).numpy() * counts.sum()
    assert stats.chisquare(counts, expected).pvalue > 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": None}, "noise"),
        ({"temperatures": "ones of 3"}, "temperatures"),
        ({"temperatures": "double"}, "temperatures"),
        ({"noise": "int32"}, "offset|noise"),
        ({"noise": "cpu"}, "offset|noise"),
        ({"logits_out": "float"}, "logits_out"),
        ({"logits_out": "short"}, "logits_out"),
    ],
)
def test_a_sampling_call_that_does_not_fit_is_refused_before_the_launch(sampled, change, message):
    head, walk, base, anchor = sampled
    made = {
        "ones of 3": lambda: torch.ones(3, device="cuda"), "double": lambda: torch.ones(4, dtype=torch.float64, device="cuda"),
        "int32": lambda: (KEY, torch.zeros(1, dtype=torch.int32, device="cuda")), "cpu": lambda: (KEY, torch.zeros(1, dtype=torch.int64)),
        "float": lambda: torch.empty(4, STEPS, head.vocab_size, device="cuda"),
        "short": lambda: torch.empty(4, STEPS, head.vocab_size - 1, dtype=torch.bfloat16, device="cuda"),
    }  # fmt: skip
    arguments = {"temperatures": torch.ones(4, device="cuda"), "noise": (KEY, offset_of(0))}
    arguments |= {name: None if value is None else made[value]() for name, value in change.items()}
    with pytest.raises(ValueError, match=message):
        walk(base, anchor, **arguments)


def test_a_greedy_kernel_refuses_temperatures():
    head = MarkovHead.random(40_000, 64, device="cuda")
    walk = Walk(head, steps=STEPS, mode="resident")
    base, anchor = make_inputs(head, 1)
    with pytest.raises(ValueError, match="sampling"):
        walk(base, anchor, temperatures=torch.ones(1, device="cuda"), noise=(KEY, offset_of(0)))
