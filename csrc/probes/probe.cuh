// Shared ground of the probes: the calling convention and the few device helpers that more than one probe uses.
//
// Convention. Every launcher is extern "C", takes raw device pointers and a cudaStream_t, enqueues exactly one kernel,
// never synchronises, and returns the cudaError_t of the launch as an int (0: enqueued). Arguments that the probe cannot
// serve return cudaErrorInvalidValue before anything is enqueued. Callers time two launches that differ only in their
// repeat count and divide the difference by the difference of the counts, so that launch and set-up drop out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

#define WTS_PROBE_API extern "C" __attribute__((visibility("default")))

namespace wts_probe {

constexpr int kBytesPerLoad = 16;

// Raises the dynamic shared-memory limit of `kernel` where it needs more than the default 48 KiB a block.
template <typename Kernel>
inline cudaError_t allow_shared_bytes(Kernel kernel, int shared_bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

// Keeps `value` alive without a store that would be timed: writes only on a pattern the probes never produce by design.
__device__ __forceinline__ void keep(uint32_t value, uint32_t* sink) {
  if (value == 0x9e3779b9u) *sink = value;
}

}  // namespace wts_probe
