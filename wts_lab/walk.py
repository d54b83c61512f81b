"""``Walk``: a draft head's serial walk as one launch, prepared once and called many times.

Preparation quantises and packs the matrix and the token table, uploads them, builds the kernel of the plan and asks the device whether
its grid can be co-resident. A call checks its tensors, launches, and returns; it never synchronises, can be captured in a
CUDA graph, and allocates nothing when ``tokens_out`` is given (heads that take hidden vectors compute their position terms
into torch's memory pool first, and candidate pools are gathered there).
"""

from __future__ import annotations

import ctypes
import threading

import torch

from cost_model.gpu import Figure, Gpu, UnknownGpu, recognise_gpu
from cost_model.placement import Placement
from cost_model.workload import DEFAULT_EXCHANGE, require_whole
from wts_lab import abi, packing
from wts_lab.build import BuildRecord, build_walk, load_binding
from wts_lab.head_terms import position_terms
from wts_lab.heads import DraftHead
from wts_lab.noise import require_temperatures
from wts_lab.walk_plan import plan_walk, walked_shape
from wts_lab.weights import prepare_weights
from wts_lab.workspace import Workspace, blocks_of_unit

MAX_POLLS = 1 << 21
"""Bound of a wait, in polls of about half a microsecond: a second, far beyond any step."""


class LaunchRefused(RuntimeError):
    """The grid cannot be co-resident on this device; the message has the needed and the available blocks."""


