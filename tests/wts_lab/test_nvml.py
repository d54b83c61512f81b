"""Each NVML field fails alone. The library is replaced by small stand-ins that refuse as drivers do."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from wts_lab.nvml import CLOCK_REASONS, THROTTLING, ClockReading, NvmlDevice, reasons_from_bits


class NotSupported(Exception):
    pass


def refuse(*_):
    raise NotSupported


def library(**functions):
    base = {
        "nvmlInit": lambda: None, "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
        "nvmlDeviceGetHandleByUUID": lambda uuid: f"handle of {uuid}", "nvmlDeviceGetClockInfo": lambda handle, kind: 1980,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: 0x4 | 0x20, "nvmlSystemGetDriverVersion": lambda: b"580.1",
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=7), "nvmlDeviceGetMigMode": lambda handle: [1, 1],
        "nvmlDeviceGetMPSComputeRunningProcesses": lambda handle: ["a", "b"], "nvmlSystemGetCudaDriverVersion": lambda: 12080,
    }
    return SimpleNamespace(**{**base, **functions})


def test_every_field_of_a_willing_driver():
    device = NvmlDevice.open(uuid="1234", library=library())
    assert device.clocks() == ClockReading(1980.0, ("sw_power_cap", "sw_thermal_slowdown"))
    assert device.clocks().throttled
    assert (device.driver_version(), device.memory_bytes(), device.mig_enabled(), device.mps_processes()) == ("580.1", 7, True, 2)
    assert device.cuda_release() == "12.8"


def test_a_field_that_is_refused_leaves_the_others():
    device = NvmlDevice.open(library=library(nvmlDeviceGetClockInfo=refuse, nvmlDeviceGetMigMode=refuse))
    assert device.clocks() == ClockReading(None, ("sw_power_cap", "sw_thermal_slowdown"))
    assert device.mig_enabled() is None
    assert device.memory_bytes() == 7


def test_the_old_name_of_the_reasons_is_asked_where_the_new_one_is_missing():
    old = library(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: 0x1)
    del old.nvmlDeviceGetCurrentClocksEventReasons
    reading = NvmlDevice.open(library=old).clocks()
    assert reading.reasons == ("gpu_idle",)
    assert not reading.throttled


def test_the_device_is_found_by_uuid_before_index_so_that_hidden_devices_do_not_shift_it():
    asked = []
    device = NvmlDevice.open(uuid="GPU-1", index=3, library=library(nvmlDeviceGetClockInfo=lambda handle, kind: asked.append(handle) or 1))
    device.clocks()
    assert asked == ["handle of GPU-1"]


def test_without_driver_everything_is_unknown_and_nothing_raises():
    device = NvmlDevice.open(library=library(nvmlInit=refuse))
    assert not device.found
    assert device.clocks() == ClockReading(None, None)
    assert not device.clocks().throttled
    assert (device.memory_bytes(), device.mig_enabled(), device.mps_processes()) == (None, None, None)
    assert NvmlDevice.open(library=library(nvmlSystemGetCudaDriverVersion=refuse)).cuda_release() is None


@given(st.sets(st.sampled_from(sorted(CLOCK_REASONS))))
def test_reasons_name_exactly_the_bits_that_are_set(bits):
    assert reasons_from_bits(sum(bits)) == tuple(CLOCK_REASONS[bit] for bit in sorted(bits))


def test_an_unknown_bit_is_shown_not_hidden():
    assert reasons_from_bits(0x1000) == ("0x1000",)


def test_settings_of_the_user_do_not_count_as_throttling():
    assert {"gpu_idle", "applications_clocks_setting", "display_clock_setting"}.isdisjoint(THROTTLING)
    assert "hw_thermal_slowdown" in THROTTLING
