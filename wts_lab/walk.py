"""``Walk``: a draft head's serial walk as one launch, prepared once and called many times.

Preparation quantises and packs the matrix and the latent table, uploads them, builds the kernel of the placement and
asks the device whether its grid can be co-resident. A call checks its tensors, launches, and returns; it allocates
nothing when ``tokens_out`` is given, never synchronises, and can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

import torch

from cost_model.gpu import Figure, Gpu, UnknownGpu, recognise_gpu
from cost_model.head import Head
from cost_model.placement import Placement, plan
from wts_lab import abi, packing, quantize
from wts_lab.build import BuildRecord, build_walk, load_binding

EXCHANGE_REPLICAS = 1
"""Copies of the exchange words; docs/kernel.md and the record of benchmark `exchanges` have the sweep that chose it."""

MAX_POLLS = 1 << 21
"""Bound of a wait, in polls of about half a microsecond: a second, far beyond any step."""


class LaunchRefused(RuntimeError):
    """The grid cannot be co-resident on this device; the message has the needed and the available blocks."""


class WalkStalled(RuntimeError):
    """Blocks that did not publish in a step within the bound, as the first block to give up saw it.

    ``missing_blocks`` come in pairs, of which at least one is missing: words are read two at a time.
    """

    def __init__(self, step: int, missing_blocks: tuple[int, ...]):
        self.step, self.missing_blocks = step, missing_blocks
        super().__init__(f"the walk stalled in step {step}: no word from blocks {', '.join(map(str, missing_blocks))}")


class AnchorOutOfRange(RuntimeError):
    """An anchor token outside the target vocabulary; the row's tokens are all 0. ``row`` is its batch row."""

    def __init__(self, row: int, target_vocab_size: int):
        self.row = row
        super().__init__(f"the anchor of row {row} is not a target id: it must be from 0 to {target_vocab_size - 1}")


