// Probe: the walk's own exchange (csrc/walk/exchange.cuh), alone: one warp a block, one word a block, round after round.
//
// Each round's word depends on the round before, so rounds cannot overlap. Buffers: slots as exchange.cuh lays them out,
// zeroed once; agreed uint64[blocks], the last maximum without its epoch bits; status uint32[1], 0 or 1 + the round that
// stalled. The grid is launched cooperatively.
#include "../walk/exchange.cuh"
#include "probe.cuh"

namespace {

template <int Replicas>
__global__ void __launch_bounds__(wts_probe::kWarpLanes, 1)
    walk_exchange_kernel(uint64_t* slots, uint64_t* agreed, uint32_t* status, int rounds, uint32_t first_epoch,
                         uint32_t max_polls) {
  const int lane = threadIdx.x;
  uint64_t best = 0;
  for (int step = 0; step < rounds; ++step) {
    const uint32_t epoch = (first_epoch + step) & wts::kEpochMask;
    const uint64_t word = wts_probe::exchange_offer(best, blockIdx.x, 0) | epoch;
    wts::exchange_publish<Replicas>(slots, word, lane);
    const wts::ExchangeResult result = wts::exchange_wait<Replicas>(slots, epoch, gridDim.x, lane, max_polls);
    if (__any_sync(wts_probe::kFullWarp, result.pending != 0)) {
      if (lane == 0) atomicMax(status, static_cast<uint32_t>(step) + 1u);
      return;
    }
    best = result.word & ~static_cast<uint64_t>(wts::kEpochMask);
  }
  if (lane == 0) agreed[blockIdx.x] = best;
}

const void* kernel_of(int replicas) {
  switch (replicas) {
    case 1: return reinterpret_cast<const void*>(&walk_exchange_kernel<1>);
    case 2: return reinterpret_cast<const void*>(&walk_exchange_kernel<2>);
    case 4: return reinterpret_cast<const void*>(&walk_exchange_kernel<4>);
    case 8: return reinterpret_cast<const void*>(&walk_exchange_kernel<8>);
    case 16: return reinterpret_cast<const void*>(&walk_exchange_kernel<16>);
    case 33: return reinterpret_cast<const void*>(&walk_exchange_kernel<33>);
    default: return nullptr;
  }
}

}  // namespace

// Bytes that `slots` must have, zeroed once before the first launch; 0 where the arguments are out of range.
WTS_PROBE_API size_t wts_probe_walk_exchange_slots_bytes(int blocks, int replicas) {
  if (blocks < 1 || blocks > static_cast<int>(wts::kSlotCapacity) || kernel_of(replicas) == nullptr) return 0;
  return 2 * sizeof(uint64_t) * replicas * wts::kSlotCapacity;
}

// first_epoch continues where the last launch on the same slots ended (modulo 4,096), and is 1 after zeroing them.
WTS_PROBE_API int wts_probe_walk_exchange(uint64_t* slots, uint64_t* agreed, uint32_t* status, int blocks,
                                          int replicas, int rounds, uint32_t first_epoch, uint32_t max_polls,
                                          cudaStream_t stream) {
  if (wts_probe_walk_exchange_slots_bytes(blocks, replicas) == 0) return cudaErrorInvalidValue;
  void* arguments[] = {&slots, &agreed, &status, &rounds, &first_epoch, &max_polls};
  return cudaLaunchCooperativeKernel(kernel_of(replicas), dim3(blocks), dim3(wts_probe::kWarpLanes), arguments, 0,
                                     stream);
}
