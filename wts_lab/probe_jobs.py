"""What the probes launch: every configuration as a :class:`Job`, in the table of `probes.py`'s docstring.

A job only says what is enqueued for a given repeat count and how to see that it was done rightly; `probes.py` times it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_model.placement import NARROW_ROWS
from cost_model.units import BYTES_PER_GIB, BYTES_PER_KIB, BYTES_PER_MIB
from cost_model.workload import DEFAULT_EXCHANGE, EXCHANGES, MAX_BATCH
from wts_lab.probe_library import EXCHANGE_WARPS, ProbeError

BATCH_ROWS = (1, 2, 4, 8, 16, 32)
READ_KINDS = {"loads": 0, "cp_async": 1}
POLL_LIMIT = 1 << 20
EPOCHS = 1 << 32
LINE_BYTES = 128
WARP = 32
GOLDEN = 0x9E3779B97F4A7C15
DRAW_PLACES = 256  # of one batch row and epoch, as `csrc/probes/offers.cuh` numbers its draws

MMA_OPERATIONS = {"mma_s8": 2 * 16 * 8 * 32, "mma_bf16": 2 * 16 * 8 * 16}
"""Operations of one instruction: m16n8k32 in int8, m16n8k16 in bf16, two a multiply-add."""


@dataclass(frozen=True)
class ProbeSizes:
    """How large and how often; the defaults suit a data-centre GPU, tests use small ones.

    Pairs are the two repeat counts of a slope. ``l2_rings_bytes`` must fit L2, ``hbm_ring_bytes`` be many times it.
    """

    footprints_bytes: tuple[int, ...] = tuple(mib * BYTES_PER_MIB for mib in (20, 24, 28, 32, 36, 40, 44, 48, 56, 64, 80, 96, 112, 128))
    hbm_footprint_bytes: int = BYTES_PER_GIB
    l2_rings_bytes: tuple[int, ...] = (BYTES_PER_MIB, 16 * BYTES_PER_MIB)
    hbm_ring_bytes: int = BYTES_PER_GIB
    exchange_rounds: tuple[int, int] = (50, 550)
    hops: tuple[int, int] = (500, 4500)
    passes: tuple[int, int] = (4, 24)
    hbm_passes: tuple[int, int] = (1, 3)
    shared_passes: tuple[int, int] = (16, 144)
    product_repeats: tuple[int, int] = (500, 4500)
    graph_nodes: tuple[int, int] = (1, 65)
    exchange_grids: tuple[int, ...] = (8, 16, 33, 66)


Timed = Callable[[int], Callable[[], None]]
"""Given a repeat count, what enqueues that much work."""


@dataclass(frozen=True)
class Job:
    """One configuration of one probe.

    ``prepare`` allocates and returns what is timed by repeat count; ``counts`` are the two counts of a slope, or one count
    whose whole time is the unit. ``verify``, if given, raises ProbeError where the work was done wrongly.
    """

    probe: str
    variant: str
    counts: tuple[int, ...]
    prepare: Callable[[], tuple[Timed, Callable[[], None] | None]]
    work_bytes: int | None = None
    work_operations: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def all_jobs(library: Any, device: Any, sizes: ProbeSizes) -> list[Job]:
    """Every configuration of every probe."""
    parts = (_exchange_jobs, _latency_jobs, _shared_jobs, _read_jobs, _launch_jobs, _product_jobs)
    return [job for part in parts for job in part(library, device, sizes)]


# --- exchange --------------------------------------------------------------------------------------------------------


def expected_agreement(blocks: int, rows: int, rounds: int, wide: bool = False) -> list[int]:
    """The winner that every block must have agreed on, a batch row, after ``rounds``: the host's own form of the kernel's draws."""
    import numpy

    word = numpy.uint64
    block, row = numpy.arange(blocks, dtype=word)[:, None], numpy.arange(rows, dtype=word)[None, :]
    winner = numpy.zeros((1, rows), dtype=word)
    for number in range(rounds):
        offers = _draws((word(number * MAX_BATCH) + row) * word(DRAW_PLACES) + block) ^ (winner * GOLDEN)
        values = offers >> word(32 if wide else 48)
        places = block * word(NARROW_ROWS) + offers % word(NARROW_ROWS)
        winner = numpy.where(values == values.max(axis=0), places, ~word(0)).min(axis=0, keepdims=True)
    return [int(one) for one in winner[0]]


def _draws(positions: Any) -> Any:
    """SplitMix64 of seed 0 at positions, uint64 (`csrc/probes/offers.cuh`)."""
    z = (positions + 1) * GOLDEN
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


class ExchangeState:
    """Words of one exchange, what was agreed, and the epoch that its next launch begins with."""

    def __init__(self, device: Any, blocks: int, rows: int, wide: bool, exchange: str) -> None:
        self.workspace = device.workspace(rows, wide, blocks, exchange)
        self.agreed, self.status = device.zeros(4 * blocks * rows), device.zeros(4)
        self.blocks, self.rows, self.wide = blocks, rows, wide
        self.epoch, self.last_rounds = 1, 0

    def advance(self, rounds: int) -> int:
        """The first epoch of a launch of that many rounds; the next one continues after it."""
        first, self.last_rounds = self.epoch, rounds
        self.epoch = (self.epoch + rounds) % EPOCHS
        return first

    def verify(self) -> None:
        """Raise ProbeError unless no wait ran out and every block agreed on what the host expects."""
        status = int.from_bytes(bytes(self.status.cpu().tolist()), "little")
        if status:
            raise ProbeError(f"an exchange stalled in round {status - 1}")
        winners = self.agreed.cpu().numpy().view("int32").reshape(self.blocks, self.rows)
        if not (winners == expected_agreement(self.blocks, self.rows, self.last_rounds, self.wide)).all():
            raise ProbeError("blocks did not agree on the largest word; the exchange is wrong and its time means nothing")


def _exchange_jobs(library: Any, device: Any, sizes: ProbeSizes) -> Iterator[Job]:
    """The walk's own exchange: every batch and place of the words on the whole grid, in 64-bit words, and on parts of the grid."""
    grid = device.sm_count
    for rows in BATCH_ROWS:
        for exchange in EXCHANGES:
            yield _exchange_job(library, device, sizes, grid, rows, exchange=exchange)
        yield _exchange_job(library, device, sizes, grid, rows, wide=True)
    for blocks in sizes.exchange_grids:
        if blocks < grid:
            yield _exchange_job(library, device, sizes, blocks, 1)


