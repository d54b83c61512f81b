"""Probes on a simulated GPU: a stand-in library charges each launch a known device time, and really performs the exchange in
host memory, so slopes, work counts, epochs and the check of what was agreed are the code's own. CUDA sources are compiled for
every architecture where a compiler is there."""

from __future__ import annotations

import ctypes
import re
import subprocess
from functools import cache

import pytest

from cost_model.measurement import write_walk
from cost_model.workload import EXCHANGES
from wts_lab.probe_jobs import ProbeSizes, all_jobs, expected_agreement, size_name
from wts_lab.probe_library import QUERIES, SIGNATURES, ProbeError, exchange_spec, random_ring
from wts_lab.probes import PRIMARY, run_probes, slope_samples

torch = pytest.importorskip("torch", reason="probe buffers are torch tensors")

from wts_lab.workspace import Workspace  # noqa: E402

BLOCKS = 12
MASK = (1 << 64) - 1
ONE_US = {"walk_exchange": 0.75, "chase": 0.15, "read": 5.0, "shared_read": 1.0, "products": 0.054}
FIXED_US = 6.0
SMALL = ProbeSizes(
    footprints_bytes=(4096, 8192), hbm_footprint_bytes=1 << 16, l2_rings_bytes=(4096,), hbm_ring_bytes=1 << 14, exchange_grids=(4, 8),
    exchange_rounds=(3, 23), hops=(5, 45), passes=(2, 6), shared_passes=(2, 10), product_repeats=(10, 110), graph_nodes=(1, 9),
)  # fmt: skip
COUNT_AT = {"walk_exchange": 7, "chase": 2, "read": 2, "shared_read": 1, "products": 1}


@cache
def agreed_row(blocks: int, row: int, rounds: int, wide: bool) -> int:
    """The exchange of walk_exchange.cu in plain Python integers, written apart from the code under test."""
    winner = 0
    for round_ in range(rounds):
        offers = []
        for block in range(blocks):
            z = 0x9E3779B97F4A7C15 * (256 * (32 * round_ + row) + block + 1) & MASK
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
            z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
            z ^= z >> 31 ^ 0x9E3779B97F4A7C15 * winner & MASK
            offers.append((z >> 32 if wide else z >> 48, -(2048 * block + z % 2048)))
        winner = -max(offers)[1]
    return winner


class SimulatedLibrary:
    """Charges the queue, performs exchanges in memory, and checks every call against SIGNATURES."""

    def __init__(self, queue, fail: str | None = None, lie: bool = False, stall: bool = False) -> None:
        self.queue, self.fail, self.lie, self.stall = queue, fail, lie, stall
        self.epochs: list[tuple[int, int]] = []

    def ask(self, name, *arguments):
        assert name in QUERIES and len(arguments) == len(SIGNATURES[name][1])
        return 8 if name == "products_accumulators" else 4096

    def launch(self, name, *arguments):
        assert name not in QUERIES and len(arguments) == len(SIGNATURES[name][1])
        for kind, value in zip(SIGNATURES[name][1], arguments):
            kind(value)  # ctypes refuses a value of another type
        if name == self.fail:
            raise ProbeError(f"launching {name} failed with CUDA error 1: simulated")
        units = arguments[COUNT_AT[name]] if name in COUNT_AT else 0
        self.queue.enqueue(6.0, FIXED_US + units * ONE_US.get(name, 0.0))
        if name == "walk_exchange":
            self._exchange(*arguments[2:9])

    def _exchange(self, agreed, status, blocks, rows, wide, rounds, epoch):
        self.epochs.append((epoch, rounds))
        if self.stall:
            ctypes.memmove(status, (3).to_bytes(4, "little"), 4)
        winners = [agreed_row(blocks, row, rounds, bool(wide)) for row in range(rows)]
        if self.lie:
            winners[0] ^= 1
        ctypes.memmove(agreed, b"".join(winner.to_bytes(4, "little") for winner in winners) * blocks, 4 * rows * blocks)


class SimulatedDevice:
    """Host memory in place of the GPU's."""

    sm_count, shared_bytes = BLOCKS, 100 * 1024

    def __init__(self, queue) -> None:
        self.queue = queue

    def stream(self):
        return 0

    def zeros(self, bytes_):
        return torch.zeros(bytes_, dtype=torch.uint8)

    random = zeros

    def ring(self, lines):
        return random_ring(lines, "cpu")

    def workspace(self, rows, wide, blocks, exchange):
        return Workspace.make(exchange_spec(rows, wide), blocks, "spread-lines", torch.device("cpu"))

    def capture(self, launch):
        return launch


