"""The shipped GPU facts: invariants that hold for every SKU, and arithmetic that ties facts together."""

import re

import pytest

from cost_model.catalogue import read_facts
from cost_model.figures import expected_unit
from cost_model.gpu import AnotherGpu, list_gpus, load_gpu, require_same_gpu
from cost_model.paths import data_root

IDENTITY = ("sm_count", "dram_bandwidth_bytes_per_s", "register_file_bytes_per_sm", "smem_bytes_per_sm", "smem_bytes_per_block_optin")
OPERATIONS_PER_CLOCK = {(8, 0): 4096, (9, 0): 8192, (10, 0): 16384}
"""Dense int8 operations a cycle and multiprocessor: NVIDIA's tensor rates by compute capability."""

GPUS = [load_gpu(one, calibrated=False) for one in list_gpus()]
WITH_CLOCKED_RATE = [
    gpu for gpu in GPUS
    if gpu.compute_capability in OPERATIONS_PER_CLOCK and gpu.has("int8_dense_ops_per_s") and gpu.has("boost_clock_mhz")
]
WITH_BOTH_RATES = [gpu for gpu in GPUS if gpu.has("int8_dense_ops_per_s") and gpu.has("bf16_dense_flops_per_s")]
EVERY_GPU = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.id)


def test_the_catalogue_holds_the_gpus_that_users_have():
    assert len(GPUS) == 25 and len(WITH_CLOCKED_RATE) >= 8 and len(WITH_BOTH_RATES) >= 15
    for wanted in ("a100-sxm-80gb", "l40s", "rtx-4090", "h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "h20", "gh200", "rtx-pro-6000-server", "rtx-pro-6000-workstation", "b200-sxm", "b300-sxm", "rtx-5090"):
        assert wanted in list_gpus()


@EVERY_GPU
def test_every_gpu_can_be_told_and_bounded(gpu):
    gpu.require(IDENTITY)
    assert gpu.value("register_file_bytes_per_sm") == 65_536 * 4
    assert gpu.driver_names


@EVERY_GPU
def test_a_block_gets_the_multiprocessors_shared_memory_less_one_kib(gpu):
    assert gpu.value("smem_bytes_per_sm") - gpu.value("smem_bytes_per_block_optin") == 1024


@EVERY_GPU
def test_tensor_memory_exists_from_compute_capability_10_to_11(gpu):
    assert (gpu.value("tmem_bytes_per_sm") > 0) == (gpu.compute_capability[0] == 10)


@EVERY_GPU
def test_every_figure_has_a_unit_that_fits_its_name(gpu):
    for name, figure in gpu.figures.items():
        assert figure.unit == (expected_unit(name) or "count"), name
        assert figure.kind in ("datasheet", "derived", "microbenchmark"), "no measurement of ours among the facts"
        assert figure.kind != "derived" or figure.note, f"{name} is derived without saying how"


@pytest.mark.parametrize("gpu", WITH_CLOCKED_RATE, ids=lambda gpu: gpu.id)
def test_tensor_rates_are_dense(gpu):
    """A sparse rate would imply a clock of about twice the boost clock."""
    clock_mhz = gpu.value("int8_dense_ops_per_s") / OPERATIONS_PER_CLOCK[gpu.compute_capability] / gpu.sm_count / 1e6
    assert 0.8 <= clock_mhz / gpu.value("boost_clock_mhz") <= 1.07


@pytest.mark.parametrize("gpu", WITH_BOTH_RATES, ids=lambda gpu: gpu.id)
def test_bf16_runs_at_no_more_than_half_the_int8_rate(gpu):
    if gpu.compute_capability == (10, 3):
        assert gpu.value("int8_dense_ops_per_s") < 0.1 * gpu.value("bf16_dense_flops_per_s"), "no fast int8 path on cc 10.3"
    else:
        assert gpu.value("bf16_dense_flops_per_s") <= 0.505 * gpu.value("int8_dense_ops_per_s")


def test_names_aliases_and_driver_names_are_unique():
    for read in (lambda gpu: (gpu.id, *gpu.aliases), lambda gpu: gpu.driver_names, lambda gpu: (gpu.name,)):
        names = [name for gpu in GPUS for name in read(gpu)]
        assert len(names) == len(set(names))
    assert all(load_gpu(alias, calibrated=False) is not None for gpu in GPUS for alias in gpu.aliases)


def test_sources_are_all_cited_and_say_how_they_were_read():
    documents = read_facts(data_root() / "published" / "sources.toml")
    texts = [path.read_text("utf-8") for path in data_root().rglob("*.toml") if path.name != "sources.toml"]
    for key, entry in documents.items():
        assert entry["document"] and entry["reading"] and set(entry) <= {"document", "url", "reading"}, key
        assert entry.get("url", "https://").startswith("https://"), key
        assert any(re.search(rf'\b{key}\b', text) for text in texts), f"{key} is cited nowhere"


def test_every_fact_of_the_dictionary_is_in_the_files_and_the_reverse():
    dictionary = (data_root() / "README.md").read_text("utf-8")
    section = dictionary.split("## GPU facts")[1].split("\n## ")[0]
    described = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.M))
    used = {name: figure.unit for gpu in GPUS for name, figure in gpu.figures.items()}
    assert described == used


@pytest.mark.parametrize("gpu_id", list_gpus())
def test_every_gpu_is_itself_under_its_driver_names_and_no_other(gpu_id):
    gpu, other = load_gpu(gpu_id, calibrated=False), load_gpu("rtx-4090" if gpu_id != "rtx-4090" else "l4", calibrated=False)
    for name in gpu.driver_names:
        require_same_gpu(gpu, name, gpu.sm_count)
        require_same_gpu(gpu, name)
        with pytest.raises(AnotherGpu, match=f"{other.id} is {other.name}"):
            require_same_gpu(other, name, gpu.sm_count)


def test_another_gpu_is_refused_with_both_names():
    h200 = load_gpu("h200-sxm", calibrated=False)
    with pytest.raises(AnotherGpu, match="'NVIDIA H200 NVL'.*h200-nvl in the catalogue.*not on h200-sxm"):
        require_same_gpu(h200, "NVIDIA H200 NVL", 132)
    with pytest.raises(AnotherGpu, match="16 multiprocessors.*not in the catalogue as such.*with 132"):
        require_same_gpu(h200, "NVIDIA H200 MIG 1g.18gb", 16)
    with pytest.raises(AnotherGpu, match="16 multiprocessors"):
        require_same_gpu(h200, None, 16)
    with pytest.raises(AnotherGpu, match="'Toaster 9'.*not in the catalogue"):
        require_same_gpu(h200, "Toaster 9")
    require_same_gpu(h200, None)
    require_same_gpu(h200, "H200 NVIDIA", 132)
