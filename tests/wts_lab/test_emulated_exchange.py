"""The exchange on the host: its stress finds nothing, and would find something; its probe agrees; and a walk whose batch changes."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

torch = pytest.importorskip("torch")

from tests.wts_lab.emulation import EMULATOR, FLAGS, EmulatedWalk, compiler  # noqa: E402
from wts_lab import abi  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.probe_jobs import expected_agreement  # noqa: E402
from wts_lab.probe_library import exchange_spec  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402
from wts_lab.workspace import Workspace  # noqa: E402

BLOCKS = 5  # one word more than a narrow unit has, and than two wide ones
TILES = 17  # three or four of 16 rows for each block
LAUNCHES = ((40, 2), (7, 1), (24, 1), (3, 4), (31, 3), (30, 1), (9, 4), (29, 2), (2, 4), (1, 1), (5, 4))
"""Rounds and batch: rows come back after 29 to 31 rounds and their likes."""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Stress and probe for the host."""
    folder = tmp_path_factory.mktemp("exchange")
    (folder / "wts_abi.h").write_text(abi.render_header())
    includes = [f"-I{path}" for path in (EMULATOR, abi.csrc_root(), folder)]
    command = [compiler(), *FLAGS, *includes, str(EMULATOR / "exchange.cpp"), "-o", str(folder / "exchange.so")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return ctypes.CDLL(str(folder / "exchange.so"))


def make_params(rows, wide, vocab_tiles, **fields):
    """A parameter block over a fresh workspace, and the workspace."""
    workspace = Workspace.make(exchange_spec(rows, wide), BLOCKS, "dense-lines", torch.device("cpu"))
    fields = {"expected_blocks": BLOCKS, "max_polls": 4000, **fields}
    return abi.WalkParams(slots=workspace.slots.data_ptr(), unit_stride=workspace.unit_stride, vocab_tiles=vocab_tiles, **fields), workspace


def stress(library, rows, wide, *, seed=1, checked_seed=1, launches=LAUNCHES, epoch=1, **fields):
    """Mismatches and stalls of some launches, which begin at an epoch whose field is 1."""
    params, workspace = make_params(rows, wide, TILES, **fields)
    counts = torch.zeros(2, dtype=torch.int64)
    for order, (rounds, batch) in enumerate(launches):
        params.batch = min(batch, rows)
        stuck = library.emulate_stress(
            ctypes.byref(params), ctypes.c_void_p(counts.data_ptr()), BLOCKS, rows, int(wide), rounds, ctypes.c_uint32(epoch),
            ctypes.c_uint64(seed), ctypes.c_uint64(checked_seed), ctypes.c_uint64(order),
        )
        assert stuck == 0
        epoch += rounds
    return counts.tolist()


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("rows", "epoch"), [(1, 1), (1, 513), (1, 769), (2, 1), (4, 1), (4, 513), (16, 769)])
def test_every_winner_is_the_expected_one_while_batches_change(library, rows, epoch, wide):
    """From epoch 513 on one block comes late, always the same; from 769 on some."""
    assert stress(library, rows, wide, epoch=epoch) == [0, 0]


@pytest.mark.parametrize("wide", [False, True])
def test_a_winner_that_is_not_expected_is_counted(library, wide):
    mismatches, stalls = stress(library, 4, wide, checked_seed=2, launches=((40, 4),))
    assert stalls == 0 and mismatches > 0.5 * 40 * 4 * BLOCKS


@pytest.mark.parametrize("wide", [False, True])
def test_a_word_that_never_comes_is_a_stall_of_every_leader_and_ends_all_launches(library, wide):
    assert stress(library, 4, wide, expected_blocks=BLOCKS + 4, max_polls=20, launches=((3, 4), (3, 4))) == [0, 4 * BLOCKS]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_probe_agrees_on_what_the_host_expects(library, rows, wide):
    params, _ = make_params(rows, wide, 128 * BLOCKS)
    agreed, status = torch.full((BLOCKS, rows), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for first_epoch in (1, 36):
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (agreed, status)]
        assert library.emulate_probe(ctypes.byref(params), *pointers, BLOCKS, rows, int(wide), 35, ctypes.c_uint32(first_epoch), ctypes.c_uint64(3)) == 0
        assert status.item() == 0
        assert agreed.tolist() == [expected_agreement(BLOCKS, rows, 35, wide)] * BLOCKS


def test_rows_that_calls_leave_out_do_not_meet_their_old_words(tmp_path):
    """After 29 to 31 steps without them, the epoch field of a row's last words is again one that is awaited."""
    head = MarkovHead.random(250, 32, seed=3)
    walk = EmulatedWalk(head, abi.WalkSpec(2, 2, 1, 0, 0, 4, 32, "int8x2"), 3, tmp_path)
    generator = torch.Generator().manual_seed(1)
    base = (1.5 * torch.randn(2, 4, 16, 250, generator=generator)).to(torch.bfloat16)
    anchors = torch.randint(0, 250, (2, 4), generator=generator)
    expected = [expected_walks(head, base[i], anchors[i], precision="int8x2").tokens for i in range(2)]
    for call, rest in enumerate((13, 14, 15, 13, 14, 15)):
        i = call % 2
        assert walk(base[i], anchors[i], seed=call).tolist() == expected[i].tolist()
        for steps in (16, rest):
            assert walk(base[i, :1, :steps].contiguous(), anchors[i, :1], seed=call).tolist() == expected[i][:1, :steps].tolist()