def probe(simulated, repeats=3, **options):
    bench = simulated.Bench()
    library = SimulatedLibrary(bench.queue, **{key: options.pop(key) for key in ("fail", "lie", "stall") if key in options})
    device = SimulatedDevice(bench.queue)
    failures = []
    rows = run_probes(repeats=repeats, bench=bench, library=library, device=device, sizes=SMALL, provenance=bench.provenance,
                      on_failure=lambda name, variant, error: failures.append((name, variant, str(error))), **options)  # fmt: skip
    return rows, failures, library


def test_slopes_are_the_time_of_one_unit_without_launch_cost(simulated):
    rows, failures, _ = probe(simulated)
    assert failures == []
    by_probe = {(row["probe"], row["variant"]): row for row in rows}
    truth = {"exchange": 0.75, "l2_latency": 0.15, "hbm_latency": 0.15, "shared_read": 1.0, "read_bandwidth": 5.0, "mma_s8": 0.054,
             "mma_bf16": 0.054, "graph_node": FIXED_US}  # fmt: skip
    variants = {**PRIMARY, "l2_latency": "ring-4KiB", "hbm_latency": "ring-16KiB"}  # the test's rings are smaller
    for name, unit in truth.items():
        assert by_probe[name, variants[name]]["samples_us"] == pytest.approx([unit] * 3), name
    # complete calls keep their launch cost
    for name in ("graph_launch", "cooperative_launch"):
        assert by_probe[name, PRIMARY[name]]["samples_us"] == pytest.approx([FIXED_US] * 3)


def test_all_probes_are_there_and_primary_variants_exist():
    full = all_jobs(SimulatedLibrary(None), SimulatedDevice(None), ProbeSizes())
    names = {(job.probe, job.variant) for job in full}
    assert {name for name, _ in names} == set(PRIMARY)
    assert set(PRIMARY.items()) <= names
    footprints = sorted(job.work_bytes >> 20 for job in full if (job.probe, job.variant) == ("read_bandwidth", "cp_async-256"))
    assert footprints == [20, 24, 28, 32, 36, 40, 44, 48, 56, 64, 80, 96, 112, 128, 1024]
    keys = [(job.probe, job.variant, job.work_bytes) for job in full]
    assert len(keys) == len(set(keys))


def test_work_is_counted_by_the_stated_conventions(simulated):
    rows, _, _ = probe(simulated, only=("mma_s8", "mma_bf16", "shared_read", "read_bandwidth"))
    for row in rows:
        if row["probe"].startswith("mma"):
            depth = 32 if row["probe"] == "mma_s8" else 16
            assert row["work_operations"] == 2 * 16 * 8 * depth * row["warps"] * 8
        if row["probe"] == "shared_read":
            assert row["work_bytes"] == 96 * 1024  # whole strides of 1,024 threads within 100 KiB
    assert {row["work_bytes"] for row in rows if row["probe"] == "read_bandwidth"} == {4096, 8192, 1 << 16}


def test_rows_fit_the_record_format(simulated, tmp_path):
    rows, _, _ = probe(simulated)
    write_walk(tmp_path / "probes.parquet", rows)
    assert {row["steps"] for row in rows} == {1}
    assert len({row["run_id"] for row in rows}) == 1
    assert all(row["tokens_match"] is None and row["mode"] is None for row in rows)


def test_every_batch_width_and_place_of_the_words_is_measured():
    full = all_jobs(SimulatedLibrary(None), SimulatedDevice(None), ProbeSizes(exchange_grids=(4, 8)))
    exchanges = {job.variant: job.facts for job in full if job.probe == "exchange"}
    batches = (1, 2, 4, 8, 16, 32)
    places = {f"walk-r{rows}{'' if name == 'spread-lines' else f'-{name}'}": (rows, name) for rows in batches for name in EXCHANGES}
    assert {name: (exchanges[name]["batch"], exchanges[name]["exchange"]) for name in places} == places
    assert set(exchanges) == set(places) | {f"walk-r{rows}-wide" for rows in batches} | {"walk-r1-blocks4", "walk-r1-blocks8"}
    assert exchanges[PRIMARY["exchange"]] == {"grid_blocks": BLOCKS, "warps": 1, "batch": 1, "exchange": "spread-lines"}
    assert exchanges["walk-r32"]["warps"] == 8


def test_epochs_go_on_from_launch_to_launch(simulated):
    _, _, library = probe(simulated, only=("exchange",))
    expected, fresh = None, 0
    for epoch, rounds in library.epochs:
        if epoch != expected:
            assert epoch == 1, "only fresh, zeroed words begin at 1"
            fresh += 1
        expected = epoch + rounds
    assert fresh == 6 * 3 + 2