def _exchange_job(
    library: Any, device: Any, sizes: ProbeSizes, blocks: int, rows: int, wide: bool = False, exchange: str = DEFAULT_EXCHANGE
) -> Job:
    """One exchange; its variant is ``walk-r`` and the batch rows, and what is not as in a greedy walk of the whole grid."""

    def prepare() -> tuple[Timed, Callable[[], None]]:
        state = ExchangeState(device, blocks, rows, wide, exchange)
        pointers = (state.workspace.slots.data_ptr(), state.workspace.unit_stride, state.agreed.data_ptr(), state.status.data_ptr())

        def timed(rounds: int) -> Callable[[], None]:
            return lambda: library.launch(
                "walk_exchange", *pointers, blocks, rows, int(wide), rounds, state.advance(rounds), POLL_LIMIT, device.stream()
            )

        return timed, state.verify

    words = [f"walk-r{rows}"] + ["wide"] * wide + [exchange] * (exchange != DEFAULT_EXCHANGE)
    words += [f"blocks{blocks}"] * (blocks < device.sm_count)
    facts = {"grid_blocks": blocks, "warps": min(rows, EXCHANGE_WARPS), "batch": rows, "exchange": exchange}
    return Job("exchange", "-".join(words), sizes.exchange_rounds, prepare, facts=facts)


# --- latency, bandwidth, launch, products ----------------------------------------------------------------------------


def size_name(bytes_: int) -> str:
    """A whole number of GiB, MiB, KiB or bytes, without a space: part of a variant's name."""
    for scale, unit in ((BYTES_PER_GIB, "GiB"), (BYTES_PER_MIB, "MiB"), (BYTES_PER_KIB, "KiB")):
        if bytes_ % scale == 0:
            return f"{bytes_ // scale}{unit}"
    return f"{bytes_}B"


