// Probe: how long until every block knows the largest word of all blocks?
//
// What one round does, in each block and for each row (a row is one sequence of the batch):
//   publish  word = payload (52 bits) | epoch (12 bits) into every replica of the slots array
//   wait     until all words of the own replica (block % replicas) carry this round's epoch
//   agree    the maximum; the next round's payload depends on it, so rounds cannot overlap
//
// Buffers
//   slots  uint64[2][replicas][rows][stride]   written by all blocks (column = block), polled by all; the first axis is
//          epoch & 1. stride is the number of blocks rounded up to 32, so a row starts on a 256-byte boundary.
//          Two halves suffice: a block that publishes epoch e + 2 has seen every word of e + 1, whose writers had all
//          finished reading e.
//   agreed uint64[blocks][rows]   the last round's maximum, epoch bits cleared; the host recomputes and compares it
//   status uint32[1]              0, or 1 + the round in which some wait ran out of polls; every wait is bounded
//
// Resources: at most 8 warps and no shared memory for the warp kinds, one word of shared memory a warp for `threads`.
// The grid is launched cooperatively, so it is co-resident or refused.
//
// Ways to poll
//   kWarp16   one warp a row, 16-byte loads, two words a lane a load
//   kWarp8    one warp a row, 8-byte loads
//   kThreads  one thread a word, combined through shared memory (one row only)
// and REPOLL: after the first look, only words still missing are loaded again.
// The walk's own scheme is measured by walk_exchange.cu with the walk's own code; this file asks what else would do.
#include "probe.cuh"

namespace {

using wts_probe::kFullWarp;
using wts_probe::kWarpLanes;

constexpr uint32_t kEpochMask = 0xfffu;
constexpr int kMaxBlocks = 256;
constexpr int kMaxWarps = 8;
constexpr int kMaxRows = 32;

enum PollKind : int { kWarp16 = 0, kWarp8 = 1, kThreads = 2 };

struct Round {
  uint64_t* slots;
  uint64_t* agreed;
  uint32_t* status;
  int replicas;
  int rows;
  int stride;
  int rounds;
  uint32_t first_epoch;
  uint32_t poll_limit;
};

__device__ __forceinline__ uint64_t load_word(const uint64_t* address) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(address) : "memory");
  return word;
}

__device__ __forceinline__ void load_pair(const uint64_t* address, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(first), "=l"(second)
               : "l"(address)
               : "memory");
}

__device__ __forceinline__ void store_word(uint64_t* address, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}

__device__ __forceinline__ bool carries(uint64_t word, uint32_t epoch) {
  return (static_cast<uint32_t>(word) & kEpochMask) == epoch;
}

// One lane of the warp's polling: LOADS loads of WORDS words each, words interleaved so that a warp load is contiguous.
template <int WORDS, int LOADS, bool REPOLL>
__device__ __forceinline__ bool poll_row(const uint64_t* row, int blocks, uint32_t epoch, uint32_t limit,
                                         uint64_t& best) {
  const int lane = threadIdx.x % kWarpLanes;
  uint64_t word[LOADS][WORDS];
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
#pragma unroll
    for (int j = 0; j < WORDS; ++j) {
      const int column = (i * kWarpLanes + lane) * WORDS + j;
      word[i][j] = column < blocks ? static_cast<uint64_t>(epoch ^ 1u) : static_cast<uint64_t>(epoch);
    }
  }
  for (uint32_t polls = 0; polls < limit; ++polls) {
    bool complete = true;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int column = (i * kWarpLanes + lane) * WORDS;
      bool wanted = column < blocks;
      if (REPOLL) {
        bool here = true;
#pragma unroll
        for (int j = 0; j < WORDS; ++j) here = here && carries(word[i][j], epoch);
        wanted = !here;
      }
      if (wanted) {
        if (WORDS == 2) {
          load_pair(row + column, word[i][0], word[i][WORDS - 1]);
        } else {
          word[i][0] = load_word(row + column);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
#pragma unroll
      for (int j = 0; j < WORDS; ++j) {
        const int column = (i * kWarpLanes + lane) * WORDS + j;
        complete = complete && (column >= blocks || carries(word[i][j], epoch));
      }
    }
    if (__all_sync(kFullWarp, complete)) {
      best = 0;
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
#pragma unroll
        for (int j = 0; j < WORDS; ++j) {
          const int column = (i * kWarpLanes + lane) * WORDS + j;
          if (column < blocks && word[i][j] > best) best = word[i][j];
        }
      }
      best = wts_probe::warp_max_u64(best) & ~static_cast<uint64_t>(kEpochMask);
      return true;
    }
  }
  return false;
}

