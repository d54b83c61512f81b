"""The contract between Python and CUDA, kept once: constants, the parameter block, the specification of a kernel.

``render_header`` writes ``wts_abi.h``, which every file of ``csrc/`` includes; :class:`WalkParams` is the same block
for ctypes. A field or constant changed here changes on both sides; nothing is typed twice.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from cost_model.head import MAX_RANK, MAX_VOCAB_SIZE
from cost_model.placement import NARROW_ROWS
from cost_model.terms import TILE_ROWS
from cost_model.workload import MAX_BATCH

CONSTANTS = {
    "kTileRows": TILE_ROWS,  # rows of a tile, the unit of placement
    "kFragmentBytes": 16,  # bytes of one matrix fragment a lane and k-step
    "kMaxRank": MAX_RANK,
    "kMaxRows": MAX_BATCH,  # batch rows of one walk
    "kMaxVocabulary": MAX_VOCAB_SIZE,  # what the index field of a wide word can tell apart
    "kLatentHeaderBytes": 16,  # float32 s1, float32 s2, 0, 0
    "kEpochBits": 12,  # of a wide word
    "kEpochMask": (1 << 12) - 1,
    "kIndexMask": (1 << 20) - 1,
    "kNarrowEpochBits": 5,
    "kNarrowRows": NARROW_ROWS,
    "kMaxBlocks": 192,  # of a grid
    "kUnitBytes": 16,  # of words that are read together
    "kControlEpoch": 0,  # uint32 words of the control block
    "kControlStatus": 1,
    "kControlDetail": 2,  # the stalled step
    "kControlBadRows": 3,  # bit b: the anchor of batch row b is no target id
    "kControlMissing": 4,  # kMissingWords words: bit l of word i is unit l + 32 i of the exchange words
    "kMissingWords": 3,
    "kControlWords": 8,
    "kStatusClean": 0,
    "kStatusStalled": 1,
    "kStatusAnchor": 2,
    "kPhases": 5,
    "kPrefetchSteps": 2,  # base logits are asked of L2 so many steps ahead
    "kFirstPollClocks": 200,  # from a publication to the first look at the words
    "kFragmentsInFlight": 3,  # of shared memory a thread: loads ahead of their products
}
"""Integer constants of the kernels, by their C++ names."""

UNSIGNED = frozenset(name for name in CONSTANTS if name.startswith(("kStatus", "kEpochMask", "kIndexMask", "kFirstPoll", "kMaxVocabulary")))

PHASES = ("products", "epilogue", "publish", "exchange", "latent")
"""Names of the phase clocks, in the order the kernel stores them."""

PARAMETER_FIELDS: tuple[tuple[str, str], ...] = (
    ("matrix", "const void*"),  # packed tiles [tiles, k_steps, 32, 16 bytes]
    ("row_scales", "const float*"),  # [tiles * 16]; int8x2 only
    ("token_table", "const uint16_t*"),  # [target_vocab, ...]: latents as packed for Markov, else bf16 (head_terms.token_table)
    ("positions", "const float*"),  # [batch, steps, ...]: head_terms.position_terms; null for Markov
    ("state_matrix", "const uint16_t*"),  # bf16 [3 n, n]; RNN and Domino
    ("projector", "const uint16_t*"),  # bf16 [rank, gru]; Domino
    ("draft_to_target", "const int32_t*"),  # [vocab] or null
    ("base_logits", "const uint16_t*"),  # bf16 [batch, steps, >= vocab], last stride 1
    ("base_row_stride", "int64_t"),  # elements
    ("base_step_stride", "int64_t"),
    ("anchors", "const int64_t*"),  # [batch]
    ("tokens", "int64_t*"),  # [batch, steps], last stride 1
    ("tokens_row_stride", "int64_t"),
    ("logits_out", "uint16_t*"),  # bf16 [batch, steps, vocab], last stride 1; or null
    ("logits_row_stride", "int64_t"),
    ("logits_step_stride", "int64_t"),
    ("temperatures", "const float*"),  # [batch] or null
    ("noise_offset", "int64_t*"),  # [1] or null
    ("slots", "char*"),  # exchange words
    ("state_slots", "uint64_t*"),  # words of the state exchange; RNN and Domino
    ("control", "uint32_t*"),  # [kControlWords]
    ("phase_clocks", "int64_t*"),  # [grid, kPhases]; phases probe only
    ("noise_key_low", "uint32_t"),
    ("noise_key_high", "uint32_t"),
    ("vocab_size", "int32_t"),  # logical rows of the matrix
    ("vocab_tiles", "int32_t"),
    ("target_vocab_size", "int32_t"),
    ("batch", "int32_t"),
    ("steps", "int32_t"),  # positions of the walk
    ("unit_stride", "int32_t"),  # bytes between exchange units
    ("matrix_stays_in_l2", "int32_t"),  # whether the shard's loads leave the matrix in L2
    ("expected_blocks", "int32_t"),  # words to wait for: the grid, but for a test that wants a stall
    ("max_polls", "uint32_t"),  # bound of every wait
)
"""Name and C++ type of each field of ``WalkParams``, in order."""

DESCRIPTION_FIELDS: tuple[tuple[str, str], ...] = (
    ("registers_per_thread", "int32_t"),
    ("local_bytes", "int32_t"),  # a thread
    ("shared_bytes", "int32_t"),  # a block, dynamic
    ("threads", "int32_t"),
    ("blocks_per_multiprocessor", "int32_t"),
    ("multiprocessors", "int32_t"),
    ("cooperative", "int32_t"),
)
"""What a built kernel says of itself on the current device."""

_CTYPES = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "int64_t": ctypes.c_int64}


def _ctype(cpp_type: str) -> type:
    return ctypes.c_void_p if cpp_type.endswith("*") else _CTYPES[cpp_type]


class WalkParams(ctypes.Structure):
    """The parameter block of a launch; device addresses are plain integers."""

    _fields_ = [(name, _ctype(cpp_type)) for name, cpp_type in PARAMETER_FIELDS]


class WalkDescription(ctypes.Structure):
    """Filled by ``wts_walk_describe``; see ``DESCRIPTION_FIELDS``."""

    _fields_ = [(name, _ctype(cpp_type)) for name, cpp_type in DESCRIPTION_FIELDS]


def render_header() -> str:
    """Text of ``wts_abi.h``: the constants and the two structures in C++."""
    lines = [
        "// Written by wts_lab/abi.py, the only place to change it.",
        "#pragma once",
        "#include <cstdint>",
        "",
        "namespace wts {",
        "",
    ]
    for name, value in CONSTANTS.items():
        cpp_type, suffix = ("uint32_t", "u") if name in UNSIGNED else ("int", "")
        lines.append(f"constexpr {cpp_type} {name} = {value}{suffix};")
    for struct, fields in (("WalkParams", PARAMETER_FIELDS), ("WalkDescription", DESCRIPTION_FIELDS)):
        lines += ["", f"struct {struct} {{"]
        lines += [f"  {cpp_type} {name};" for name, cpp_type in fields]
        lines.append("};")
    lines += ["", f'static_assert(sizeof(WalkParams) == {ctypes.sizeof(WalkParams)}, "ctypes and C++ disagree");']
    return "\n".join(lines + ["", "}  // namespace wts", ""])


@dataclass(frozen=True)
class WalkSpec:
    """One instantiation of the walk kernel: everything the compiler is told.

    Slots count tiles a warp; ``staging_entries`` are ring entries a warp, of ``staging_steps`` k-steps of a tile each. ``rows`` is the largest batch, ``wide`` tells 64-bit from
    32-bit exchange words, ``products`` whether each ``warp`` multiplies its tiles (mma.sync) or a ``warpgroup`` multiplies four with all rows
    (wgmma, sm_90 only), ``state_rows`` and ``projector_rows`` are the rows of a recurrent head's matrices that a block keeps.
    ``probe`` is ``none`` or a measuring instrument: ``fixed_latent`` (products and selection repeated on one latent, no
    exchange), ``exchange`` (words and latents alone), ``state`` (state advance alone), ``phases`` (clocks of each part of a step).
    """

    warps: int
    register_slots: int
    shared_slots: int
    streamed_slots: int
    staging_entries: int
    rows: int
    rank: int
    precision: str
    rounding: str = "once"
    sampling: bool = False
    wide: bool = False
    products: str = "warp"
    head: str = "markov"
    gru: int = 0
    state_rows: int = 0
    projector_rows: int = 0
    probe: str = "none"

    @property
    def slots(self) -> int:
        """Tiles a warp."""
        return self.register_slots + self.shared_slots + self.streamed_slots

    def translation_unit(self) -> str:
        """The source that instantiates this kernel and its launchers."""
        arguments = (
            f"{self.warps}, {self.register_slots}, {self.shared_slots}, {self.streamed_slots}, {self.staging_entries}, {self.rows}, "
            f"{self.rank}, wts::Precision::{self.precision}, wts::Rounding::{self.rounding}, {_cpp(self.sampling)}, {_cpp(self.wide)}, "
            f"wts::Products::{self.products}, wts::HeadKind::{self.head}, {self.gru}, {self.state_rows}, {self.projector_rows}, wts::Probe::{self.probe}"
        )
        return f'#include "walk/launch.cuh"\n\nWTS_EXPORT_WALK(wts::WalkConfig<{arguments}>)\n'

    def name(self) -> str:
        """A short, unique, file-safe name."""
        tiers = f"{self.register_slots}-{self.shared_slots}-{self.streamed_slots}-{self.staging_entries}"
        words = [f"walk-{self.head}-{self.precision}-r{self.rank}-b{self.rows}-w{self.warps}-{tiers}", self.rounding]
        words += [f"g{self.gru}"] if self.gru else []
        words += [f"s{self.state_rows}-{self.projector_rows}"] if self.head in ("rnn", "domino") else []
        words += ["sampling"] if self.sampling else []
        words += ["grouped"] if self.products == "warpgroup" else []
        words += ["wide"] if self.wide and not self.sampling else []
        words += [] if self.probe == "none" else [self.probe]
        return "-".join(words)


def slot_column(slot: int, slots: int) -> int:
    """Lane column t (0 to 3) that finishes a warp's slot where one batch row is walked: the twin of ``WalkConfig::slot_column``."""
    return slot // max((slots + 3) // 4, min(slots, 3))


def k_steps(rank: int, precision: str) -> int:
    """K-steps of one tile: 32 int8 or 16 bf16 elements each."""
    return rank // (32 if precision == "int8x2" else 16)


def staging_steps(rank: int, precision: str) -> int:
    """K-steps of a tile in one entry of the staging ring: a part of a tile where its k-steps divide by four, else all of it.

    The twin of ``WalkConfig::entry_steps``. Smaller entries wait and ask too often, larger ones leave the ring half empty.
    """
    steps = k_steps(rank, precision)
    return 4 if steps % 4 == 0 else steps


def _cpp(flag: bool) -> str:
    return "true" if flag else "false"


def csrc_root() -> Path:
    """Folder of the CUDA sources: the checkout's, or the copy shipped in an installed wheel.

    Raises ``FileNotFoundError`` naming both places where neither is there.
    """
    here = Path(__file__).resolve().parent
    places = (here.parent / "csrc", here / "_shipped" / "csrc")
    for place in places:
        if (place / "walk" / "walk.cuh").is_file():
            return place
    raise FileNotFoundError(f"CUDA sources not found in {places[0]} or {places[1]}; reinstall wts-lab")
