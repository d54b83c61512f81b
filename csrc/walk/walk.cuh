// The persistent walk: one cooperative launch, one block a multiprocessor, all steps of one draft block.
//
//   who writes            what                                        who reads
//   host, once            matrix [tiles, k_steps, 32 lanes, 16 B]     its block: registers, shared memory, or each step
//   host, once            row_scales f32 [tiles * 16]                 its block, into shared memory
//   host, once            latents [target_vocab, latent_bytes]        warp 0 of every block, one row a step
//   backbone, each call   base_logits bf16 [steps, V]                 a step ahead, raw, into registers
//   every block, a step   slots: one 64-bit word                      every block (exchange.cuh)
//   block 0, a step       tokens int64 [steps]                        the caller
//   block 0, at the end   control[kControlEpoch]                      the next launch on the stream
//   a block that stalls   control[kControlStatus ...]                 check() on the host, and every later launch: a
//                                                                     stalled workspace stays inert until it is cleared
//
// A step, as the warps see it (two named barriers a step):
//   all warps   products with the latent in shared memory, epilogue, warp maximum -> key in shared memory
//   barrier 1   warps 1.. only arrive, and go on to prefetch the next base logits and first fragments
//   warp 0      block maximum -> word -> publish -> wait for all words -> winner -> latent row -> shared memory
//   barrier 2   everybody has the next latent
//
// Budget at rank 256, int8x2, 8 warps, 5 register + 4 shared slots: 160 registers of fragments, 12 of accumulators, 16 of
// fragments in flight, of 255 a thread; 128 KiB of resident tiles. docs/kernel.md has what was tried and lost.
#pragma once
#include "exchange.cuh"
#include "shard.cuh"

namespace wts {

constexpr int kKeysReady = 1, kLatentReady = 2;  // named barriers; 0 is __syncthreads

__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Clocks of warp 0 between the marks of a step, summed over the walk; compiled away unless the phases probe asks.
template <Probe P>
struct PhaseClock {
  __device__ __forceinline__ void start() {}
  __device__ __forceinline__ void mark(int) {}
  __device__ __forceinline__ void store(int64_t*, int) const {}
};
template <>
struct PhaseClock<Probe::phases> {
  int64_t last = 0, sum[kPhases] = {};
  static __device__ __forceinline__ int64_t now() {
    int64_t clock;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
    return clock;
  }
  __device__ __forceinline__ void start() { last = now(); }
  __device__ __forceinline__ void mark(int phase) {
    const int64_t clock = now();
    sum[phase] += clock - last;
    last = clock;
  }
  __device__ __forceinline__ void store(int64_t* clocks, int lane) const {
    if (lane == 0)
      for (int i = 0; i < kPhases; ++i) clocks[blockIdx.x * kPhases + i] = sum[i];
  }
};

// Kept out of line and free of references, so that the walk's registers stay registers. The first block to stall reports.
__device__ __noinline__ void report_stall(uint32_t* control, int step, uint32_t pending, int lane) {
  uint32_t previous = kStatusStalled;
  if (lane == 0) previous = atomicExch(&control[kControlStatus], kStatusStalled);
  const bool first = __shfl_sync(~0u, previous, 0) != kStatusStalled;
  for (int i = 0; i < kSlotCapacity / 64; ++i) {
    const uint32_t missing = __ballot_sync(~0u, (pending >> i) & 1u);
    if (first && lane == 0) control[kControlMissing + i] = missing;
  }
  if (first && lane == 0) control[kControlDetail] = step;
}

// Warp 0's side: control words, exchange, latents.
template <class C>
struct Leader {
  const WalkParams& p;
  char* latent;
  int lane;
  uint32_t epoch;

  // The latent row of a token into shared memory, with the halt flag beside its scales; `meanwhile` runs as it travels.
  template <class Meanwhile>
  __device__ __forceinline__ void fetch_latent(int token, bool halt, const Meanwhile& meanwhile) const {
    constexpr int chunks = C::latent_bytes / 16, rounds = (chunks + 31) / 32;
    const uint4* row = reinterpret_cast<const uint4*>(p.latents + static_cast<int64_t>(token) * C::latent_bytes);
    uint4 chunk[rounds];
#pragma unroll
    for (int i = 0; i < rounds; ++i)
      if (lane + 32 * i < chunks) chunk[i] = __ldg(row + lane + 32 * i);
    meanwhile();
#pragma unroll
    for (int i = 0; i < rounds; ++i)
      if (lane + 32 * i < chunks) reinterpret_cast<uint4*>(latent)[lane + 32 * i] = chunk[i];
    if (C::int8x2 && !halt) return;  // the table's header says 0 already
    __syncwarp();
    if (lane == 0) reinterpret_cast<uint32_t*>(latent + C::latent_header)[kHaltWord] = halt;
  }