def device_arch(device: torch.device) -> str:
    """Architecture that kernels for a device are built for, such as ``sm_90``."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def device_gpu(device: torch.device) -> Gpu:
    """The catalogue's description of a device; an unlisted one gets the few facts that the driver tells.

    Raises ``AmbiguousGpu`` where several SKUs fit.
    """
    properties = torch.cuda.get_device_properties(device)
    try:
        return recognise_gpu(properties.name, properties.multi_processor_count, properties.total_memory)
    except UnknownGpu:
        facts = {
            "sm_count": (properties.multi_processor_count, "SM"),
            "smem_bytes_per_block_optin": (properties.shared_memory_per_block_optin, "B"),
            "l2_bytes": (properties.L2_cache_size, "B"),
        }
        figures = {name: Figure(value, unit, "datasheet", "the driver's device properties") for name, (value, unit) in facts.items()}
        return Gpu("unverified", properties.name, (), (properties.major, properties.minor), figures)


@dataclass(frozen=True)
class WalkPlan:
    """What to build for a request: blocks of the grid, tiles of a block, and the instantiation."""

    grid_blocks: int
    placement: Placement
    spec: abi.WalkSpec


def plan_walk(
    gpu: Gpu,
    shape: Head,
    *,
    mode: str,
    precision: str,
    placement: Placement | None = None,
    replicas: int = EXCHANGE_REPLICAS,
    probe: str = "none",
) -> WalkPlan:
    """The plan of a walk of ``shape`` on ``gpu``; the planner's placement where none is given.

    Raises ``ValueError`` for a placement that cannot hold the matrix or contradicts the mode, ``PlanError`` where nothing fits.
    """
    tiles = packing.count_tiles(shape.vocab_size)
    grid_blocks = min(gpu.sm_count, tiles)
    chosen = placement or plan(gpu, shape, precision, mode, grid_blocks=grid_blocks)
    _check_placement(chosen, mode, tiles, grid_blocks)
    spec = abi.WalkSpec.of(chosen, rank=shape.rank, precision=precision, replicas=replicas, probe=probe)
    return WalkPlan(grid_blocks, chosen, spec)


class Walk:
    """A prepared walk of a Markov head.

    Args:
        head: a :class:`wts_lab.heads.MarkovHead` (or anything with its ``shape`` and its two weights).
        steps: the longest walk; a call may do fewer.
        max_batch: 1; larger batches are not built yet.
        mode: ``streaming`` or ``resident``.
        precision: ``int8x2`` or ``bf16``.
        placement: where the tiles lie; the planner's choice when None.
        draft_to_target: int ``[vocab]``, target id of each draft id; None where they are the same.
        rounding: ``once``.
        device: a CUDA device; the current one when None.
        probe: ``none``; ``fixed_latent`` and ``phases`` are measuring instruments, see :class:`wts_lab.abi.WalkSpec`.
        replicas: copies of the exchange words.
        expected_blocks: words a block waits for; anything above the grid stalls, which tests use.
        max_polls: looks at the words before a wait gives up and the walk counts as stalled.
        log: called with each line of a build.
        cancel: set it to stop a build that is under way.

    Raises ``ValueError`` for a bad argument, :class:`wts_lab.build.BuildError`, :class:`LaunchRefused`.
    """

    def __init__(
        self,
        head,
        *,
        steps: int,
        max_batch: int = 1,
        mode: str,
        precision: str = "int8x2",
        placement: Placement | None = None,
        draft_to_target: torch.Tensor | None = None,
        rounding: str = "once",
        device: torch.device | str | None = None,
        probe: str = "none",
        replicas: int = EXCHANGE_REPLICAS,
        expected_blocks: int | None = None,
        max_polls: int = MAX_POLLS,
        log=None,
        cancel: threading.Event | None = None,
    ):
        self.device = _cuda_device(device)
        self.shape, self.steps, self.mode, self.precision = head.shape, steps, mode, precision
        _check_request(head.shape, steps, max_batch, mode, precision, rounding)
        self.gpu = device_gpu(self.device)
        planned = plan_walk(
            self.gpu, self.shape, mode=mode, precision=precision, placement=placement, replicas=replicas, probe=probe
        )
        self.grid_blocks, self.placement, self.spec = planned.grid_blocks, planned.placement, planned.spec
        self.build: BuildRecord = build_walk(self.spec, device_arch(self.device), log=log, cancel=cancel)
        self._binding = load_binding(log)
        self._library = ctypes.CDLL(str(self.build.library))
        self._library.wts_error_string.restype = ctypes.c_char_p
        self.description = self._describe()
        self._upload(head, draft_to_target)
        self._params = self._parameters(expected_blocks or self.grid_blocks, max_polls)
        self._addresses = tuple(
            ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value for name in ("wts_walk_launch", "wts_error_string")
        )
        self._stream: torch.cuda.Stream | None = None

    def _describe(self) -> abi.WalkDescription:
        description = abi.WalkDescription()
        with torch.cuda.device(self.device):
            error = self._library.wts_walk_describe(ctypes.byref(description))
        if error:
            raise LaunchRefused(f"the device refuses this kernel: {self._library.wts_error_string(error).decode()}")
        available = description.blocks_per_multiprocessor * description.multiprocessors
        if not description.cooperative or available < self.grid_blocks:
            raise LaunchRefused(
                f"{self.grid_blocks} blocks must run at once, {available if description.cooperative else 0} can "
                f"({description.multiprocessors} visible multiprocessors); plan for the visible ones or free the GPU"
            )
        return description

    def _upload(self, head, draft_to_target: torch.Tensor | None) -> None:
        """Quantises, packs and keeps the buffers of the walk on its device."""
        w1 = head.markov_w1.weight.detach().to(self.device)
        w2 = head.markov_w2.weight.detach()[: self.shape.vocab_size].to(self.device)
        for name, weight in (("markov_w1", w1), ("markov_w2", w2)):
            if not torch.isfinite(weight).all():
                raise ValueError(f"{name}.weight has entries that are not finite; a walk over them has no meaning")
        self._scales = None
        if self.precision == "int8x2":
            codes, scales = quantize.quantize_rows(w2)
            self._matrix, self._scales = packing.pack_matrix_int8(codes), packing.pack_scales(scales)
            self._latents = packing.pack_latents_int8(*quantize.quantize_latents(w1))
        else:
            self._matrix = packing.pack_matrix_bf16(w2.to(torch.bfloat16))
            self._latents = packing.pack_latents_bf16(w1.to(torch.bfloat16))
        self._map = None
        if draft_to_target is not None:
            self._map = _checked_map(draft_to_target, self.shape).to(self.device)
        capacity = abi.CONSTANTS["kSlotCapacity"]
        self._slots = torch.zeros(self.spec.replicas * 2 * capacity, dtype=torch.int64, device=self.device)
        self._control = torch.zeros(abi.CONSTANTS["kControlWords"], dtype=torch.int32, device=self.device)
        self.phase_clocks = torch.zeros((self.grid_blocks, abi.CONSTANTS["kPhases"]), dtype=torch.int64, device=self.device)

    def _parameters(self, expected_blocks: int, max_polls: int) -> abi.WalkParams:
        def address(tensor: torch.Tensor | None) -> int | None:
            return None if tensor is None else tensor.data_ptr()

        return abi.WalkParams(
            matrix=address(self._matrix), row_scales=address(self._scales), latents=address(self._latents),
            draft_to_target=address(self._map), slots=address(self._slots), control=address(self._control),
            phase_clocks=address(self.phase_clocks), vocab_size=self.shape.vocab_size, vocab_tiles=packing.count_tiles(self.shape.vocab_size),
            target_vocab_size=self.shape.target_vocab_size, expected_blocks=expected_blocks, max_polls=max_polls,
        )

    @torch.no_grad()
    def __call__(
        self, base_logits: torch.Tensor, anchor: torch.Tensor, *, tokens_out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Walks one block: bf16 ``[1, steps, >= vocab]`` and int64 ``[1]`` to int64 ``[1, steps]`` in target ids.

        Any strides but the last; columns past the vocabulary are ignored. Raises ``ValueError`` for a tensor that does
        not fit, ``RuntimeError`` when the workspace is still in use on another stream.
        """
        if tokens_out is None:
            tokens_out = torch.empty((1, base_logits.shape[1] if base_logits.dim() == 3 else 0), dtype=torch.int64, device=self.device)
        stream = torch.cuda.current_stream(self.device)
        self._own_workspace(stream)
        with torch.cuda.device(self.device):
            self._binding.launch(
                *self._addresses, ctypes.addressof(self._params), self.grid_blocks, self.steps, self.device.index,
                stream.cuda_stream, base_logits, anchor, tokens_out,
            )
        return tokens_out

    def _own_workspace(self, stream: torch.cuda.Stream) -> None:
        if torch.cuda.is_current_stream_capturing():
            return  # a replay's stream is the caller's to order
        if self._stream is not None and stream != self._stream and not self._stream.query():
            raise RuntimeError("this walk is still running on another stream; a workspace serves one stream at a time: wait, or prepare a second Walk")
        self._stream = stream

    def check(self) -> None:
        """Waits for the device and raises what only it could see, :class:`WalkStalled` or :class:`AnchorOutOfRange`.

        Clears the report. A stalled workspace stays inert (every token 0) until this call has cleaned it.
        """
        torch.cuda.synchronize(self.device)
        control = self._control.tolist()
        status, detail = control[abi.CONSTANTS["kControlStatus"]], control[abi.CONSTANTS["kControlDetail"]]
        if status == abi.CONSTANTS["kStatusClean"]:
            return
        self._control[abi.CONSTANTS["kControlStatus"] :] = 0
        if status == abi.CONSTANTS["kStatusAnchor"]:
            raise AnchorOutOfRange(detail, self.shape.target_vocab_size)
        self._slots.zero_()
        self._control.zero_()
        first = abi.CONSTANTS["kControlMissing"]
        bits = control[first : first + abi.CONSTANTS["kSlotCapacity"] // 64]
        pairs = [lane + 32 * word for word, mask in enumerate(bits) for lane in range(32) if (mask >> lane) & 1]
        expected = self._params.expected_blocks
        raise WalkStalled(detail, tuple(block for pair in pairs for block in (2 * pair, 2 * pair + 1) if block < expected))


def _cuda_device(device: torch.device | str | None) -> torch.device:
    if not torch.cuda.is_available():
        raise LaunchRefused("no CUDA device is visible to torch; predictions and recorded runs need none, a walk does")
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        raise ValueError(f"device is {chosen}; a walk runs on a CUDA device")
    return torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)


