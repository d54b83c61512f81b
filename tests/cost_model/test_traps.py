"""Traps: found where the facts say so, deciding where the walk would be laid or timed otherwise."""

import pytest

from cost_model.gpu import list_gpus, load_gpu
from cost_model.head import Head
from cost_model.placement import plan
from cost_model.traps import find_traps
from cost_model.workload import Workload
from tests.cost_model.walk_examples import QWEN, study_h200


def traps(gpu_id, head=QWEN, **workload):
    return {trap.name: trap for trap in find_traps(load_gpu(gpu_id), head, Workload(**workload))}


def test_a_block_has_99_kib_on_ada_and_consumer_blackwell():
    ada = traps("rtx-4090")["block-shared-memory"]
    assert ada.decides and ada.facts == {"smem_bytes_per_block_optin": 101_376, "sm_count": 128}
    here = plan(load_gpu("rtx-4090"), QWEN, "int8x2", "resident")
    assert f"{100 * (1 - here.residency):.1f} %" in ada.says and "with that much, 0 % of the tiles stream" in ada.says
    assert not traps("rtx-5090")["block-shared-memory"].decides, "170 multiprocessors hold it all the same"
    assert traps("rtx-5090", precision="bf16")["block-shared-memory"].decides
    assert "block-shared-memory" not in traps("h200-sxm") and "block-shared-memory" not in traps("b200-sxm")


def test_a_small_vocabulary_is_not_caught_by_small_shared_memory():
    assert not traps("rtx-4090", Head.markov(16_000, 256))["block-shared-memory"].decides


def test_int8_runs_at_a_29th_of_fp8_on_b300():
    trap = traps("b300-sxm")["int8-rate"]
    assert trap.decides and trap.facts["fp8_dense_flops_per_s"] / trap.facts["int8_dense_ops_per_s"] == pytest.approx(29, abs=0.5)
    assert "int8-rate" not in traps("b200-sxm") and "int8-rate" not in traps("h200-sxm")
    assert not traps("b300-sxm", Head.markov(1_000, 32))["int8-rate"].decides, "a matrix that small is multiplied in no time"


def test_an_l2_that_holds_the_matrix_is_a_fast_baseline():
    assert traps("h200-sxm")["l2-holds-matrix"].decides, "37 MiB of int8 in 60 MiB"
    assert not traps("h200-sxm", precision="bf16")["l2-holds-matrix"].decides, "74 MiB of bf16"
    assert traps("b200-sxm", precision="bf16")["l2-holds-matrix"].decides
    assert not traps("h200-sxm", batch=32)["l2-holds-matrix"].decides, "148 MiB of base logits pass through"


def test_tensor_memory_would_hold_what_streams():
    assert not traps("b200-sxm")["tensor-memory"].decides
    bf16 = traps("b200-sxm", precision="bf16")["tensor-memory"]
    here = plan(load_gpu("b200-sxm"), QWEN, "bf16", "resident")
    room = 262_144 // 8192 / here.streamed_tiles
    assert bf16.decides and f"would hold {100 * room:.1f} % of them" in bf16.says
    assert "tensor-memory" not in traps("h200-sxm"), "TMEM starts with sm_100"


@pytest.mark.parametrize("gpu_id", list_gpus())
def test_every_gpu_can_be_asked(gpu_id):
    gpu = load_gpu(gpu_id)
    for precision in ("int8x2", "bf16"):
        found = find_traps(gpu, QWEN, Workload(precision=precision))
        assert [trap.decides for trap in found] == sorted((trap.decides for trap in found), reverse=True)
        for trap in found:
            assert trap.facts and all(value == gpu.value(name) for name, value in trap.facts.items()) and trap.as_dict()["says"]


def test_asking_what_if_leaves_the_gpu_as_it_was():
    gpu = study_h200()
    before = dict(gpu.figures)
    find_traps(gpu, QWEN, Workload())
    assert dict(gpu.figures) == before