  // Checks what only the device can see and brings the anchor's latent.
  __device__ __forceinline__ void enter() {
    const bool stalled_before = p.control[kControlStatus] == kStatusStalled;
    const int64_t anchor = p.anchors[0];
    const bool known = anchor >= 0 && anchor < p.target_vocab_size;
    epoch = p.control[kControlEpoch];
    if (!known && blockIdx.x == 0 && lane == 0 && atomicCAS(&p.control[kControlStatus], kStatusClean, kStatusAnchor) == kStatusClean)
      p.control[kControlDetail] = 0;  // the batch row
    fetch_latent(known ? static_cast<int>(anchor) : 0, stalled_before || !known, [] {});
  }

  // Block maximum of the warps' keys, published as this step's word.
  __device__ __forceinline__ void publish(const uint32_t* warp_keys, int first_tile) {
    ++epoch;
    const uint32_t key = __reduce_max_sync(~0u, lane < C::warps ? warp_keys[lane] : 0u);
    const uint64_t word = word_from_key(key, first_tile * kTileRows, epoch);
    exchange_publish<C::replicas>(p.slots, word, lane);
    // The row this block would like to see next: in L2 by the time it wins, if it wins.
    if (p.draft_to_target == nullptr && lane < (C::latent_bytes + 127) / 128 && row_from_word(word) < p.vocab_size)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p.latents + static_cast<int64_t>(row_from_word(word)) * C::latent_bytes + lane * 128));
  }

  // The winner of all blocks, as a target id; false after a stall, which it reports.
  __device__ __forceinline__ bool agree(int step, int& token) {
    const ExchangeResult seen = exchange_wait<C::replicas>(p.slots, epoch, p.expected_blocks, lane, p.max_polls);
    if (__any_sync(~0u, seen.pending != 0)) {
      report_stall(p.control, step, seen.pending, lane);
      return false;
    }
    const int row = row_from_word(seen.word);
    token = p.draft_to_target == nullptr ? row : __ldg(p.draft_to_target + row);
    return true;
  }

};

template <class C>
__global__ void __launch_bounds__(C::threads, 1) walk_kernel(const __grid_constant__ WalkParams p) {
  extern __shared__ __align__(16) char shared[];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int first_tile = static_cast<int>(static_cast<int64_t>(blockIdx.x) * p.vocab_tiles / gridDim.x);
  const int end_tile = static_cast<int>(static_cast<int64_t>(blockIdx.x + 1) * p.vocab_tiles / gridDim.x);
  char* const latent = shared + C::latent_offset;
  uint32_t* const warp_keys = reinterpret_cast<uint32_t*>(shared + C::key_offset);

  Shard<C> shard(p, shared, first_tile, end_tile - first_tile, warp, lane);
  LaneRows<C> rows(p, shared, first_tile, end_tile, warp, lane);
  Leader<C> leader{p, latent, lane, 0};
  PhaseClock<C::probe> clock;

  shard.begin_entry();
  rows.load();
  if (warp == 0) leader.enter();
  shard.finish_entry();
  shard.fetch_ahead();
  barrier_sync(kLatentReady, C::threads);

  clock.start();
  int step = 0;
  for (; step < p.steps; ++step) {
    const uint4 header = *reinterpret_cast<const uint4*>(latent + C::latent_header);
    if (header.z) break;
    typename Shard<C>::Accumulator acc[C::groups][4];
    shard.products(acc, LatentOperand<C>(latent, lane));
    clock.mark(0);

    const uint32_t key = __reduce_max_sync(~0u, rows.best(acc, __uint_as_float(header.x), __uint_as_float(header.y)));
    if (lane == 0) warp_keys[warp] = key;
    clock.mark(1);

    if (warp != 0) {
      barrier_arrive(kKeysReady, C::threads);
      if (step + 1 < p.steps) rows.load();
      shard.fetch_ahead();
    } else {
      barrier_sync(kKeysReady, C::threads);
      if constexpr (C::probe != Probe::fixed_latent) {
        leader.publish(warp_keys, first_tile);
        if (step + 1 < p.steps) rows.load();
        clock.mark(2);
        int token = 0;
        const bool agreed = leader.agree(step, token);
        if (blockIdx.x == 0 && lane == 0) p.tokens[step] = token;  // 0 after a stall
        clock.mark(3);
        leader.fetch_latent(token, !agreed, [&] { shard.fetch_ahead(); });
      } else {
        if (step + 1 < p.steps) rows.load();
        shard.fetch_ahead();
        if (blockIdx.x == 0 && lane == 0) p.tokens[step] = warp_keys[0];
      }
    }
    barrier_sync(kLatentReady, C::threads);
    clock.mark(4);
  }
  if (warp == 0 && blockIdx.x == 0 && lane == 0) {
    for (int rest = step; rest < p.steps; ++rest) p.tokens[rest] = 0;
    p.control[kControlEpoch] = leader.epoch;
  }
  if (warp == 0) clock.store(p.phase_clocks, lane);
}

}  // namespace wts
