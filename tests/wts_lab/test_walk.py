"""The walk before it reaches a GPU: what is planned and what is refused. Its results are tested in tests/gpu/test_walk.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cost_model import Head, load_gpu  # noqa: E402
from cost_model.gpu import Figure, Gpu  # noqa: E402
from cost_model.placement import Placement, PlanError, capacity_problem, plan  # noqa: E402
from wts_lab.bench_gpu import walk_spec  # noqa: E402
from wts_lab.bench_plan import resident_case, streaming_case  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.walk import LaunchRefused, Walk, plan_walk  # noqa: E402

H200, QWEN = load_gpu("h200-sxm"), Head.markov(151_936, 256)


@pytest.mark.parametrize(("mode", "precision"), [("resident", "int8x2"), ("streaming", "int8x2"), ("streaming", "bf16")])
def test_without_a_placement_the_planners_is_built_over_every_multiprocessor(mode, precision):
    planned = plan_walk(H200, QWEN, mode=mode, precision=precision)
    assert planned.grid_blocks == 132
    assert planned.placement == plan(H200, QWEN, precision, mode)
    assert planned.spec.slots == planned.placement.slots and planned.spec.rank == 256


@pytest.mark.parametrize("vocab_size", [1, 16, 17, 2111, 2112])
def test_a_small_vocabulary_gets_no_more_blocks_than_tiles(vocab_size):
    planned = plan_walk(H200, Head.markov(vocab_size, 64), mode="resident", precision="int8x2")
    assert planned.grid_blocks == min(132, -(-vocab_size // 16))


@pytest.mark.parametrize(("multiprocessors", "shared_bytes"), [(132, 232_448), (48, 101_376), (188, 101_376)])
def test_a_gpu_of_no_catalogue_is_planned_from_what_its_driver_says(multiprocessors, shared_bytes):
    facts = {"sm_count": (multiprocessors, "SM"), "smem_bytes_per_block_optin": (shared_bytes, "B")}
    gpu = Gpu("unverified", "NVIDIA X999", (), (9, 0), {name: Figure(value, unit, "datasheet", "driver") for name, (value, unit) in facts.items()})
    placement = plan_walk(gpu, QWEN, mode="resident", precision="int8x2").placement
    assert capacity_problem(placement, gpu, 256, "int8x2") is None
    if multiprocessors == 132:  # an H200 that nobody knows gets what an H200 gets
        assert placement == plan(H200, QWEN, "int8x2", "resident")


def test_the_benchmark_builds_what_the_walk_will_ask_for():
    for case in (resident_case(QWEN), streaming_case(QWEN)):
        assert walk_spec(case, H200) == plan_walk(H200, QWEN, mode=case.mode, precision=case.precision).spec


def test_a_placement_that_cannot_hold_the_matrix_or_contradicts_the_mode_is_refused():
    with pytest.raises(ValueError, match="holds 64 tiles a block; 9496 tiles over 132 blocks need 72"):
        plan_walk(H200, QWEN, mode="resident", precision="int8x2", placement=Placement(8, 40, 24, 0, 0))
    with pytest.raises(ValueError, match="a streaming walk keeps nothing on chip"):
        plan_walk(H200, QWEN, mode="streaming", precision="int8x2", placement=Placement(8, 40, 32, 0, 0))
    with pytest.raises(PlanError, match="bf16"):
        plan_walk(load_gpu("rtx-4090"), Head.markov(1 << 20, 512), mode="resident", precision="bf16")


@pytest.mark.parametrize(
    ("temperatures", "message"),
    [
        (0.7, r"temperatures is 0.7; give a float32 tensor \[batch\] on cuda:0, 0 for a greedy row"),
        (torch.tensor([float("nan")]), r"temperatures are \[nan\]; each must be a finite number of at least 1.18e-38, or 0"),
        (torch.tensor([1.0, -1.0]), r"temperatures are \[1.0, -1.0\]; each must be a finite number of at least 1.18e-38, or 0"),
    ],
)
def test_temperatures_that_the_host_can_see_are_checked(temperatures, message):
    walk = SimpleNamespace(sampling=True, device=torch.device("cuda", 0))
    with pytest.raises(ValueError, match=message):
        Walk._checked_noise(walk, temperatures, (1, torch.tensor([0])))
    on_a_device = torch.tensor([-1.0], device="meta")
    assert Walk._checked_noise(walk, on_a_device, (-1, None)) == ((1 << 64) - 1, None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU is told")
def test_without_a_gpu_a_walk_says_what_still_works():
    with pytest.raises(LaunchRefused, match="no CUDA device is visible.*recorded runs need none"):
        Walk(MarkovHead.random(64, 32), steps=3, mode="resident")
