"""Pictures and tables of operand paths hold the catalogue's sizes and the planner's placements."""

from __future__ import annotations

import pytest

from cost_model.gpu import list_gpus, load_gpu
from cost_model.head import Head
from cost_model.operand_paths import KernelPath, kernel_path, tier_bytes
from wts_lab.ui.figures import draw
from wts_lab.ui.operand_figure import kept_spec, room_spec
from wts_lab.ui.operand_tables import NOT_THERE, instructions_table, paths_table, rates_table, tiers_table

HEAD = Head.markov(151_936, 256)
H200, B200 = load_gpu("h200-sxm"), load_gpu("b200-sxm")


def test_bars_are_the_tiers_and_lines_the_matrices() -> None:
    spec = room_spec([B200, H200], [HEAD])
    registers, shared, tensor = spec["data"]
    assert registers["y"] == ["h200-sxm", "b200-sxm"] and registers["x"] == [33.0, 37.0] and tensor["y"] == ["b200-sxm"] and tensor["x"] == [37.0]
    assert [sum(bar["x"][bar["y"].index("b200-sxm")] for bar in spec["data"])] == [pytest.approx(sum(tier_bytes(B200).values()) / 2**20)]
    assert [line["x0"] for line in spec["layout"]["shapes"]] == [pytest.approx(151_936 * 256 / 2**20), pytest.approx(2 * 151_936 * 256 / 2**20)]
    assert [word["text"] for word in spec["layout"]["annotations"]] == ["V 151,936<br>int8x2", "V 151,936<br>bf16"]
    assert "pattern" in tensor["marker"] and "pattern" not in shared["marker"]
    draw(spec)


def test_the_whole_catalogue_is_drawn() -> None:
    assert len(room_spec([load_gpu(name) for name in list_gpus()], [HEAD])["data"][0]["y"]) == len(list_gpus())


def test_kept_shares_sum_to_the_matrix() -> None:
    paths = [kernel_path(gpu, HEAD, precision, rows) for gpu in (H200, B200) for precision in ("bf16", "int8x2") for rows in (1, 16)]
    spec = kept_spec([*paths, KernelPath("a10", "bf16", 32, None, None)], 256)
    totals = [sum(shares) for shares in zip(*(trace["x"] for trace in spec["data"]))]
    assert totals == pytest.approx([1.0] * len(paths) + [0.0])
    assert [word["text"] for word in spec["layout"]["annotations"]] == [path.instruction for path in paths] + ["nothing fits"]
    assert spec["data"][0]["x"][2] == paths[2].placement.register_tiles / paths[2].placement.tiles
    draw(spec)


def test_tables_say_the_same() -> None:
    assert instructions_table().data.loc["wgmma", "A (the matrix) from"] == "registers or shared memory"
    assert instructions_table().data.loc["tcgen05.mma", "in int8 on"] == "10.0" and "ptxas" in instructions_table().data.loc["wgmma", "source"]
    tiers = tiers_table(B200).data
    assert tiers.loc["tensor memory", ["a multiprocessor", "whole chip"]].tolist() == ["256 KiB", "37.0 MiB"] and (tiers["source"] != "").all()
    assert tiers_table(H200).data.loc["tensor memory", "whole chip"] == "0 B"
    table = paths_table([H200, B200], HEAD)
    assert table.loc[("h200-sxm", "wgmma"), "room"] == "62.3 MiB" and table.loc[("h200-sxm", "tcgen05.mma"), "the matrix stays in"] == NOT_THERE
    assert table.loc[("b200-sxm", "tcgen05.mma"), "bf16, V 151,936"] == "94.1 %" and table.loc[("b200-sxm", "mma.sync"), "bf16, V 151,936"] == "49.9 %, with copies 100 %"
    assert NOT_THERE not in paths_table([H200, B200], HEAD, absent=False)["the matrix stays in"].tolist()
    assert rates_table().loc[("mma.sync as a share of wgmma, INT8", "H800 PCIe"), "value"] == "67.5"
