"""What the compiler made of kernels: those with the planner's placements, the newest of each, or built for the GPU that is there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.measurement import walk_row, write_walk
from cost_model.operand_paths import kernel_path
from cost_model.placement import plan
from wts_lab.kernel_builds import LIVE_ROWS, kernel_builds
from wts_lab.ui.operand_tables import builds_table

HEAD, H200 = Head.markov(151_936, 256), load_gpu("h200-sxm")


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU."""
    monkeypatch.setattr("wts_lab.study.capable_device", lambda: None)


def row(batch: int, day: int, registers: int | None, **changes):
    """A made-up row of the planner's kernel of so many rows."""
    placement = kernel_path(H200, HEAD, "int8x2", batch).placement.as_dict()
    tiles = {name: placement[name] for name in ("warps", "register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles")} | {"tensor_tiles": 0}
    return walk_row(**{
        "run_id": f"run{day}", "process_index": 0, "recorded_at_utc": f"2026-01-0{day}T00:00:00+00:00", "gpu_name": "NVIDIA H200", "gpu_sm_count": 132, "implementation": "wts",
        "mode": "resident", "precision": "int8x2", "rounding": "once", "head_kind": "markov", "vocab_size": 151_936, "target_vocab_size": 151_936, "padded_vocab_size": 151_936,
        "rank": 256, "batch": batch, "steps": 4, "temperature": 0.0, "l2_state": "warm", "probe": "none", "samples_us": [20.0], "samples_dropped": 0, "repeats": 1,
        "registers_per_thread": registers, "spill_bytes": None if registers is None else 0, **tiles, **changes,
    })  # fmt: skip


def test_the_newest_row_with_the_planners_placement_counts(tmp_path, no_gpu: None) -> None:
    rows = [row(1, 2, 242), row(1, 1, 200, l2_state="cold"), row(1, 3, 255, register_tiles=48, shared_tiles=24), row(4, 2, None), row(2, 2, 9, temperature=1.0), row(8, 2, 9, vocab_size=151_935)]
    write_walk(tmp_path / "h200-sxm" / "2026-01-02-walks.parquet", rows)
    found = kernel_builds(HEAD, records=tmp_path)
    assert [(each.rows, each.registers_per_thread, each.spill_bytes) for each in found.builds] == [(1, 242, 0), (4, None, None)]
    assert found.builds[0].placement == plan(H200, HEAD, "int8x2", "resident") and found.source == "NVIDIA H200, recorded 2026-01-01 to 2026-01-03"
    table = builds_table(found)
    assert table.loc[1].tolist() == ["160 KiB", "128 KiB", "0 B", 242, "0 B"] and table.loc[4].tolist()[-2:] == ["n/a", "n/a"]


def test_nothing_recorded_is_said(tmp_path, no_gpu: None) -> None:
    assert kernel_builds(HEAD, records=tmp_path).builds == () and "no walk of h200-sxm" in kernel_builds(HEAD, records=tmp_path).source
    write_walk(tmp_path / "h200-sxm" / "2026-01-02-walks.parquet", [row(1, 2, 255, register_tiles=48, shared_tiles=24)])
    found = kernel_builds(HEAD, records=tmp_path)
    assert found.builds == () and "no kernel of" in found.source and builds_table(found).empty
    with pytest.raises(BadInput, match="compute capability 8.0"):
        kernel_builds(HEAD, live=True)


def test_kernels_are_built_for_the_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    built = []
    monkeypatch.setattr("wts_lab.study.capable_device", lambda: SimpleNamespace(name="NVIDIA H200"))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("wts_lab.walk.device_gpu", lambda device: H200)
    monkeypatch.setattr("wts_lab.walk.device_arch", lambda device: "sm_90")
    monkeypatch.setattr("wts_lab.build.build_walk", lambda spec, arch: built.append((spec.rows, spec.products, arch)) or SimpleNamespace(registers_per_thread=240, spill_bytes=0))
    found = kernel_builds(HEAD)
    assert built == [(1, "warp", "sm_90"), (16, "warpgroup", "sm_90")] and [each.rows for each in found.builds] == list(LIVE_ROWS)
    assert found.source == "built now for NVIDIA H200" and found.builds[0].registers_per_thread == 240 and found.tile_bytes == 4096
