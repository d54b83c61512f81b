"""The probes' shared library through ctypes, and the device that the probes run on.

``csrc/probes`` has the launchers: raw addresses and a stream in, a CUDA error code out. :data:`SIGNATURES` is the only Python
description of them; a launcher that is called with other arguments than these fails here and not on the device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from wts_lab.abi import WalkSpec

EXCHANGE_WARPS = 8
"""Warps of that walk, which share the batch rows."""

_POINTER, _INT, _SIZE, _WORD = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_uint32

SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    # slots, unit_stride, agreed, status, blocks, rows, wide, rounds, first_epoch, max_polls, stream
    "walk_exchange": (_INT, (_POINTER, _INT, _POINTER, _POINTER, _INT, _INT, _INT, _INT, _WORD, _WORD, _POINTER)),
    # ring, cursor, hops, stream
    "chase": (_INT, (_POINTER, _POINTER, _INT, _POINTER)),
    # data, bytes, passes, kind, blocks, threads, sink, stream
    "read": (_INT, (_POINTER, _SIZE, _INT, _INT, _INT, _INT, _POINTER, _POINTER)),
    # bytes, passes, blocks, threads, sink, stream
    "shared_read": (_INT, (_INT, _INT, _INT, _INT, _POINTER, _POINTER)),
    # kind, repeats, blocks, warps, sink, stream
    "products": (_INT, (_INT, _INT, _INT, _INT, _POINTER, _POINTER)),
    "products_accumulators": (_INT, ()),
    # blocks, threads, shared_bytes, cooperative, stream
    "empty": (_INT, (_INT, _INT, _INT, _INT, _POINTER)),
    "error_string": (ctypes.c_char_p, (_INT,)),
}
"""Result and argument types of every exported function, without the prefix ``wts_probe_``."""

QUERIES = frozenset({"products_accumulators", "error_string"})
"""Functions that answer something; all others launch a kernel and return an error code."""


class ProbeError(RuntimeError):
    """A probe cannot be run here, or gave a wrong result; the message says which and why."""


class ProbeLibrary:
    """``libwts_probes`` with its functions by name.

    Args:
        path: the shared library that ``build.build_probes`` made.

    Raises:
        ProbeError: the file does not load or lacks a function.
    """

    def __init__(self, path: Any) -> None:
        try:
            library = ctypes.CDLL(str(path))
            self._functions = {name: getattr(library, f"wts_probe_{name}") for name in SIGNATURES}
        except (OSError, AttributeError) as error:
            raise ProbeError(f"the probe library {path} cannot be used: {error}") from error
        for name, (result, arguments) in SIGNATURES.items():
            self._functions[name].restype, self._functions[name].argtypes = result, arguments

    def ask(self, name: str, *arguments: Any) -> Any:
        """Call a query."""
        return self._functions[name](*arguments)

    def launch(self, name: str, *arguments: Any) -> None:
        """Enqueue a kernel; the last argument is the stream. ProbeError with CUDA's words where it is refused."""
        error = self._functions[name](*arguments)
        if error:
            said = self._functions["error_string"](error)
            raise ProbeError(f"launching {name} failed with CUDA error {error}: {said.decode() if said else 'unknown'}")


class ProbeDevice:
    """The current CUDA device as the probes need it: memory, stream, graphs and a few facts.

    Attributes:
        sm_count: multiprocessors.
        shared_bytes: shared memory that a block may opt in to.
    """

    def __init__(self, device: int = 0) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", device)
        facts = torch.cuda.get_device_properties(self._device)
        self.sm_count = facts.multi_processor_count
        self.shared_bytes = getattr(facts, "shared_memory_per_block_optin", 48 * 1024)
        self.arch = f"sm_{facts.major}{facts.minor}"

    def stream(self) -> int:
        """Handle of the current stream."""
        return self._torch.cuda.current_stream(self._device).cuda_stream

    def zeros(self, bytes_: int) -> Any:
        """A zeroed uint8 buffer."""
        return self._torch.zeros(bytes_, dtype=self._torch.uint8, device=self._device)

    def random(self, bytes_: int) -> Any:
        """A uint8 buffer of random bytes: real data, since zeros can read faster."""
        return self._torch.randint(0, 256, (bytes_,), dtype=self._torch.uint8, device=self._device)

    def ring(self, lines: int) -> Any:
        """See :func:`random_ring`."""
        return random_ring(lines, self._device)

    def workspace(self, rows: int, wide: bool, blocks: int, exchange: str) -> Any:
        """Words of a grid, zeroed: :class:`wts_lab.workspace.Workspace`."""
        from wts_lab.workspace import Workspace

        return Workspace.make(exchange_spec(rows, wide), blocks, exchange, self._device)

    def capture(self, launch: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph of what ``launch`` enqueues; returns its replay."""
        from wts_lab.bench_gpu import capture_graph

        return capture_graph(launch)


def exchange_spec(rows: int, wide: bool) -> WalkSpec:
    """The walk whose words `csrc/probes/offers.cuh` exchanges: nothing of it but rows and words matters."""
    return WalkSpec(EXCHANGE_WARPS, 1, 0, 0, 0, rows, rank=32, precision="int8x2", wide=wide)


def random_ring(lines: int, device: Any) -> Any:
    """int32 ``[lines, 32]``: the first word of a line is the index, in words, of the next line's first word.

    The lines form one cycle in random order, so that a chase visits all of them before it comes back.
    """
    import torch

    order = torch.randperm(lines, device=device)
    ring = torch.zeros((lines, 32), dtype=torch.int32, device=device)
    ring[order, 0] = (order.roll(-1) * 32).to(torch.int32)
    return ring
