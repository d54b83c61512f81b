"""Operand paths: instructions with their sources, room by tier, and what the kernel does, on GPUs of every architecture."""

from __future__ import annotations

import pytest

from cost_model import operand_paths
from cost_model.catalogue import CatalogueError
from cost_model.errors import BadInput
from cost_model.gpu import list_gpus, load_gpu
from cost_model.head import Head
from cost_model.operand_paths import TIER_FACTS, kernel_path, load_instructions, tier_bytes
from cost_model.paths import data_root

HEAD = Head.markov(151_936, 256)
MIB = 2**20


def instruction(name: str):
    """The instruction of that name."""
    return next(one for one in load_instructions() if one.name == name)


@pytest.mark.parametrize(("gpu", "bf16", "int8"), [
    ("a100-sxm-80gb", ["mma.sync"], ["mma.sync"]), ("l40s", ["mma.sync"], ["mma.sync"]), ("h200-sxm", ["mma.sync", "wgmma"], ["mma.sync", "wgmma"]),
    ("b200-sxm", ["mma.sync", "tcgen05.mma"], ["mma.sync", "tcgen05.mma"]), ("b300-sxm", ["mma.sync", "tcgen05.mma"], ["mma.sync"]),
    ("rtx-5090", ["mma.sync"], ["mma.sync"]),
])  # fmt: skip
def test_each_architecture_has_its_instructions(gpu, bf16, int8):
    for precision, names in (("bf16", bf16), ("int8x2", int8)):
        assert [one.name for one in load_instructions() if one.runs_on(load_gpu(gpu), precision)] == names


def test_every_gpu_has_mma_sync_and_those_with_tensor_memory_tcgen05():
    for name in list_gpus():
        gpu = load_gpu(name)
        assert instruction("mma.sync").runs_on(gpu, "bf16") and instruction("mma.sync").runs_on(gpu, "int8x2")
        assert instruction("tcgen05.mma").runs_on(gpu, "bf16") == ("tensor memory" in tier_bytes(gpu))


def test_where_operands_come_from():
    places = {one.name: (one.a, one.a_copied_from, one.b, one.sums) for one in load_instructions()}
    assert places == {
        "mma.sync": (("registers",), ("shared memory", "tensor memory"), ("registers",), "registers"),
        "wgmma": (("registers", "shared memory"), (), ("shared memory",), "registers"),
        "tcgen05.mma": (("tensor memory", "shared memory"), (), ("shared memory",), "tensor memory"),
    }
    assert all("Weights That Stay, figure 5" in one.source for one in load_instructions())


def test_room_is_a_multiprocessors_times_their_number():
    assert tier_bytes(load_gpu("h200-sxm")) == {"registers": 132 * 256 * 1024, "shared memory": 132 * 227 * 1024}
    b200 = load_gpu("b200-sxm")
    assert tier_bytes(b200)["tensor memory"] == 148 * 256 * 1024 == 37 * MIB
    tcgen05, mma = instruction("tcgen05.mma"), instruction("mma.sync")
    assert sum(tcgen05.room_bytes(b200).values()) == 148 * (256 + 227) * 1024 == sum(tcgen05.room_bytes(b200, copied=True).values())
    assert set(mma.room_bytes(b200)) == {"registers"} and set(mma.room_bytes(b200, copied=True)) == set(TIER_FACTS)


def test_shares_are_room_over_matrix_up_to_all():
    paths = {(path.instruction.name, path.precision): path for path in operand_paths.operand_paths(load_gpu("b200-sxm"), HEAD)}
    assert len(paths) == 6 and not paths["wgmma", "bf16"].exists and paths["wgmma", "bf16"].direct_share == 0
    bf16 = paths["tcgen05.mma", "bf16"]
    assert bf16.matrix_bytes == 151_936 * 256 * 2 and bf16.direct_share == pytest.approx(148 * 483 * 1024 / bf16.matrix_bytes)
    assert paths["mma.sync", "int8x2"].direct_share == pytest.approx(148 * 1024 / 151_936) and paths["mma.sync", "int8x2"].copied_share == 1
    assert paths["mma.sync", "bf16"].direct_share == pytest.approx(148 * 512 / 151_936) and paths["mma.sync", "bf16"].copied_share == 1


def test_the_kernel_multiplies_with_warpgroups_for_many_rows_on_a_hopper_alone():
    few, many = (kernel_path(load_gpu("h200-sxm"), HEAD, "int8x2", rows) for rows in (1, 16))
    assert (few.instruction, many.instruction) == ("mma.sync", "wgmma")
    assert few.placement.streamed_tiles == 0 and few.placement.tiles == 72
    assert kernel_path(load_gpu("h200-sxm"), HEAD, "bf16", 16).instruction == "mma.sync"
    assert kernel_path(load_gpu("b200-sxm"), HEAD, "int8x2", 16).instruction == "mma.sync"
    nothing = kernel_path(load_gpu("l4"), Head.markov(1_048_576, 512), "bf16", 32)
    assert (nothing.instruction is None) == (nothing.placement is None)


def test_bad_words_and_files_are_refused(monkeypatch, tmp_path):
    with pytest.raises(BadInput, match="precision"):
        instruction("wgmma").runs_on(load_gpu("h200-sxm"), "fp8")
    folder = data_root() / "published"
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "sources.toml").write_text((folder / "sources.toml").read_text())
    text = (folder / "instructions.toml").read_text()
    monkeypatch.setattr(operand_paths, "data_root", lambda: tmp_path)
    for old, new, message in (
        ('sums = "registers"', 'sums = "cache"', "mma.sync names cache; tiers are registers, shared memory, tensor memory"),
        ('"ptxas", "luo24"', '"hearsay"', "mma.sync names hearsay"), ("schema_version = 1", "schema_version = 2", "schema_version"),
        ('b = ["registers"]\n', "", "lacks b"),
    ):  # fmt: skip
        (tmp_path / "published" / "instructions.toml").write_text(text.replace(old, new, 1))
        with pytest.raises(CatalogueError, match=message):
            load_instructions()
