// Probes: read bandwidth of the whole chip (L2 and HBM), and of one multiprocessor's shared memory.
//
// Counting: a byte is counted once for each pass over it. Nothing is written in the timed part.
//
// Chip. A persistent grid, one block a multiprocessor, each block on its own contiguous shard, as a streaming walk reads
// W2: pass after pass inside one kernel, past the L1 cache. Footprint = all shards. A footprint that L2 holds is
// delivered by L2 from the second pass on; a larger one comes from HBM, wholly or in part.
//   load      kReadInFlight independent 16-byte ld.global.cg a thread
//   cp_async  cp.async.cg into a ring of kRingStages x kRingLoads x threads x 16 bytes of shared memory, read back by the
//             thread that copied it (no barrier)
//
// Shared memory. Every thread reads 16 bytes at stride threads x 16 over `bytes`, conflict-free; rates are a
// multiprocessor's.
#include "probe.cuh"

namespace {

using wts_probe::kBytesPerLoad;

constexpr int kReadInFlight = 8;
constexpr int kRingStages = 8;
constexpr int kRingLoads = 2;
constexpr int kMaxThreads = 1024;

__device__ __forceinline__ uint4 load_past_l1(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint32_t fold(const uint4& value) { return value.x ^ value.y ^ value.z ^ value.w; }

struct Shard {
  const uint4* first;
  size_t loads;
};

// Block b owns loads [b * total / blocks, (b + 1) * total / blocks): together the whole footprint, each load once.
__device__ __forceinline__ Shard own_shard(const uint4* data, size_t bytes) {
  const size_t total = bytes / kBytesPerLoad;
  const size_t from = total * blockIdx.x / gridDim.x;
  const size_t to = total * (blockIdx.x + 1) / gridDim.x;
  return Shard{data + from, to - from};
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    read_by_loads(const uint4* __restrict__ data, size_t bytes, int passes, uint32_t* sink) {
  const Shard shard = own_shard(data, bytes);
  uint32_t folded = 0;
  const size_t threads = blockDim.x;
  for (int pass = 0; pass < passes; ++pass) {
    size_t at = threadIdx.x;
    for (; at + (kReadInFlight - 1) * threads < shard.loads; at += kReadInFlight * threads) {
      uint4 value[kReadInFlight];
#pragma unroll
      for (int i = 0; i < kReadInFlight; ++i) value[i] = load_past_l1(shard.first + at + i * threads);
#pragma unroll
      for (int i = 0; i < kReadInFlight; ++i) folded ^= fold(value[i]);
    }
    for (; at < shard.loads; at += threads) folded ^= fold(load_past_l1(shard.first + at));
  }
  wts_probe::keep(folded, sink);
}

__device__ __forceinline__ void copy_async(uint32_t to, const uint4* from, bool inside) {
  // A source size of 0 writes zeros and reads nothing: the tail needs no branch.
  const int source_bytes = inside ? kBytesPerLoad : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(source_bytes) : "memory");
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    read_by_cp_async(const uint4* __restrict__ data, size_t bytes, int passes, uint32_t* sink) {
  extern __shared__ uint4 ring[];
  const Shard shard = own_shard(data, bytes);
  const uint32_t threads = blockDim.x;
  const uint32_t ring_base = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const uint32_t stages = static_cast<uint32_t>((shard.loads + kRingLoads * threads - 1) / (kRingLoads * threads));
  const uint32_t total = stages * static_cast<uint32_t>(passes);
  auto slot = [&](uint32_t stage, int i) {
    return ring_base + (((stage % kRingStages) * kRingLoads + i) * threads + threadIdx.x) * kBytesPerLoad;
  };
  auto fetch = [&](uint32_t stage, uint32_t within) {
    if (stage < total) {
#pragma unroll
      for (int i = 0; i < kRingLoads; ++i) {
        const size_t at = (static_cast<size_t>(within) * kRingLoads + i) * threads + threadIdx.x;
        const bool inside = at < shard.loads;
        copy_async(slot(stage, i), shard.first + (inside ? at : 0), inside);
      }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  uint32_t within = 0;
  auto advance = [&]() { within = within + 1 == stages ? 0 : within + 1; };
  for (uint32_t stage = 0; stage + 1 < kRingStages; ++stage) {
    fetch(stage, within);
    advance();
  }
  uint32_t folded = 0;
  for (uint32_t stage = 0; stage < total; ++stage) {
    fetch(stage + kRingStages - 1, within);
    advance();
    asm volatile("cp.async.wait_group %0;" ::"n"(kRingStages - 1) : "memory");
#pragma unroll
    for (int i = 0; i < kRingLoads; ++i) folded ^= fold(load_shared(slot(stage, i)));
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  wts_probe::keep(folded, sink);
}

__global__ void __launch_bounds__(kMaxThreads, 1) read_shared(int loads, int passes, uint32_t* sink) {
  extern __shared__ uint4 words[];
  const uint32_t base = static_cast<uint32_t>(__cvta_generic_to_shared(words));
  for (int i = threadIdx.x; i < loads; i += blockDim.x) words[i] = make_uint4(i, i + 1, i + 2, i + 3);
  __syncthreads();
  uint32_t folded = 0;
  for (int pass = 0; pass < passes; ++pass) {
#pragma unroll 8
    for (int i = threadIdx.x; i < loads; i += blockDim.x) folded ^= fold(load_shared(base + i * kBytesPerLoad));
  }
  wts_probe::keep(folded, sink);
}

}  // namespace

// kind 0: loads, 1: cp.async. `bytes` (the footprint) is a multiple of 16; `threads` a multiple of 32 up to 1,024.
WTS_PROBE_API int wts_probe_read(const void* data, size_t bytes, int passes, int kind, int blocks, int threads,
                                 uint32_t* sink, cudaStream_t stream) {
  if (bytes % kBytesPerLoad || passes < 1 || blocks < 1 || threads < 32 || threads > kMaxThreads || threads % 32) {
    return cudaErrorInvalidValue;
  }
  const uint4* first = static_cast<const uint4*>(data);
  if (kind == 0) {
    read_by_loads<<<blocks, threads, 0, stream>>>(first, bytes, passes, sink);
  } else if (kind == 1) {
    const int ring_bytes = kRingStages * kRingLoads * threads * kBytesPerLoad;
    const cudaError_t error = wts_probe::allow_shared_bytes(read_by_cp_async, ring_bytes);
    if (error != cudaSuccess) return error;
    read_by_cp_async<<<blocks, threads, ring_bytes, stream>>>(first, bytes, passes, sink);
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

// `bytes` of shared memory a block, a multiple of 16, up to what the device lets a block opt in to.
WTS_PROBE_API int wts_probe_shared_read(int bytes, int passes, int blocks, int threads, uint32_t* sink,
                                        cudaStream_t stream) {
  if (bytes < kBytesPerLoad || bytes % kBytesPerLoad || passes < 1 || threads < 32 || threads > kMaxThreads) {
    return cudaErrorInvalidValue;
  }
  const cudaError_t error = wts_probe::allow_shared_bytes(read_shared, bytes);
  if (error != cudaSuccess) return error;
  read_shared<<<blocks, threads, bytes, stream>>>(bytes / kBytesPerLoad, passes, sink);
  return cudaGetLastError();
}
