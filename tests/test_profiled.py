"""The table of what Nsight Compute printed: numbers of every kernel, none of its advice, and requests that cannot be used."""

from __future__ import annotations

import csv

import pytest

from benchmarks.profiled import STALLS, main, metrics, rows_of_kernel, stalls

KERNEL = "walk_kernel<WalkConfig<8, 4, 5, 0, 0, {rows}, 256, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0>>(WalkParams) (132, 1, 1)x(256, 1, 1), Context 1"
CAST = "void wts::walk_kernel<wts::WalkConfig<(int)8, (int)4, (int)5, (int)0, (int)0, (int)16, (int)256, (wts::Precision)0>>(wts::WalkParams)"

DETAILS = f"""[12] python3@127.0.0.1
  {KERNEL.format(rows=8)}
    Section: Scheduler Statistics
    ---------------------------- ----------- ------------
    Metric Name                  Metric Unit Metric Value
    ---------------------------- ----------- ------------
    No Eligible                            %        65.09
    Elapsed Cycles                     cycle      132,051
    Ratio without a unit                             1.50
    Overhead                               %      no data
    ---------------------------- ----------- ------------

    OPT   Every scheduler is capable of issuing one instruction per cycle, but for this workload each issues one every  2.9

  {KERNEL.format(rows=32)}
    Section: Scheduler Statistics
    No Eligible                            %        61.90
"""

SOURCE = (
    f'"Kernel Name","{CAST}",\n"Address","Source","stall_wait","stall_selected","stall_wait (Not Issued)"\n'
    '"0x0","  FADD R1, R2, R3","5","7","4"\n"0x10","  FMUL R1, R2, R3","2","","1"\n'
    f'"Kernel Name","{CAST.replace("(int)16", "(int)1")}",\n"Address","Source","stall_wait","stall_selected","stall_wait (Not Issued)"\n"0x0","EXIT","1","1","0"\n'
)


@pytest.mark.parametrize(("line", "rows"), [(KERNEL.format(rows=32), 32), (CAST, 16), ("void stress_kernel<C>(WalkParams)", None), ("", None)])
def test_a_kernel_tells_its_batch_rows(line, rows):
    assert rows_of_kernel(line) == rows


def test_metrics_are_the_numbers_of_each_kernel_and_section():
    assert list(metrics(DETAILS)) == [
        (8, "Scheduler Statistics", "No Eligible", "%", 65.09), (8, "Scheduler Statistics", "Elapsed Cycles", "cycle", 132051.0),
        (8, "Scheduler Statistics", "Ratio without a unit", "", 1.5), (32, "Scheduler Statistics", "No Eligible", "%", 61.9),
    ]  # fmt: skip


def test_stalls_are_summed_over_the_instructions_of_each_kernel():
    assert list(stalls(SOURCE)) == [
        (16, STALLS, "wait", "samples", 7.0), (16, STALLS, "selected", "samples", 7.0), (1, STALLS, "wait", "samples", 1.0), (1, STALLS, "selected", "samples", 1.0),
    ]  # fmt: skip


def test_both_pages_become_one_table(tmp_path, capsys):
    (tmp_path / "details").write_text(DETAILS)
    (tmp_path / "source").write_text(SOURCE)
    assert main(["--table", str(tmp_path / "details"), str(tmp_path / "source"), "--out", str(tmp_path / "walk.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "walk.csv").open()))
    assert len(rows) == 8 and {row["kernel_rows"] for row in rows} == {"1", "8", "16", "32"} and "8 rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [((), "give either batches"), (("8", "--table", "a", "b", "--out", "c"), "give either batches"), (("--table", "a", "b"), "give either batches"),
     (("7",), "batch is 7; kernels are built for 1, 2, 4, 8, 16, 32"), (("--table", "absent", "absent", "--out", "c"), "absent")],
)  # fmt: skip
def test_requests_that_cannot_be_used_are_refused(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(list(arguments)) == 2
    assert told in capsys.readouterr().err


def test_pages_of_no_walk_are_refused(tmp_path, capsys):
    (tmp_path / "page").write_text("nothing was profiled\n")
    assert main(["--table", str(tmp_path / "page"), str(tmp_path / "page"), "--out", str(tmp_path / "walk.csv")]) == 2
    assert "hold no metric of a walk kernel" in capsys.readouterr().err and not (tmp_path / "walk.csv").exists()
