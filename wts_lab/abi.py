"""The contract between Python and CUDA, kept once: constants, the parameter block, the specification of a kernel.

``render_header`` writes ``wts_abi.h``, which every file of ``csrc/`` includes; :class:`WalkParams` is the same block
for ctypes. A field or constant changed here changes on both sides; nothing is typed twice.
"""

from __future__ import annotations

import ctypes
from dataclasses import asdict, dataclass
from pathlib import Path

from cost_model.head import MAX_RANK, MAX_VOCAB_SIZE
from cost_model.placement import Placement
from cost_model.terms import TILE_ROWS

CONSTANTS = {
    "kTileRows": TILE_ROWS,  # rows of a tile, the unit of placement
    "kFragmentBytes": 16,  # bytes of one matrix fragment a lane and k-step
    "kMaxRank": MAX_RANK,
    "kMaxVocabulary": MAX_VOCAB_SIZE,  # what the index field of the word can tell apart
    "kLatentHeaderBytes": 16,  # float32 s1, float32 s2, halt flag, 0
    "kHaltWord": 2,
    "kEpochBits": 12,
    "kEpochMask": (1 << 12) - 1,
    "kIndexMask": (1 << 20) - 1,
    "kSlotCapacity": 192,  # words of one exchange buffer: the largest grid
    "kMaxReplicas": 64,
    "kControlEpoch": 0,  # uint32 words of the control block
    "kControlStatus": 1,
    "kControlDetail": 2,  # the stalled step, or the row with the bad anchor
    "kControlMissing": 3,  # kSlotCapacity / 64 words: bit l of word i is blocks 2 (l + 32 i) and the next
    "kControlWords": 8,
    "kStatusClean": 0,
    "kStatusStalled": 1,
    "kStatusAnchor": 2,
    "kPhases": 5,
    "kFirstPollClocks": 300,  # from the start of a wait to the first look at the words; chosen in development (docs/kernel.md)
    "kFragmentsInFlight": 4,  # of shared memory a thread: loads ahead of their products
}
"""Integer constants of the kernels, by their C++ names."""

UNSIGNED = frozenset(name for name in CONSTANTS if name.startswith(("kStatus", "kEpochMask", "kIndexMask", "kFirstPoll")))

PHASES = ("products", "epilogue", "publish", "exchange", "latent")
"""Names of the phase clocks, in the order the kernel stores them."""

PARAMETER_FIELDS: tuple[tuple[str, str], ...] = (
    ("matrix", "const void*"),  # packed tiles [tiles, k_steps, 32, 16 bytes]
    ("row_scales", "const float*"),  # [tiles * 16]; int8x2 only
    ("latents", "const uint8_t*"),  # [target_vocab, latent bytes]
    ("draft_to_target", "const int32_t*"),  # [vocab] or null
    ("base_logits", "const uint16_t*"),  # bf16 [steps, >= vocab], last stride 1
    ("base_step_stride", "int64_t"),  # elements
    ("anchors", "const int64_t*"),  # [1]
    ("tokens", "int64_t*"),  # [steps]
    ("slots", "uint64_t*"),  # [replicas, 2, kSlotCapacity]
    ("control", "uint32_t*"),  # [kControlWords]
    ("phase_clocks", "int64_t*"),  # [grid, kPhases]; phases probe only
    ("vocab_size", "int32_t"),  # logical rows of the matrix
    ("vocab_tiles", "int32_t"),
    ("target_vocab_size", "int32_t"),
    ("steps", "int32_t"),
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

    Slots count tiles a warp; ``staging_slots`` are ring entries a warp. ``probe`` is ``none``, ``fixed_latent``
    (products and selection repeated on one latent, no exchange) or ``phases`` (clocks of each part of a step).
    """

    warps: int
    register_slots: int
    shared_slots: int
    streamed_slots: int
    staging_slots: int
    rank: int
    precision: str
    replicas: int
    probe: str = "none"

    @classmethod
    def of(cls, placement: Placement, *, rank: int, precision: str, replicas: int, probe: str = "none") -> WalkSpec:
        """The specification of a placement; raises ``ValueError`` where tiles do not divide among the warps."""
        counts = {}
        for tier in ("register", "shared", "streamed", "staging"):
            tiles = getattr(placement, f"{tier}_tiles")
            if tiles % placement.warps:
                raise ValueError(f"{tier}_tiles is {tiles}; it must be a multiple of the {placement.warps} warps")
            counts[f"{tier}_slots"] = tiles // placement.warps
        return cls(warps=placement.warps, **counts, rank=rank, precision=precision, replicas=replicas, probe=probe)

    @property
    def slots(self) -> int:
        """Tiles a warp."""
        return self.register_slots + self.shared_slots + self.streamed_slots

    def translation_unit(self) -> str:
        """The source that instantiates this kernel and its launchers."""
        arguments = (
            f"{self.warps}, {self.register_slots}, {self.shared_slots}, {self.streamed_slots}, {self.staging_slots}, "
            f"{self.rank}, wts::Precision::{self.precision}, {self.replicas}, wts::Probe::{self.probe}"
        )
        return f'#include "walk/launch.cuh"\n\nWTS_EXPORT_WALK(wts::WalkConfig<{arguments}>)\n'

    def name(self) -> str:
        """A short, unique, file-safe name."""
        fields = asdict(self)
        tiers = "-".join(str(fields[f"{tier}_slots"]) for tier in ("register", "shared", "streamed", "staging"))
        probe = "" if self.probe == "none" else f"-{self.probe}"
        return f"walk-{self.precision}-r{self.rank}-w{self.warps}-{tiers}-x{self.replicas}{probe}"


def slot_column(slot: int, slots: int) -> int:
    """Lane column t (0 to 3) that finishes a warp's slot: the twin of ``WalkConfig::slot_column``."""
    return slot // max((slots + 3) // 4, min(slots, 3))


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
