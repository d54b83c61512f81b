"""Runs the walk kernel itself on the host: `csrc/walk` compiled by the C++ compiler against `tests/emulator`, threads as fibers.

Everything of the kernel but its instructions (`csrc/walk/ptx.cuh`) is what a GPU runs: packing, placement, rings, waits, words, state
advance, selection. A seed decides who runs next, so other seeds are other orders of events.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from wts_lab import abi, packing
from wts_lab.head_terms import position_terms
from wts_lab.weights import prepare_weights
from wts_lab.workspace import Workspace

EMULATOR = Path(__file__).parents[1] / "emulator"
FLAGS = ("-std=c++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC", "-shared", "-w")


def compiler() -> str:
    """The C++ compiler, or a skip that says why."""
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no g++: the emulator compiles the kernel for the host")
    return found


def emulated_library(spec: abi.WalkSpec, folder: Path) -> ctypes.CDLL:
    """The kernel of a specification for the host, built once into ``folder``."""
    sources = sorted([*abi.csrc_root().joinpath("walk").glob("*"), *EMULATOR.rglob("*.*")])
    unit = spec.translation_unit()
    config = unit[unit.index("wts::WalkConfig<") : unit.rindex(")")]
    key = hashlib.sha256(b"".join([config.encode(), abi.render_header().encode(), *(path.read_bytes() for path in sources)])).hexdigest()[:16]
    library = folder / f"{spec.name()}-{key}.so"
    if not library.is_file():
        header = folder / key
        header.mkdir(exist_ok=True)
        (header / "wts_abi.h").write_text(abi.render_header())
        includes = [f"-I{path}" for path in (EMULATOR, abi.csrc_root(), abi.csrc_root() / "walk", header)]
        command = [compiler(), *FLAGS, *includes, f"-DEMULATED_CONFIG={config}", str(EMULATOR / "run.cpp"), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    return ctypes.CDLL(str(library))


class EmulatedWalk:
    """:class:`wts_lab.walk.Walk` on the host, for one specification and grid; the same weights, tables and workspace."""

    def __init__(self, head, spec: abi.WalkSpec, grid_blocks: int, folder: Path, *, draft_to_target=None) -> None:
        device = torch.device("cpu")
        self.spec, self.grid_blocks, self.shape = spec, grid_blocks, head.shape
        self.library = emulated_library(spec, folder)
        self.weights = prepare_weights(head, spec.precision, device, draft_to_target, by_rows=spec.products == "warpgroup")
        self.workspace = Workspace.make(spec, grid_blocks, "spread-lines", device)
        self.clocks = torch.zeros((grid_blocks, abi.CONSTANTS["kPhases"]), dtype=torch.int64)

    def __call__(self, base, anchor, *, hidden=None, temperatures=None, noise=None, logits_out=None, seed=1, expected_blocks=None, max_polls=4000):
        """Tokens int64 ``[B, positions]``; arguments as of :class:`wts_lab.walk.Walk`."""
        base = packing.in_pairs(base, self.shape.vocab_size)
        tokens = torch.full(base.shape[:2], -1, dtype=torch.int64)
        terms = None if self.shape.kind == "markov" else position_terms(self.weights.head, hidden)
        weights, workspace = self.weights, self.workspace
        buffers = {
            "matrix": weights.matrix, "row_scales": weights.row_scales, "token_table": weights.token_table, "positions": terms,
            "state_matrix": weights.state_matrix, "projector": weights.projector, "draft_to_target": weights.draft_to_target,
            "base_logits": base, "anchors": anchor, "tokens": tokens, "logits_out": logits_out, "temperatures": temperatures,
            "noise_offset": None if noise is None else noise[1], "slots": workspace.slots,
            "state_slots": workspace.states, "control": workspace.control, "phase_clocks": self.clocks,
        }  # fmt: skip
        key = 0 if noise is None else noise[0] % (1 << 64)
        params = abi.WalkParams(
            **{name: buffer.data_ptr() for name, buffer in buffers.items() if buffer is not None},
            base_row_stride=base.stride(0), base_step_stride=base.stride(1), tokens_row_stride=tokens.stride(0),
            logits_row_stride=0 if logits_out is None else logits_out.stride(0), logits_step_stride=0 if logits_out is None else logits_out.stride(1),
            unit_stride=workspace.unit_stride, noise_key_low=key & 0xFFFFFFFF, noise_key_high=key >> 32, vocab_size=self.shape.vocab_size,
            vocab_tiles=packing.count_tiles(self.shape.vocab_size), target_vocab_size=self.shape.target_vocab_size, batch=base.shape[0],
            steps=base.shape[1], expected_blocks=expected_blocks or self.grid_blocks, max_polls=max_polls,
        )  # fmt: skip
        stuck = self.library.emulate(ctypes.byref(params), self.grid_blocks, ctypes.c_uint64(seed))
        assert not stuck, "the kernel waits for something that nobody does"
        return tokens