def _latency_jobs(library: Any, device: Any, sizes: ProbeSizes) -> Iterator[Job]:
    """Pointer chases through L2 and HBM."""

    def job(probe: str, bytes_: int, warm: bool) -> Job:
        def prepare() -> tuple[Timed, None]:
            ring, cursor = device.ring(bytes_ // LINE_BYTES), device.zeros(4)

            def timed(hops: int) -> Callable[[], None]:
                return lambda: library.launch("chase", ring.data_ptr(), cursor.data_ptr(), hops, device.stream())

            if warm:
                timed(bytes_ // LINE_BYTES)()
            return timed, None

        return Job(probe, f"ring-{size_name(bytes_)}", sizes.hops, prepare, facts={"grid_blocks": 1})

    for bytes_ in sizes.l2_rings_bytes:
        yield job("l2_latency", bytes_, True)
    yield job("hbm_latency", sizes.hbm_ring_bytes, False)


def _shared_jobs(library: Any, device: Any, sizes: ProbeSizes) -> Iterator[Job]:
    """Passes over as much shared memory as a block can have, in whole strides of 1,024 threads."""
    stride = 1024 * 16
    bytes_ = device.shared_bytes // stride * stride
    for threads in (256, 512, 1024):

        def prepare(threads: int = threads) -> tuple[Timed, None]:
            sink = device.zeros(4)
            return (lambda passes: lambda: library.launch(
                "shared_read", bytes_, passes, device.sm_count, threads, sink.data_ptr(), device.stream())), None

        facts = {"grid_blocks": device.sm_count, "warps": threads // WARP}
        yield Job("shared_read", f"threads-{threads}", sizes.shared_passes, prepare, work_bytes=bytes_, facts=facts)


def _read_jobs(library: Any, device: Any, sizes: ProbeSizes) -> Iterator[Job]:
    """Repeated passes over footprints that L2 holds and footprints that it does not."""
    for kind, threads in (("cp_async", 256), ("loads", 512), ("loads", 1024)):
        for bytes_ in (*sizes.footprints_bytes, sizes.hbm_footprint_bytes):

            def prepare(kind: str = kind, threads: int = threads, bytes_: int = bytes_) -> tuple[Timed, None]:
                data, sink = device.random(bytes_), device.zeros(4)
                return (lambda passes: lambda: library.launch(
                    "read", data.data_ptr(), bytes_, passes, READ_KINDS[kind], device.sm_count, threads, sink.data_ptr(),
                    device.stream())), None

            counts = sizes.hbm_passes if bytes_ == sizes.hbm_footprint_bytes else sizes.passes
            facts = {"grid_blocks": device.sm_count, "warps": threads // WARP}
            yield Job("read_bandwidth", f"{kind}-{threads}", counts, prepare, work_bytes=bytes_, facts=facts)


def _launch_jobs(library: Any, device: Any, sizes: ProbeSizes) -> Iterator[Job]:
    """Empty kernels in graphs."""
    grid, shared_bytes = device.sm_count, device.shared_bytes // 1024 * 1024 - 1024

    def job(probe: str, variant: str, blocks: int, threads: int, shared: int, cooperative: bool) -> Job:
        def prepare() -> tuple[Timed, None]:
            def launch(nodes: int) -> None:
                for _ in range(nodes):
                    library.launch("empty", blocks, threads, shared, int(cooperative), device.stream())

            return (lambda nodes: device.capture(lambda: launch(nodes))), None

        counts = sizes.graph_nodes if probe == "graph_node" else (1,)
        return Job(probe, variant, counts, prepare, facts={"grid_blocks": blocks, "warps": threads // WARP})

    for probe in ("graph_launch", "graph_node"):
        yield job(probe, "blocks-1", 1, WARP, 0, False)
        yield job(probe, "grid-256", grid, 256, 0, False)
    yield job("cooperative_launch", "grid-256", grid, 256, 0, True)
    yield job("cooperative_launch", "grid-256-shared", grid, 256, shared_bytes, True)


def _product_jobs(library: Any, device: Any, sizes: ProbeSizes) -> Iterator[Job]:
    """mma.sync from registers, all multiprocessors at once."""
    for kind, (probe, operations) in enumerate(MMA_OPERATIONS.items()):
        for warps in (4, 8, 16):

            def prepare(kind: int = kind, warps: int = warps) -> tuple[Timed, None]:
                sink = device.zeros(4)
                return (lambda repeats: lambda: library.launch(
                    "products", kind, repeats, device.sm_count, warps, sink.data_ptr(), device.stream())), None

            work = operations * warps * library.ask("products_accumulators")
            precision = "int8x2" if probe == "mma_s8" else "bf16"
            facts = {"grid_blocks": device.sm_count, "warps": warps, "precision": precision}
            yield Job(probe, f"warps-{warps}", sizes.product_repeats, prepare, work_operations=work, facts=facts)
