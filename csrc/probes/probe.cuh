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

constexpr int kWarpLanes = 32;
constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kBytesPerLoad = 16;

// Raises the dynamic shared-memory limit of `kernel` where it needs more than the default 48 KiB a block.
template <typename Kernel>
inline cudaError_t allow_shared_bytes(Kernel kernel, int shared_bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
}

// Largest 64-bit word held by any lane of a full warp, returned to all of them.
__device__ __forceinline__ uint64_t warp_max_u64(uint64_t word) {
  const uint32_t high = static_cast<uint32_t>(word >> 32);
  const uint32_t low = static_cast<uint32_t>(word);
  const uint32_t best_high = __reduce_max_sync(kFullWarp, high);
  const uint32_t best_low = __reduce_max_sync(kFullWarp, high == best_high ? low : 0u);
  return (static_cast<uint64_t>(best_high) << 32) | best_low;
}

// The payload that a block offers in a round of an exchange: a fixed mixture of the block, the row and what was agreed
// before, its low 12 bits free for the epoch. wts_lab/probes.py computes the same and compares what was agreed.
__device__ __forceinline__ uint64_t exchange_offer(uint64_t agreed, int block, int row) {
  const uint64_t mixed = agreed + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(block + 1) +
                         0xd1b54a32d192ed03ull * static_cast<uint64_t>(row + 1);
  return (mixed * 0xbf58476d1ce4e5b9ull) & ~0xfffull;
}

// Keeps `value` alive without a store that would be timed: writes only on a pattern the probes never produce by design.
__device__ __forceinline__ void keep(uint32_t value, uint32_t* sink) {
  if (value == 0x9e3779b9u) *sink = value;
}

}  // namespace wts_probe
