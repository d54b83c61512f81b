"""What the driver says of one GPU through NVML, each field guarded on its own.

NVML refuses single fields on some devices (virtual GPUs, MIG shares), and the whole library may be missing. Every method
here then answers ``None``; nothing raises. The library is looked up when a device is opened, never at import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

CLOCK_REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits of NVML's clock event reasons, by NVML's own names (``nvmlClocksEventReason*``)."""

THROTTLING = frozenset(CLOCK_REASONS.values()) - {"gpu_idle", "applications_clocks_setting", "display_clock_setting"}
"""Reasons under which a timed sample is dropped: the GPU ran slower than it was set to."""

_SM_CLOCK = 1  # NVML_CLOCK_SM


@dataclass(frozen=True)
class ClockReading:
    """One look at the clocks.

    Attributes:
        sm_clock_mhz: clock of the multiprocessors; ``None`` where the driver does not tell.
        reasons: why the clock is lower than it could be, empty where nothing lowers it; ``None`` where not told.
    """

    sm_clock_mhz: float | None = None
    reasons: tuple[str, ...] | None = None

    @property
    def throttled(self) -> bool:
        """Whether a reason of ``THROTTLING`` is present; not told counts as no."""
        return any(reason in THROTTLING for reason in self.reasons or ())


def reasons_from_bits(bits: int) -> tuple[str, ...]:
    """Names of the bits that are set, lowest bit first; a bit without a name reads as its hexadecimal value."""
    return tuple(CLOCK_REASONS.get(1 << place, hex(1 << place)) for place in range(bits.bit_length()) if bits >> place & 1)


class NvmlDevice:
    """One GPU seen through NVML.

    Args:
        library: the ``pynvml`` module, or anything with its functions.
        handle: NVML's handle of the device, or ``None``: then every field is ``None``.
    """

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def open(cls, uuid: str | None = None, index: int = 0, library: Any = None) -> NvmlDevice:
        """Open a device by its UUID, else by its index; the result answers ``None`` to everything if that fails."""
        try:
            if library is None:
                import pynvml as library
            library.nvmlInit()
        except Exception:  # noqa: BLE001 - a missing library or driver is an answer, not a fault
            return cls(library, None)
        handle = None
        if uuid is not None:
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            handle = _guarded(lambda: library.nvmlDeviceGetHandleByUUID(name))
            if handle is None:
                handle = _guarded(lambda: library.nvmlDeviceGetHandleByUUID(name.encode()))
        if handle is None:
            handle = _guarded(lambda: library.nvmlDeviceGetHandleByIndex(index))
        return cls(library, handle)

    @property
    def found(self) -> bool:
        """Whether NVML knows the device at all."""
        return self._handle is not None

    def clocks(self) -> ClockReading:
        """The clock of the multiprocessors and the reasons that lower it, each ``None`` on its own."""
        clock = self._ask("nvmlDeviceGetClockInfo", _SM_CLOCK)
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # the name before driver 535
            bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return ClockReading(None if clock is None else float(clock), None if bits is None else reasons_from_bits(int(bits)))

    def driver_version(self) -> str | None:
        """Version of the driver."""
        version = None if self._library is None else _guarded(lambda: self._library.nvmlSystemGetDriverVersion())
        return version.decode() if isinstance(version, bytes) else version

    def cuda_release(self) -> str | None:
        """Newest CUDA release that the driver supports, such as ``13.0``."""
        number = None if self._library is None else _guarded(lambda: self._library.nvmlSystemGetCudaDriverVersion())
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def memory_bytes(self) -> int | None:
        """Memory of the device in bytes."""
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        return None if memory is None else int(memory.total)

    def mig_enabled(self) -> bool | None:
        """Whether the device is partitioned (MIG)."""
        mode = self._ask("nvmlDeviceGetMigMode")
        return None if mode is None else bool(mode[0])

    def mps_processes(self) -> int | None:
        """Processes on the device that run under MPS."""
        processes = self._ask("nvmlDeviceGetMPSComputeRunningProcesses")
        return None if processes is None else len(processes)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call one NVML function on the handle; ``None`` where it is missing or refuses."""
        if self._handle is None:
            return None
        return _guarded(lambda: getattr(self._library, function)(self._handle, *arguments))


def _guarded(ask: Callable[[], Any]) -> Any:
    """The answer, or ``None`` where asking fails in any way."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - NVML raises one class an error code; none of them is a fault of ours
        return None
