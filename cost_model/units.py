"""Units: the only place that scales a quantity or turns one into text.

Names carry their unit as a suffix: `_us` microseconds, `_ns` nanoseconds, `_bytes`, `_bytes_per_s`, `_mhz`, `_ops_per_s`,
`_flops_per_s`. Storage sizes are printed in powers of 1,024 (KiB, MiB, GiB), rates in powers of 1,000 (GB/s, TB/s), as
the makers of GPUs do. What is unknown (`None` or NaN) is printed as `n/a`, never as a number.
"""

from __future__ import annotations

import math

BYTES_PER_KIB = 1024
BYTES_PER_MIB = 1024**2
BYTES_PER_GIB = 1024**3
BYTES_PER_GB = 1000**3
US_PER_S = 1e6
US_PER_MS = 1e3
NS_PER_US = 1e3

UNKNOWN = "n/a"
"""How an unknown number is printed."""

_SIGNIFICANT_DIGITS = 3


def us_from_transfer(bytes_: float, bytes_per_s: float) -> float:
    """Return the time in microseconds to move `bytes_` at a rate: bytes / (bytes/s) * 1e6. The rate must be above 0."""
    _require_positive("bytes_per_s", bytes_per_s)
    return bytes_ / bytes_per_s * US_PER_S


def us_from_operations(operations: float, operations_per_s: float) -> float:
    """Return the time in microseconds to do `operations` at a rate above 0."""
    _require_positive("operations_per_s", operations_per_s)
    return operations / operations_per_s * US_PER_S


def us_from_cycles(cycles: float, clock_mhz: float) -> float:
    """Return the time in microseconds of clock cycles: a clock of 1 MHz makes one cycle a microsecond."""
    _require_positive("clock_mhz", clock_mhz)
    return cycles / clock_mhz


def us_from_ns(ns: float) -> float:
    """Return microseconds for nanoseconds."""
    return ns / NS_PER_US


def s_from_us(us: float) -> float:
    """Return seconds."""
    return us * 1e-6


def ms_from_us(us: float) -> float:
    """Return milliseconds."""
    return us * 1e-3


def bytes_per_s_from_transfer(bytes_: float, us: float) -> float:
    """Return the rate in bytes per second of `bytes_` moved in `us` microseconds, which must be above 0."""
    _require_positive("us", us)
    return bytes_ / us * US_PER_S


def operations_per_s_from_time(operations: float, us: float) -> float:
    """Return the rate per second of `operations` done in `us` microseconds, which must be above 0."""
    _require_positive("us", us)
    return operations / us * US_PER_S


def format_us(us: float | None) -> str:
    """Format a time: nanoseconds below 0.1 us, milliseconds from 10,000 us, three significant digits."""
    if _unknown(us):
        return UNKNOWN
    size = abs(us)
    if 0 < size < 0.1:
        return f"{_digits(us * NS_PER_US)} ns"
    if size >= 10 * US_PER_MS:
        return f"{_digits(us / US_PER_MS)} ms"
    return f"{_digits(us)} µs"


def format_interval_us(low: float | None, high: float | None) -> str:
    """Format an interval of times in microseconds as `low to high µs`."""
    if _unknown(low) or _unknown(high):
        return UNKNOWN
    return f"{_digits(low)} to {_digits(high)} µs"


def format_bytes(bytes_: float | None) -> str:
    """Format a storage size in B, KiB, MiB or GiB."""
    if _unknown(bytes_):
        return UNKNOWN
    for scale, name in ((BYTES_PER_GIB, "GiB"), (BYTES_PER_MIB, "MiB"), (BYTES_PER_KIB, "KiB")):
        if abs(bytes_) >= scale:
            return f"{_digits(bytes_ / scale)} {name}"
    return f"{_digits(bytes_)} B"


def format_bandwidth(bytes_per_s: float | None) -> str:
    """Format a rate of bytes in MB/s, GB/s or TB/s (powers of 1,000)."""
    return _scaled(bytes_per_s, "B/s")


def format_rate(operations_per_s: float | None) -> str:
    """Format a rate of operations in Mop/s, Gop/s or Top/s (powers of 1,000)."""
    return _scaled(operations_per_s, "op/s")


def format_percent(share: float | None) -> str:
    """Format a share (1.0 is the whole) as a percentage."""
    return UNKNOWN if _unknown(share) else f"{_digits(share * 100)} %"


def format_ratio(ratio: float | None) -> str:
    """Format a ratio as `9.10×`."""
    return UNKNOWN if _unknown(ratio) else f"{_digits(ratio)}×"


def format_count(count: float | None) -> str:
    """Format a whole number with thousands separated by commas."""
    return UNKNOWN if _unknown(count) else f"{round(count):,}"


def _scaled(value: float | None, unit: str) -> str:
    """Format a rate with the largest prefix that leaves at least 1 before the point."""
    if _unknown(value):
        return UNKNOWN
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= scale:
            return f"{_digits(value / scale)} {prefix}{unit}"
    return f"{_digits(value)} {unit}"


def _digits(value: float) -> str:
    """Write a number with three significant digits, never in exponent form, whole numbers above 999 in full."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    exponent = math.floor(math.log10(abs(float(f"{value:.{_SIGNIFICANT_DIGITS - 1}e}"))))
    return f"{value:,.{max(0, _SIGNIFICANT_DIGITS - 1 - exponent)}f}"


def _unknown(value: float | None) -> bool:
    """Tell whether a value stands for something not known: None, NaN or a missing value of a data frame."""
    return value is None or type(value).__name__ == "NAType" or value != value


def _require_positive(name: str, value: float) -> None:
    """Raise ValueError unless the value, or every element of an array, is above 0."""
    above = value > 0
    if not (above if isinstance(above, bool) else above.all()):
        raise ValueError(f"{name} must be above 0, got {value!r}")