__device__ __forceinline__ uint64_t* row_of(const Round& round, uint32_t epoch, int replica, int row) {
  const size_t half = static_cast<size_t>(epoch & 1u) * round.replicas + replica;
  return round.slots + (half * round.rows + row) * round.stride;
}

// Warps share the rows of the block; a row stays with its warp, so no barrier is needed inside a block.
template <int WORDS, int LOADS, bool REPOLL>
__global__ void __launch_bounds__(kMaxWarps* kWarpLanes, 1) exchange_by_warps(Round round) {
  const int lane = threadIdx.x % kWarpLanes;
  const int warp = threadIdx.x / kWarpLanes;
  const int warps = blockDim.x / kWarpLanes;
  const int block = blockIdx.x;
  const int blocks = gridDim.x;
  const int own_replica = block % round.replicas;
  constexpr int kRowsAWarp = kMaxRows / kMaxWarps;
  uint64_t agreed[kRowsAWarp] = {};
  for (int step = 0; step < round.rounds; ++step) {
    const uint32_t epoch = (round.first_epoch + step) & kEpochMask;
#pragma unroll
    for (int i = 0; i < kRowsAWarp; ++i) {
      const int row = warp + i * warps;
      if (row >= round.rows) break;
      const uint64_t word = wts_probe::exchange_offer(agreed[i], block, row) | epoch;
      for (int replica = lane; replica < round.replicas; replica += kWarpLanes) {
        store_word(row_of(round, epoch, replica, row) + block, word);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAWarp; ++i) {
      const int row = warp + i * warps;
      if (row >= round.rows) break;
      const uint64_t* polled = row_of(round, epoch, own_replica, row);
      if (!poll_row<WORDS, LOADS, REPOLL>(polled, blocks, epoch, round.poll_limit, agreed[i])) {
        if (lane == 0) atomicMax(round.status, static_cast<uint32_t>(step) + 1u);
        return;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsAWarp; ++i) {
    const int row = warp + i * warps;
    if (lane == 0 && row < round.rows) round.agreed[static_cast<size_t>(block) * round.rows + row] = agreed[i];
  }
}

// One thread a word; the warps' maxima meet in shared memory, double-buffered so that one barrier a round suffices.
__global__ void __launch_bounds__(kMaxBlocks, 1) exchange_by_threads(Round round) {
  __shared__ uint64_t warp_best[2][kMaxBlocks / kWarpLanes];
  __shared__ int stalled;
  const int column = threadIdx.x;
  const int block = blockIdx.x;
  const int blocks = gridDim.x;
  const int warps = blockDim.x / kWarpLanes;
  const int own_replica = block % round.replicas;
  if (column == 0) stalled = 0;
  __syncthreads();
  uint64_t agreed = 0;
  for (int step = 0; step < round.rounds; ++step) {
    const uint32_t epoch = (round.first_epoch + step) & kEpochMask;
    if (column < round.replicas) store_word(row_of(round, epoch, column, 0) + block, wts_probe::exchange_offer(agreed, block, 0) | epoch);
    uint64_t word = 0;
    if (column < blocks) {
      const uint64_t* polled = row_of(round, epoch, own_replica, 0) + column;
      uint32_t polls = 0;
      do {
        word = load_word(polled);
      } while (!carries(word, epoch) && ++polls < round.poll_limit);
      if (!carries(word, epoch)) {
        stalled = 1;
        atomicMax(round.status, static_cast<uint32_t>(step) + 1u);
      }
    }
    word = wts_probe::warp_max_u64(word);
    if (column % kWarpLanes == 0) warp_best[step & 1][column / kWarpLanes] = word;
    __syncthreads();
    if (stalled) return;
    for (int i = 0; i < warps; ++i) word = max(word, warp_best[step & 1][i]);
    agreed = word & ~static_cast<uint64_t>(kEpochMask);
  }
  if (column == 0) round.agreed[block] = agreed;
}

template <bool REPOLL>
const void* pair_kernel(int loads) {
  switch (loads) {
    case 1: return reinterpret_cast<const void*>(&exchange_by_warps<2, 1, REPOLL>);
    case 2: return reinterpret_cast<const void*>(&exchange_by_warps<2, 2, REPOLL>);
    case 3: return reinterpret_cast<const void*>(&exchange_by_warps<2, 3, REPOLL>);
    case 4: return reinterpret_cast<const void*>(&exchange_by_warps<2, 4, REPOLL>);
    default: return nullptr;
  }
}

template <bool REPOLL>
const void* word_kernel(int loads) {
  switch ((loads + 1) / 2) {
    case 1: return reinterpret_cast<const void*>(&exchange_by_warps<1, 2, REPOLL>);
    case 2: return reinterpret_cast<const void*>(&exchange_by_warps<1, 4, REPOLL>);
    case 3: return reinterpret_cast<const void*>(&exchange_by_warps<1, 6, REPOLL>);
    case 4: return reinterpret_cast<const void*>(&exchange_by_warps<1, 8, REPOLL>);
    default: return nullptr;
  }
}

}  // namespace

// Bytes that `slots` must have, zeroed once before the first launch; 0 where the arguments are out of range.
WTS_PROBE_API size_t wts_probe_exchange_slots_bytes(int blocks, int replicas, int rows) {
  if (blocks < 1 || blocks > kMaxBlocks || replicas < 1 || rows < 1 || rows > kMaxRows) return 0;
  const size_t stride = (static_cast<size_t>(blocks) + kWarpLanes - 1) / kWarpLanes * kWarpLanes;
  return 2 * sizeof(uint64_t) * replicas * rows * stride;
}

// first_epoch continues where the last launch on the same slots ended (modulo 4,096), and is 1 after zeroing them.
WTS_PROBE_API int wts_probe_exchange(uint64_t* slots, uint64_t* agreed, uint32_t* status, int blocks, int replicas,
                                     int rows, int rounds, uint32_t first_epoch, uint32_t poll_limit, int poll_kind,
                                     int repoll_missing_only, cudaStream_t stream) {
  if (wts_probe_exchange_slots_bytes(blocks, replicas, rows) == 0) return cudaErrorInvalidValue;
  if (poll_kind == kThreads && (rows != 1 || repoll_missing_only)) return cudaErrorInvalidValue;
  const int padded = (blocks + kWarpLanes - 1) / kWarpLanes * kWarpLanes;
  if (poll_kind == kThreads && replicas > padded) return cudaErrorInvalidValue;
  Round round{slots, agreed, status, replicas, rows, padded, rounds, first_epoch, poll_limit};
  const void* kernel = nullptr;
  int threads = (rows < kMaxWarps ? rows : kMaxWarps) * kWarpLanes;
  if (poll_kind == kWarp16) {
    const int loads = (blocks + 2 * kWarpLanes - 1) / (2 * kWarpLanes);
    kernel = repoll_missing_only ? pair_kernel<true>(loads) : pair_kernel<false>(loads);
  } else if (poll_kind == kWarp8) {
    const int loads = padded / kWarpLanes;
    kernel = repoll_missing_only ? word_kernel<true>(loads) : word_kernel<false>(loads);
  } else if (poll_kind == kThreads) {
    kernel = reinterpret_cast<const void*>(&exchange_by_threads);
    threads = padded;
  }
  if (kernel == nullptr) return cudaErrorInvalidValue;
  void* arguments[] = {&round};
  return cudaLaunchCooperativeKernel(kernel, dim3(blocks), dim3(threads), arguments, 0, stream);
}