@pytest.mark.parametrize(("blocks", "rows", "rounds"), [(1, 1, 1), (12, 3, 7), (132, 1, 50), (5, 32, 4)])
@pytest.mark.parametrize("wide", [False, True])
def test_the_expected_agreement_is_that_of_plain_integers(blocks, rows, rounds, wide):
    assert expected_agreement(blocks, rows, rounds, wide) == [agreed_row(blocks, row, rounds, wide) for row in range(rows)]


def test_an_exchange_that_agrees_on_something_else_is_not_reported_as_a_time(simulated):
    rows, failures, _ = probe(simulated, lie=True)
    assert "exchange" not in {row["probe"] for row in rows}
    assert all(name == "exchange" and "did not agree" in said for name, _, said in failures)
    assert {row["probe"] for row in rows} == set(PRIMARY) - {"exchange"}


def test_a_stall_is_named_with_its_round(simulated):
    _, failures, _ = probe(simulated, stall=True)
    assert failures and all("stalled in round 2" in said for _, _, said in failures)


def test_a_probe_that_fails_does_not_lose_the_others(simulated):
    rows, failures, _ = probe(simulated, fail="read")
    assert {name for name, _, _ in failures} == {"read_bandwidth"}
    assert {row["probe"] for row in rows} == set(PRIMARY) - {"read_bandwidth"}


def test_nothing_measured_is_an_error_with_the_reasons(simulated):
    with pytest.raises(ProbeError, match="no probe could be measured: l2_latency .*simulated"):
        probe(simulated, fail="chase", only=("l2_latency",))
    with pytest.raises(ProbeError, match="none is named warp_speed"):
        probe(simulated, only=("warp_speed",))


def test_cancelling_returns_the_rows_so_far(simulated):
    from threading import Event

    cancel = Event()
    rows, _, _ = probe(simulated, cancel=cancel, progress=lambda done, total, label: cancel.set() if done == 4 else None)
    assert len(rows) == 4


def test_a_slope_needs_more_work_to_take_longer():
    assert slope_samples([10.0, 11.0, 12.0], [31.0, 51.0], 10) == [2.0, 4.0]
    with pytest.raises(ProbeError, match="no slope"):
        slope_samples([10.0, 10.0], [10.5, 9.0], 100)


def test_a_ring_is_one_cycle_over_all_lines():
    ring = random_ring(257, "cpu")
    at, seen = 0, set()
    while at not in seen:
        seen.add(at)
        assert at % 32 == 0
        at = int(ring.flatten()[at])
    assert len(seen) == 257 and at == 0


def test_sizes_are_named_exactly():
    assert [size_name(n) for n in (1 << 30, 3 << 20, 5 << 10, 100)] == ["1GiB", "3MiB", "5KiB", "100B"]


# --- the CUDA side --------------------------------------------------------------------------------------------------------


def test_every_launcher_in_the_sources_has_its_python_signature(repository):
    """Names and argument counts of the extern "C" functions against SIGNATURES."""
    found = {}
    for source in sorted((repository / "csrc" / "probes").glob("*.cu")):
        for name, arguments in re.findall(r"WTS_PROBE_API [\w *]+?[ *]wts_probe_(\w+)\(([^)]*)\)\s*{", source.read_text()):
            found[name] = len([one for one in arguments.split(",") if one.strip()])
    assert found == {name: len(arguments) for name, (_, arguments) in SIGNATURES.items()}


def test_every_wait_in_the_sources_is_bounded(repository):
    """A loop that polls has a limit beside it; none spins on `while (true)` or `for (;;)`."""
    for source in sorted((repository / "csrc" / "probes").glob("*.cu*")):
        text = re.sub(r"//[^\n]*", "", source.read_text())
        assert not re.search(r"while\s*\(\s*(true|1)\s*\)|for\s*\(\s*;\s*;\s*\)", text), source.name


def test_the_library_builds_and_exports_what_python_calls(tmp_path, monkeypatch):
    build = pytest.importorskip("wts_lab.build")
    try:
        build.find_nvcc(), build.find_ninja()
    except build.BuildError as error:
        pytest.skip(f"needs a CUDA compiler and ninja: {error}")
    monkeypatch.setenv("WTS_LAB_CACHE", str(tmp_path))
    record = build.build_probes("sm_90")
    try:
        exported = subprocess.run(["nm", "-D", "--defined-only", record.library], capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"needs nm from binutils: {error}")
    assert set(re.findall(r"\bwts_probe_(\w+)", exported)) == set(SIGNATURES)
