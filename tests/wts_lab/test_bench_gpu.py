"""The device side of measuring, as far as a CPU can run it: inputs, exactness of the check weights, and a whole subject around
the stepwise walk, captured by a plain function instead of a CUDA graph. tests/gpu/test_bench.py runs the rest."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="inputs are torch tensors")

from cost_model.head import Head  # noqa: E402
from wts_lab.bench_gpu import Agreement, GpuBench, GroupInputs, Subject  # noqa: E402
from wts_lab.bench_plan import resident_case, stepwise_case  # noqa: E402
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402
from wts_lab.reference import twin_walks, twin_walks_bf16  # noqa: E402
from wts_lab.stepwise import StepwiseWalk  # noqa: E402

SHAPE = Head("padded", "markov", vocab_size=500, target_vocab_size=600, padded_vocab_size=512, rank=64)
STEPS = 5


@pytest.fixture
def inputs():
    return GroupInputs(stepwise_case(SHAPE), STEPS, seed=11, device="cpu")


def eager(work):
    """Stands in for a CUDA graph: repeats the work by doing it again."""
    return work


def bits(tensor):
    return tensor.view(torch.int16).numpy().view(np.uint16)


def test_inputs_have_the_shape_of_the_head_and_one_seed_gives_one_draw(inputs):
    assert inputs.head.shape.vocab_size == 500 and inputs.head.shape.padded_vocab_size == 512
    assert inputs.base.shape == (1, STEPS, 500) and inputs.base.dtype == torch.bfloat16
    again = GroupInputs(stepwise_case(SHAPE), STEPS, seed=11, device="cpu")
    other = GroupInputs(stepwise_case(SHAPE), STEPS, seed=12, device="cpu")
    assert torch.equal(inputs.base, again.base) and torch.equal(inputs.anchor, again.anchor)
    assert torch.equal(inputs.head.markov_w2.weight, again.head.markov_w2.weight)
    assert not torch.equal(inputs.base, other.base)


def test_a_fresh_draw_changes_inputs_in_place_and_forgets_what_was_expected(inputs):
    place, before = inputs.base.data_ptr(), inputs.base.clone()
    expected = inputs.expected_int8x2("once")
    assert inputs.expected_int8x2("once") is expected
    inputs.draw()
    assert inputs.base.data_ptr() == place and not torch.equal(inputs.base, before)
    assert torch.equal(inputs.base, inputs.source)
    assert inputs.expected_int8x2("once") is not expected


def test_what_is_expected_is_the_numpy_twin(inputs):
    head = inputs.head
    codes = [array.numpy() for array in (*quantize_rows(head.markov_w2.weight), *quantize_latents(head.markov_w1.weight))]
    twin = twin_walks(*codes, bits(inputs.base), inputs.anchor.numpy(), vocab_size=500)
    np.testing.assert_array_equal(inputs.expected_int8x2("once").numpy(), twin.tokens)


def test_check_weights_are_exact_in_fp32_at_the_largest_rank():
    inputs = GroupInputs(stepwise_case(Head.markov(64, 512)), 2, seed=3, device="cpu")
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


def test_a_walk_that_computes_something_else_is_not_a_match(inputs):
    class OffByOne(Subject):
        def _make(self, head):
            walk = super()._make(head)

            def shifted(base, anchor, tokens_out=None):
                tokens = (walk(base, anchor) + 1) % head.vocab_size
                return tokens if tokens_out is None else tokens_out.copy_(tokens)

            return shifted

    agreement = OffByOne(stepwise_case(SHAPE), inputs, (STEPS,), lambda: None, eager).check()
    assert agreement.tokens_match < 0.5 and agreement.tokens_agree_reference < 0.5


def test_what_precedes_a_call_in_each_l2_state(inputs):
    flushed = []
    subject = Subject(stepwise_case(SHAPE), inputs, (2, STEPS), lambda: flushed.append(1), eager)
    assert subject.before(2, "warm") is None
    subject.before(2, "cold")()
    assert len(flushed) == 1
    inputs.base.zero_()
    subject.before(2, "serving")()
    assert len(flushed) == 2
    assert torch.equal(inputs.base[:, :2], inputs.source[:, :2]), "the base logits of the walk were just written"
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
            inputs = GroupInputs(cases[0], max(steps), seed, "cpu")
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