class WalkStalled(RuntimeError):
    """Blocks that did not publish in a step within the bound, as the first block to give up saw it.

    ``missing_blocks`` come in units of four (two where words are wide), of which at least one is missing: they are read together.
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


class Walk:
    """A prepared walk of a draft head.

    Args:
        head: a module of :mod:`wts_lab.heads`.
        steps: the longest walk; a call may do fewer. Domino's position 0, the base argmax, is no step.
        max_batch: batch rows of the largest call, 1 to 32. With a candidate pool a call is a launch for each, see `wts_lab/pool.py`.
        mode: ``streaming`` or ``resident``.
        precision: ``int8x2`` or ``bf16``.
        placement: where the tiles lie; the planner's choice when None.
        draft_to_target: int ``[vocab]``, target id of each draft id; None where they are the same.
        rounding: ``once``, ``twice`` or ``none``.
        sampling: whether calls may give temperatures; a kernel of its own.
        device: a CUDA device; the current one when None.
        probe: ``none``, or a measuring instrument, see :class:`wts_lab.abi.WalkSpec`.
        exchange: where the words of the blocks lie, see :mod:`wts_lab.workspace`.
        matrix_stays_in_l2: whether loading the shard leaves the matrix in L2, where a call right after finds it. False suits serving,
            where other kernels come between and base logits that were just written had better stay.
        expected_blocks: words a block waits for; anything above the grid stalls, which tests use.
        max_polls: looks at the words before a wait gives up and the walk counts as stalled.
        log: called with each line of a build.
        cancel: set it to stop a build that is under way.

    Raises ``ValueError`` for a bad argument, :class:`wts_lab.build.BuildError`, :class:`LaunchRefused`.
    """

    def __init__(
        self,
        head: DraftHead,
        *,
        steps: int,
        max_batch: int = 1,
        mode: str,
        precision: str = "int8x2",
        placement: Placement | None = None,
        draft_to_target: torch.Tensor | None = None,
        rounding: str = "once",
        sampling: bool = False,
        device: torch.device | str | None = None,
        probe: str = "none",
        exchange: str = DEFAULT_EXCHANGE,
        matrix_stays_in_l2: bool = False,
        expected_blocks: int | None = None,
        max_polls: int = MAX_POLLS,
        log=None,
        cancel: threading.Event | None = None,
    ):
        self.device = _cuda_device(device)
        self.head, self.shape, self.mode, self.precision = head, head.shape, mode, precision
        require_whole("steps", steps, 1, None)
        self.steps, self.max_batch, self.sampling, self.exchange = steps, max_batch, sampling, exchange
        self.matrix_stays_in_l2 = matrix_stays_in_l2
        self.gpu = device_gpu(self.device)
        planned = plan_walk(
            self.gpu, self.shape, mode=mode, precision=precision, placement=placement, max_batch=max_batch, rounding=rounding,
            sampling=sampling, probe=probe,
        )
        self.grid_blocks, self.placement, self.spec = planned.grid_blocks, planned.placement, planned.spec
        arch = device_arch(self.device)
        self.build: BuildRecord = build_walk(self.spec, arch, log=log, cancel=cancel)
        self._binding = load_binding(log)
        self._library = ctypes.CDLL(str(self.build.library))
        self._library.wts_error_string.restype = ctypes.c_char_p
        self.description = self._describe()
        self._weights = prepare_weights(head, precision, self.device, draft_to_target, by_rows=self.spec.products == "warpgroup")
        if self._weights.pool is not None:
            self._weights.pool.check_batch(max_batch)
        self._bad_anchors = torch.zeros(max_batch, dtype=torch.bool, device=self.device)  # of pooled rows; of others the control block tells
        self.workspace = Workspace.make(self.spec, self.grid_blocks, exchange, self.device)
        self.phase_clocks = torch.zeros((self.grid_blocks, abi.CONSTANTS["kPhases"]), dtype=torch.int64, device=self.device)
        self._params = self._parameters(expected_blocks or self.grid_blocks, max_polls)
        self._addresses = tuple(
            ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value for name in ("wts_walk_launch", "wts_error_string")
        )
        self._stream: torch.cuda.Stream | None = None
        torch.cuda.synchronize(self.device)  # buffers are ready for a first call on any stream

    @property
    def positions(self) -> int:
        """Positions of the longest call: the steps, and Domino's position 0."""
        return self.steps + self.head.first_step

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

    def _parameters(self, expected_blocks: int, max_polls: int) -> abi.WalkParams:
        weights, workspace, rows = self._weights, self.workspace, walked_shape(self.shape).vocab_size
        return abi.WalkParams(
            matrix=_address(weights.matrix), row_scales=_address(weights.row_scales), token_table=_address(weights.token_table),
            state_matrix=_address(weights.state_matrix), projector=_address(weights.projector),
            draft_to_target=_address(weights.draft_to_target), slots=_address(workspace.slots), unit_stride=workspace.unit_stride,
            state_slots=_address(workspace.states), control=_address(workspace.control), phase_clocks=_address(self.phase_clocks),
            vocab_size=rows, vocab_tiles=packing.count_tiles(rows),
            target_vocab_size=self.shape.target_vocab_size, matrix_stays_in_l2=self.matrix_stays_in_l2, expected_blocks=expected_blocks, max_polls=max_polls,
        )

    @torch.no_grad()
    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        hidden: torch.Tensor | None = None,
        temperatures: torch.Tensor | None = None,
        noise: tuple[int, torch.Tensor] | None = None,
        tokens_out: torch.Tensor | None = None,
        logits_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Walks one block of each batch row.

        Args:
            base_logits: bf16 ``[B, positions, >= vocab]``; columns past the vocabulary are ignored.
            anchor: int64 ``[B]``, target ids.
            hidden: bf16 ``[B, positions, hidden_size]``; needed by every head but Markov.
            temperatures: float32 ``[B]``, finite, 0 for a greedy row, else at least 1.2e-38 (the smallest normal number); with ``noise``, and for a walk prepared with
                ``sampling``. Values on the device are not looked at, since that would wait for it: any other draws without meaning.
            noise: 64-bit key, and int64 ``[1]`` offset on the device, advanced by one.
            tokens_out: int64 ``[B, positions]``.
            logits_out: bf16 ``[B, positions, >= vocab]``, filled with the step logits. Not with a candidate pool.

        Any strides but the last. Returns int64 ``[B, positions]`` in target ids. Raises ``ValueError`` for a tensor that does not
        fit, ``RuntimeError`` when the workspace is still in use on another stream.
        """
        if tokens_out is None:
            tokens_out = torch.empty(base_logits.shape[:2] if base_logits.dim() == 3 else (0, 0), dtype=torch.int64, device=self.device)
        terms = self._position_terms(base_logits, hidden)
        key, offset = self._checked_noise(temperatures, noise)
        stream = torch.cuda.current_stream(self.device)
        self._own_workspace(stream)
        with torch.cuda.device(self.device):
            if self._weights.pool is not None:
                self._launch_rows(stream, base_logits, anchor, tokens_out, terms, logits_out)
            else:
                self._launch(
                    self._params, self.max_batch, stream, base_logits, anchor, tokens_out, terms, temperatures, key, offset, logits_out
                )
        return tokens_out

    def _launch(
        self, params: abi.WalkParams, max_batch: int, stream: torch.cuda.Stream, base_logits, anchor, tokens, terms, temperatures=None, key=0,
        offset=None, logits_out=None,
    ) -> None:  # fmt: skip
        base_logits = packing.in_pairs(base_logits, params.vocab_size)
        self._binding.launch(
            *self._addresses, ctypes.addressof(params), self.grid_blocks, max_batch, self.positions, self.device.index, stream.cuda_stream,
            base_logits, anchor, tokens, terms, temperatures, key, offset, logits_out,
        )

    def _launch_rows(self, stream: torch.cuda.Stream, base_logits, anchor, tokens, terms, logits_out) -> None:
        """A launch for each batch row, over the candidates of its own."""
        if logits_out is not None:
            raise ValueError("a walk over a candidate pool has no logits of the whole vocabulary; leave logits_out out")
        self._binding.check(self.max_batch, self.positions, self.shape.vocab_size, self.device.index, base_logits, anchor, tokens)
        if self.max_batch > 1:  # every launch knows its row as row 0
            self._bad_anchors[: len(anchor)].logical_or_(anchor.clamp(0, self.shape.target_vocab_size - 1) != anchor)
        gathered = self._weights.pool.gather(base_logits)
        params = abi.WalkParams.from_buffer_copy(self._params)
        for row in range(len(anchor)):
            part = slice(row, row + 1)
            params.matrix, params.draft_to_target = _address(gathered.matrix[row]), _address(gathered.targets[row])
            params.row_scales = None if gathered.row_scales is None else _address(gathered.row_scales[row])
            self._launch(params, 1, stream, gathered.base_logits[part], anchor[part], tokens[part], terms[part])

    def _position_terms(self, base_logits: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor | None:
        """What each position contributes whatever its token, fp32; None for a Markov head."""
        if self.shape.kind == "markov":
            if hidden is not None:
                raise ValueError("a markov head takes no hidden vectors; leave hidden out")
            return None
        wanted = (*base_logits.shape[:2], self.shape.hidden_size)
        if hidden is None or hidden.shape != wanted or hidden.dtype != torch.bfloat16:
            given = "none" if hidden is None else f"{hidden.dtype} of shape {tuple(hidden.shape)}"
            raise ValueError(f"a {self.shape.kind} head takes hidden vectors bfloat16 {wanted}; given is {given}")
        if hidden.device != self.device:
            raise ValueError(f"hidden is on {hidden.device}; it must be on {self.device}, where the walk was prepared")
        return position_terms(self._weights.head, hidden)

    def _checked_noise(
        self, temperatures: torch.Tensor | None, noise: tuple[int, torch.Tensor] | None
    ) -> tuple[int, torch.Tensor | None]:
        """Key as an unsigned number and the offset, checked as far as the binding does not."""
        if (temperatures is None) != (noise is None):
            raise ValueError("temperatures and noise come together: give both to sample, neither to walk greedily")
        if temperatures is None:
            return 0, None
        if not self.sampling:
            raise ValueError("this walk was prepared without sampling; prepare it with sampling=True to give temperatures")
        if not isinstance(temperatures, torch.Tensor):
            raise ValueError(f"temperatures is {temperatures!r}; give a float32 tensor [batch] on {self.device}, 0 for a greedy row")
        require_temperatures(temperatures)
        key, offset = noise
        if not -(1 << 63) <= key < 1 << 64:
            raise ValueError(f"the noise key is {key}; it must be a 64-bit number")
        return key % (1 << 64), offset

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
        control = self.workspace.control.tolist()
        status = control[abi.CONSTANTS["kControlStatus"]]
        if status == abi.CONSTANTS["kStatusClean"]:
            return
        self.workspace.control[abi.CONSTANTS["kControlStatus"] :] = 0
        bad_anchors = self._bad_anchors.tolist()
        self._bad_anchors.zero_()
        if status == abi.CONSTANTS["kStatusAnchor"]:
            rows = control[abi.CONSTANTS["kControlBadRows"]]
            row = bad_anchors.index(True) if any(bad_anchors) else (rows & -rows).bit_length() - 1
            raise AnchorOutOfRange(row, self.shape.target_vocab_size)
        self.workspace.clear()
        torch.cuda.synchronize(self.device)  # the next call may be on another stream
        first = abi.CONSTANTS["kControlMissing"]
        bits = control[first : first + abi.CONSTANTS["kMissingWords"]]
        together = blocks_of_unit(self.spec.wide)
        units = [lane + 32 * word for word, mask in enumerate(bits) for lane in range(32) if (mask >> lane) & 1]
        expected = self._params.expected_blocks
        missing = tuple(block for unit in units for block in range(unit * together, (unit + 1) * together) if block < expected)
        raise WalkStalled(control[abi.CONSTANTS["kControlDetail"]], missing)


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _cuda_device(device: torch.device | str | None) -> torch.device:
    if not torch.cuda.is_available():
        raise LaunchRefused("no CUDA device is visible to torch; predictions and recorded runs need none, a walk does")
    chosen = torch.device("cuda" if device is None else device)
    if chosen.type != "cuda":
        raise ValueError(f"device is {chosen}; a walk runs on a CUDA device")
    return torch.device("cuda", torch.cuda.current_device() if chosen.index is None else chosen.index)
