"""The device side of measuring, as far as a CPU can run it: inputs, exactness of the check weights, and a whole subject around
the stepwise walk, captured by a plain function instead of a CUDA graph. tests/gpu/test_bench.py runs the rest."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="inputs are torch tensors")

from cost_model.head import Head  # noqa: E402
from wts_lab.bench_gpu import Agreement, GpuBench, Subject, make_walk, walk_options  # noqa: E402
from wts_lab.bench_inputs import FIRST_OFFSET, GroupInputs, checked_draws, draw_head  # noqa: E402
from wts_lab.bench_plan import ENGINE_PATHS, engine_case, resident_case, stepwise_case, streaming_case  # noqa: E402
from wts_lab.head_terms import position_terms  # noqa: E402
from wts_lab.heads import HEAD_CLASSES  # noqa: E402
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402
from wts_lab.recurrent_twin import twin_head_walks  # noqa: E402
from wts_lab.reference import twin_walks, twin_walks_bf16  # noqa: E402
from wts_lab.stepwise import StepwiseWalk, candidate_ids  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402

SHAPE = Head("padded", "markov", vocab_size=500, target_vocab_size=600, padded_vocab_size=512, rank=64)
STEPS = 5
SIZES = {"vocab_size": 500, "target_vocab_size": 600, "padded_vocab_size": 512, "rank": 64, "hidden_size": 48}
KINDS = {
    "markov": SHAPE, "gated": Head("gated", "gated", **SIZES), "rnn": Head("rnn", "rnn", **SIZES),
    "domino": Head("domino", "domino", **SIZES, gru_size=32), "pool": Head("pool", "domino", **SIZES, gru_size=32, candidate_pool=100),
}  # fmt: skip


@pytest.fixture
def inputs():
    return GroupInputs([stepwise_case(SHAPE)], STEPS, seed=11, device="cpu")


def eager(work):
    """Stands in for a CUDA graph: repeats the work by doing it again."""
    return work


def bits(tensor):
    return tensor.view(torch.int16).numpy().view(np.uint16)


def test_inputs_have_the_shape_of_the_head_and_one_seed_gives_one_draw(inputs):
    assert inputs.head.shape.vocab_size == 500 and inputs.head.shape.padded_vocab_size == 512
    assert inputs.base.shape == (1, STEPS, 500) and inputs.base.dtype == torch.bfloat16
    again = GroupInputs([stepwise_case(SHAPE)], STEPS, seed=11, device="cpu")
    other = GroupInputs([stepwise_case(SHAPE)], STEPS, seed=12, device="cpu")
    assert torch.equal(inputs.base, again.base) and torch.equal(inputs.anchor, again.anchor)
    assert torch.equal(inputs.head.markov_w2.weight, again.head.markov_w2.weight)
    assert not torch.equal(inputs.base, other.base)


def test_weights_have_the_spread_of_the_heads_of_that_kind():
    for shape in KINDS.values():
        head = draw_head(shape, torch.Generator().manual_seed(5))
        assert head.shape == shape
        spreads = HEAD_CLASSES[shape.kind].spreads(shape)
        for name, tensor in head.state_dict().items():
            ratio = tensor.double() / torch.as_tensor(spreads[name]).double()
            assert tensor.dtype == torch.bfloat16 and abs(float(ratio.std()) - 1) < 0.3, name


def test_a_fresh_draw_changes_inputs_in_place_and_forgets_what_was_expected(inputs):
    case = resident_case(SHAPE)
    place, before = inputs.base.data_ptr(), inputs.base.clone()
    expected = inputs.expected(case, STEPS)
    assert inputs.expected(case, 2) is expected, "a shorter walk is the beginning of the longest"
    inputs.draw()
    assert inputs.base.data_ptr() == place and not torch.equal(inputs.base, before)
    assert inputs.expected(case, STEPS) is not expected


def test_what_is_expected_is_the_numpy_twin(inputs):
    head = inputs.head
    codes = [array.numpy() for array in (*quantize_rows(head.markov_w2.weight), *quantize_latents(head.markov_w1.weight))]
    for rounding in ("once", "twice", "none"):
        twin = twin_walks(*codes, bits(inputs.base), inputs.anchor.numpy(), vocab_size=500, rounding=rounding)
        np.testing.assert_array_equal(inputs.expected(resident_case(SHAPE, rounding=rounding), STEPS).tokens.numpy(), twin.tokens)


@pytest.mark.parametrize(("batch", "draws"), [(1, 4), (2, 4), (4, 4), (8, 2), (16, 1), (32, 1)])
def test_many_walks_a_draw_need_fewer_draws(batch, draws):
    assert checked_draws(batch) == draws


@pytest.mark.parametrize("kind", ["gated", "rnn", "domino"])
def test_other_heads_get_hidden_vectors_and_domino_one_more_position(kind):
    inputs = GroupInputs([resident_case(KINDS[kind], batch=3)], STEPS, seed=1, device="cpu")
    positions = STEPS + (kind == "domino")
    assert inputs.base.shape == (3, positions, 500) and inputs.hidden.shape == (3, positions, 48)
    assert inputs.noise is None and inputs.temperatures is None and inputs.logits is None
    assert set(inputs.options(resident_case(KINDS[kind], batch=3), 2)) == {"hidden"}
    wanted = inputs.hidden.clone()
    inputs.hidden.zero_(), inputs.base.zero_()
    inputs.write(2)
    assert torch.equal(inputs.hidden[:, :2], wanted[:, :2]) and not inputs.hidden[:, 2:].any() and inputs.base[:, :2].any()


def test_sampled_inputs_are_checked_at_temperature_one_and_timed_at_their_own():
    case = resident_case(SHAPE, batch=2, temperature=0.7, logits_kept=True)
    inputs = GroupInputs([resident_case(SHAPE, batch=2, temperature=0.7), case], STEPS, seed=1, device="cpu")
    options = inputs.options(case, 3)
    assert set(options) == {"temperatures", "noise", "logits_out"} and options["logits_out"].shape == (2, 3, 500)
    inputs.begin_check()
    assert options["temperatures"].tolist() == [1.0, 1.0] and options["noise"][1].tolist() == [FIRST_OFFSET]
    inputs.end_check()
    assert options["temperatures"].tolist() == pytest.approx([0.7, 0.7])


def test_check_weights_are_exact_in_fp32_at_the_largest_rank():
    inputs = GroupInputs([stepwise_case(Head.markov(64, 512))], 2, seed=3, device="cpu")
    head = inputs.exact_head()
    assert head.shape.rank == 512 and head.shape.vocab_size == 64
    w2, w1 = head.markov_w2.weight.float().numpy(), head.markov_w1.weight.float().numpy()
    exact = w1.astype(np.float64) @ w2.astype(np.float64).T
    np.testing.assert_array_equal(exact.astype(np.float32), exact)
    twin_walks_bf16(w2, w1, bits(inputs.base), inputs.anchor.numpy())  # raises where a product is not exact
    assert np.abs(w2).max() == 1.0


def test_a_stepwise_subject_equals_the_twin_and_agrees_with_itself(inputs):
    subject = Subject(stepwise_case(SHAPE), inputs, (1, 3, STEPS), lambda: None, eager)
    assert subject.check() == Agreement(1.0, 1.0)
    subject.settle()
    assert subject.recheck() == 1.0


def test_replays_of_shorter_walks_are_prefixes_of_the_longest(inputs):
    subject = Subject(stepwise_case(SHAPE), inputs, (1, 3, STEPS), lambda: None, eager)
    subject.settle()
    whole = StepwiseWalk(inputs.head)(inputs.base, inputs.anchor)
    for length in (1, 3, STEPS):
        subject.call(length)()
        assert torch.equal(subject._tokens[length], whole[:, :length])


def test_tokens_that_change_after_the_timing_are_noticed(inputs):
    subject = Subject(stepwise_case(SHAPE), inputs, (STEPS,), lambda: None, eager)
    subject.settle()
    inputs.head.markov_w2.weight.data.neg_()
    assert subject.recheck() < 1.0


class TwinWalk:
    """A fused int8x2 walk as it should be: the twin, called as `Walk` is. ``fault`` is called on its result."""

    def __init__(self, head, case, fault=lambda tokens, logits: None):
        self.head, self.case, self.fault, self.calls = head, case, fault, 0

    def twin(self, base, anchor, hidden, **options):
        if self.head.kind == "markov":
            return expected_walks(self.head, base, anchor, **options)
        if self.head.candidate_pool is not None:
            kept = candidate_ids(base[:, 1:], self.head.candidate_pool)
            outside = torch.ones(base.shape[0], base.shape[2], dtype=torch.bool).scatter_(1, kept, False)
            base = torch.cat([base[:, :1], base[:, 1:].masked_fill(outside[:, None], -torch.inf)], dim=1)
        return twin_head_walks(self.head, base, anchor, position_terms(self.head, hidden), **options)

    def __call__(self, base, anchor, *, hidden=None, temperatures=None, noise=None, tokens_out=None, logits_out=None):
        self.calls += 1
        options = {} if noise is None else {"temperatures": temperatures, "noise": (noise[0], int(noise[1])), "rows": torch.arange(len(anchor))}
        twin = self.twin(base, anchor, hidden, rounding=self.case.rounding, keep_logits=True, **options)
        if noise is not None:
            noise[1].add_(1)
        if logits_out is not None:
            logits_out.copy_(twin.logits)
        tokens = twin.tokens if tokens_out is None else tokens_out.copy_(twin.tokens)
        self.fault(tokens, logits_out)
        return tokens


def twin_subject(case, inputs, steps=(1, 3, STEPS), **options):
    class OfTwin(Subject):
        def _make(self, head):
            return TwinWalk(head, case, **options) if case.precision == "int8x2" else StepwiseWalk(head, rounding=case.rounding)

    return OfTwin(case, inputs, steps, lambda: None, eager)


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
def test_a_greedy_walk_is_compared_with_the_twin_of_its_rounding(rounding):
    case = resident_case(SHAPE, batch=4, rounding=rounding)
    agreement = twin_subject(case, GroupInputs([case], STEPS, seed=3, device="cpu")).check()
    assert agreement.tokens_match == 1.0 and agreement.logits_match is None and agreement.tokens_agree_reference > 0.8


@pytest.mark.parametrize("make", [resident_case, partial(streaming_case, precision="bf16"), stepwise_case])
def test_a_sampled_walk_is_compared_under_the_same_noise_in_every_call(make):
    case = make(SHAPE, batch=3, temperature=0.7, logits_kept=True)
    inputs = GroupInputs([case], STEPS, seed=3, device="cpu")
    subject = Subject(case, inputs, (1, 3, STEPS), lambda: None, eager) if make is stepwise_case else twin_subject(case, inputs)
    agreement = subject.check()
    assert agreement.tokens_match == agreement.logits_match == 1.0 and agreement.tokens_agree_reference > 0.8
    subject.settle()
    assert inputs.temperatures.tolist() == pytest.approx([0.7] * 3), "timed at its own temperature"
    subject.call(STEPS)()
    assert int(inputs.noise[1]) == FIRST_OFFSET + 2, "and under ever new noise"
    assert subject.recheck() == 1.0


@pytest.mark.parametrize(("kind", "temperature"), [("gated", 0.0), ("rnn", 0.0), ("domino", 0.0), ("pool", 0.0), ("gated", 1.0), ("rnn", 0.7)])
def test_walks_of_other_heads_are_compared_with_their_twin(kind, temperature):
    case = resident_case(KINDS[kind], batch=2, temperature=temperature, logits_kept=kind != "pool")
    inputs = GroupInputs([case], STEPS, seed=9, device="cpu")
    agreement = twin_subject(case, inputs, steps=(2, STEPS)).check()
    assert agreement.tokens_match == 1.0 and agreement.logits_match == (None if kind == "pool" else 1.0) and agreement.tokens_agree_reference > 0.8


def test_tokens_and_kept_logits_that_differ_are_counted():
    case = resident_case(SHAPE, batch=2, logits_kept=True)

    def wrong_logits(tokens, logits):
        if logits is not None:
            logits[:, 0] += 1

    inputs = GroupInputs([case], STEPS, seed=3, device="cpu")
    agreement = twin_subject(case, inputs, fault=wrong_logits).check()
    assert agreement.tokens_match == 1.0 and agreement.logits_match == pytest.approx(1 - 3 / (1 + 3 + STEPS), abs=0.01)
    agreement = twin_subject(case, inputs, fault=lambda tokens, logits: tokens.add_(1).remainder_(500)).check()
    assert agreement.tokens_match < 0.2 and agreement.tokens_agree_reference < 0.2


def test_a_probe_is_run_but_its_tokens_mean_nothing():
    case = resident_case(SHAPE, probe="exchange")
    subject = twin_subject(case, GroupInputs([case], STEPS, seed=3, device="cpu"), fault=lambda tokens, logits: tokens.random_(500))
    assert subject.check() == Agreement()
    subject.settle()
    assert subject.recheck() == 1.0 and subject._walk.calls == 9


@pytest.mark.parametrize("kind", ["gated", "rnn", "domino", "pool"])
def test_stepwise_walks_of_other_heads_agree_with_the_reference_and_have_no_twin(kind):
    case = stepwise_case(KINDS[kind], batch=2)
    subject = Subject(case, GroupInputs([case], STEPS, seed=5, device="cpu"), (1, STEPS), lambda: None, eager)
    assert subject.check() == Agreement(None, 1.0)
    subject.settle()
    subject.call(STEPS)()
    assert subject._tokens[STEPS].shape == (2, case.positions(STEPS)) and subject.recheck() == 1.0


def test_what_a_fused_case_asks_of_the_walk_leaves_the_usual_out():
    assert walk_options(resident_case(SHAPE)) == {"mode": "resident", "precision": "int8x2", "placement": None}
    case = resident_case(SHAPE, batch=8, rounding="twice", temperature=1.0, exchange="dense-lines", probe="state")
    assert walk_options(case) == {"mode": "resident", "precision": "int8x2", "placement": None, "max_batch": 8, "rounding": "twice",
                                  "sampling": True, "probe": "state"}  # fmt: skip


def test_the_plan_and_the_engine_module_agree_on_its_paths():
    from wts_lab.engines.sglang import PATHS

    assert dict(ENGINE_PATHS.values()) == PATHS


def test_an_engine_is_made_from_its_folder_and_the_path_of_its_variant(monkeypatch):
    module = ModuleType("wts_lab.engines.sglang")
    module.SglangWalk = lambda head, *, path, root: (head, path, root)
    monkeypatch.setitem(sys.modules, "wts_lab.engines.sglang", module)
    assert make_walk(engine_case(SHAPE, "MarkovGreedyStep"), "head", 4, "folder") == ("head", "greedy", "folder")
    assert make_walk(engine_case(SHAPE, "MarkovSampleStep"), "head", 4) == ("head", "sample", None)


def test_what_precedes_a_call_in_each_l2_state(inputs):
    flushed = []
    subject = Subject(stepwise_case(SHAPE), inputs, (2, STEPS), lambda: flushed.append(1), eager)
    assert subject.before(2, "warm") is None
    subject.before(2, "cold")()
    assert len(flushed) == 1
    wanted = inputs.base.clone()
    inputs.base.zero_()
    subject.before(2, "serving")()
    assert len(flushed) == 2
    assert torch.equal(inputs.base[:, :2], wanted[:, :2]), "the base logits of the walk were just written"
    assert not inputs.base[:, 2:].any(), "and no others"


def test_the_reference_has_no_placement(inputs):
    facts = Subject(stepwise_case(SHAPE), inputs, (1,), lambda: None, eager).facts()
    assert set(facts.values()) == {None}


def test_real_subjects_go_through_the_whole_protocol_into_rows_of_the_format(tmp_path):
    """Real inputs, checks and walks on the CPU, timed by the host's clock: only the GPU and its gate are missing."""
    from time import perf_counter

    from cost_model.measurement import read_walk, write_walk
    from wts_lab.bench import stream_points
    from wts_lab.nvml import NvmlDevice

    class HostTimer:
        def busy(self, us):
            pass

        def burst(self, key, timed, *, repeats, warmup, before):
            times = []
            for number in range(warmup + repeats):
                if before is not None:
                    before()
                start = perf_counter()
                timed()
                times.append((perf_counter() - start) * 1e6)
            return times[warmup:]

    class HostBench:
        timer = HostTimer()

        def build(self, cases):
            pass

        def prepare(self, cases, steps, seed):
            inputs = GroupInputs(cases, max(steps), seed, "cpu")
            return [Subject(case, inputs, steps, lambda: None, eager) for case in cases]

        def clocks(self):
            return NvmlDevice(None, None).clocks()

        def release(self):
            pass

    rows = list(stream_points([stepwise_case(SHAPE)], (1, 4), ("warm", "serving"), repeats=3, bench=HostBench(), provenance={}))
    frame = read_walk(write_walk(tmp_path / "host.parquet", rows))
    assert len(frame) == 4 and set(frame["tokens_match"]) == {1.0} and set(frame["tokens_agree_reference"]) == {1.0}
    assert frame["sm_clock_mhz_before"].isna().all() and frame["throttle_reasons"].isna().all()
    assert all(len(samples) == 3 and samples.min() > 0 for samples in frame["samples_us"])


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a CUDA device")
def test_without_a_device_the_error_says_what_can_be_done_instead():
    with pytest.raises(RuntimeError, match="wts-lab study replays recorded runs"):
        GpuBench()
    assert resident_case(SHAPE).placement is None