def _check_request(shape, steps: int, max_batch: int, mode: str, precision: str, rounding: str) -> None:
    if shape.kind != "markov":
        raise ValueError(f"head kind is {shape.kind}; the fused walk serves markov so far")
    if steps < 1:
        raise ValueError(f"steps is {steps}; a walk has at least 1")
    for name, value, allowed in (
        ("max_batch", max_batch, (1,)),
        ("mode", mode, ("streaming", "resident")),
        ("precision", precision, ("int8x2", "bf16")),
        ("rounding", rounding, ("once",)),
    ):
        if value not in allowed:
            raise ValueError(f"{name} is {value!r}; the fused walk serves {' or '.join(map(repr, allowed))} so far")


def _check_placement(placement: Placement, mode: str, tiles: int, grid_blocks: int) -> None:
    needed = -(-tiles // grid_blocks)
    if placement.tiles < needed:
        raise ValueError(f"the placement holds {placement.tiles} tiles a block; {tiles} tiles over {grid_blocks} blocks need {needed}")
    if mode == "streaming" and placement.register_tiles + placement.shared_tiles:
        raise ValueError("a streaming walk keeps nothing on chip; give a placement of streamed and staging tiles, or mode resident")


def _checked_map(draft_to_target: torch.Tensor, shape) -> torch.Tensor:
    """int32 copy of the map; raises ``ValueError`` where its length or an entry is outside the vocabularies."""
    if draft_to_target.shape != (shape.vocab_size,):
        raise ValueError(f"draft_to_target has shape {tuple(draft_to_target.shape)}; it needs one entry for each of {shape.vocab_size} draft ids")
    if bool(((draft_to_target < 0) | (draft_to_target >= shape.target_vocab_size)).any()):
        raise ValueError(f"draft_to_target has entries outside the target vocabulary of {shape.target_vocab_size}")
    return draft_to_target.to(torch.int32).contiguous()
