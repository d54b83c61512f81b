"""Numbers that cannot be are refused wherever Python hands them in: never a NaN, a crash or a made-up number in return."""

import math

import pytest

from cost_model.errors import BadInput
from cost_model.gain import byte_floor_us, split_measured_head
from cost_model.gpu import BandwidthCurve, Figure, Gpu, MissingFact, load_gpu
from cost_model.phases import given
from cost_model.predict import predict
from cost_model.round import Round, break_even_rest_us, break_even_steps, break_even_verify_us, round_gain
from cost_model.substitutes import choose_shard, shard_of
from cost_model.sweep import Grid
from cost_model.timeline import walk_timeline
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, study_h200

STUDY, NAN, INF = study_h200(), math.nan, math.inf
REST = Round(verify_us=3000.0, backbone_us=500.0, accepted_length=3.5)
BF16 = Workload(precision="bf16")
WALK = predict(STUDY, QWEN, Workload(), "resident")
READ = Figure(1e12, "B/s", "measured", "made up")


@pytest.mark.parametrize("ask, words", [
    (lambda: Grid((STUDY,), (QWEN,), temperatures=(True,)), "temperature is True"),
    (lambda: Grid((STUDY,), (QWEN,), temperatures=(NAN,)), "temperature is nan"),
    (lambda: Grid((STUDY,), (QWEN,), batches=(1, NAN)), "batch is nan; it must be a whole number from 1 to 32"),
    (lambda: WALK.call_us(-1), "steps is -1; .* at least 0"),
    (lambda: WALK.call_us(NAN), "steps is nan"),
    (lambda: walk_timeline(WALK, 0), "steps is 0; it must be at least 1"),
    (lambda: walk_timeline(WALK, NAN), "steps is nan; it must be a whole number"),
    (lambda: byte_floor_us(STUDY, QWEN, -1), "steps is -1; it must be at least 1"),
    (lambda: split_measured_head(STUDY, QWEN, BF16, graphed_us=INF), "graphed_us is inf"),
    (lambda: split_measured_head(STUDY, QWEN, BF16, graphed_us="300"), "graphed_us is '300'"),
    (lambda: split_measured_head(STUDY, QWEN, BF16, graphed_us=900.0, eager_us=NAN), "eager_us nan; times are above 0"),
    (lambda: round_gain(REST, 100.0, 50.0, before_interval_us=(NAN, 110.0)), "before_interval_us is .nan.*two finite ends"),
    (lambda: round_gain(REST, 100.0, 50.0, after_interval_us=(60.0, 40.0)), "after_interval_us is .60.0, 40.0.; .*the lower one first"),
    (lambda: break_even_rest_us(NAN, 50.0, 0.01), "before_us is nan; it must be a finite number"),
    (lambda: break_even_verify_us(REST, 100.0, INF, 0.01), "after_us is inf"),
    (lambda: break_even_steps((NAN, 2.0), (1.0, 1.0)), "entry before is nan; .*finite times"),
    (lambda: choose_shard("fused", 10.0, 5.0, 16, -1.0), "collective_us is -1.0; it must be a finite number of at least 0"),
    (lambda: choose_shard("fused", 10.0, 5.0, 0, 1.0), "steps is 0; it must be at least 1"),
    (lambda: shard_of(QWEN, 0), "ranks is 0; it must be at least 1"),
    (lambda: given(NAN), "the time of a phase is nan"),
    (lambda: given(5.0, (6.0, 7.0)), "the time of a phase is 5.0 with the interval .6.0, 7.0.; .*between the interval's ends"),
    (lambda: BandwidthCurve((1.0, NAN), (READ, READ)), "footprints of a curve must be above 0, finite"),
])
def test_what_cannot_be_is_refused(ask, words):
    with pytest.raises(BadInput, match=words):
        ask()


@pytest.mark.parametrize("mode, precision", [("resident", "int8x2"), ("streaming", "int8x2")])
@pytest.mark.parametrize("fact", ["sm_count", "l2_bytes", "dram_bandwidth_bytes_per_s", "int8_dense_ops_per_s", "smem_bytes_per_block_optin", "smem_bytes_per_sm",
                                  "register_file_bytes_per_sm", "boost_clock_mhz"])
def test_a_gpu_without_a_needed_fact_is_refused_by_the_facts_name(fact, mode, precision):
    whole = load_gpu("b200-sxm")
    gpu = Gpu(**{**{name: getattr(whole, name) for name in Gpu.__dataclass_fields__}, "figures": {name: one for name, one in whole.figures.items() if name != fact}})
    with pytest.raises(MissingFact, match=f"b200-sxm lacks .*{fact}"):
        predict(gpu, QWEN, Workload(precision=precision), mode)
