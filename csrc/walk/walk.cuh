// The persistent walk: one cooperative launch, one block a multiprocessor, all steps of one draft block, up to 32 batch rows.
//
//   who writes            what                                        who reads
//   host, once            matrix [tiles, k_steps, 32, 16 B]           its block: registers, shared memory, or each step
//   host, once            row_scales f32 [tiles * 16]                 its block, into shared memory
//   host, once            token_table [target_vocab, ...]             Markov: a row's leader in every block; others: recurrent.cuh
//   host, each call       positions f32 [batch, steps, ...]           gated, RNN, Domino: what does not depend on the token
//   backbone, each call   base_logits bf16 [batch, steps, V]          ahead of their step, into L2 and registers
//   every block, a step   slots: one word a batch row                 every block (exchange.cuh)
//   block 0, a step       tokens int64 [batch, steps]                 the caller
//   every block, a step   logits_out bf16 [batch, steps, V]           the caller, where asked for
//   block 0, at the end   control[kControlEpoch], noise_offset        the next launch on the stream
//   a block that stalls   control[kControlStatus ...]                 check() on the host, and every later launch: a
//                                                                     stalled workspace stays inert until it is cleared
//
// A step, as the warps see it (two named barriers; a third where a state advances):
//   all warps   products with the latents in shared memory, selection, block maximum in shared memory
//   barrier 1   warps that do not lead only arrive, and go on to fetch base logits, fragments and noise of the next step
//   leaders     word -> publish -> wait for all words -> winner -> latent row -> shared memory
//   barrier 2   everybody has the next latents
//
// Budget at rank 256, int8x2, 8 warps, 1 batch row, 5 register + 4 shared slots: 160 registers of fragments, 12 of sums, 16 of
// fragments in flight, of 255 a thread; 128 KiB of resident tiles. docs/kernel.md has what was tried and lost.
#pragma once
#include "leader.cuh"
#include "select.cuh"

namespace wts {

constexpr int kKeysReady = 1, kLatentReady = 2;  // named barriers; 0 is __syncthreads

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
  __device__ __forceinline__ void start() { last = clock_now(); }
  __device__ __forceinline__ void mark(int phase) {
    const int64_t clock = clock_now();
    sum[phase] += clock - last;
    last = clock;
  }
  __device__ __forceinline__ void store(int64_t* clocks, int lane) const {
    if (lane == 0)
      for (int i = 0; i < kPhases; ++i) clocks[blockIdx.x * kPhases + i] = sum[i];
  }
};

// A head without a state.
template <class C>
struct NoRecurrence {
  static constexpr int shared_bytes = 0;
  __device__ __forceinline__ NoRecurrence(const WalkParams&, char*, int, int) {}
};
template <class C>
struct RecurrenceOf {
  using type = std::conditional_t<C::recurrent, Recurrence<C>, NoRecurrence<C>>;
};
template <class C>
constexpr int shared_bytes_of() {
  if constexpr (C::recurrent) return C::state_offset + Recurrence<C>::shared_bytes;
  else return C::state_offset;
}

// Best rows of the streamed slots, each multiplied with all batch rows while it is there.
template <class C, class Offer>
__device__ __forceinline__ void select_streamed(Shard<C>& shard, const Selection<C>& selection, const char* latents, int step, const Offer& offer) {
  constexpr int N = C::quads < 4 ? C::quads : 4;
  const int quads = selection.quads();
  typename Selection<C>::Best best[C::quads];
  for_each_index<C::streamed_slots>([&](auto streamed) {
    constexpr int slot = C::resident_slots + streamed;
    uint32_t base[C::quads];
    selection.base_logits.load_alone(base, slot, step);
#pragma unroll
    for (int quad = 0; quad < C::quads; quad += N) {
      if (quad >= quads) break;
      typename Shard<C>::Sum sums[N][4];
      shard.template streamed_products<N>(sums, latents, quad, quad + N >= quads);
      selection.offer_alone(best, sums, base, quad, slot, step);
    }
  });
#pragma unroll
  for (int quad = 0; quad < C::quads; ++quad) best[quad].template reduce<C::together>(), offer(best[quad], quad, C::groups == 0);
}
// The same of sampled rows. A loop, since slots whose code stands by itself outgrow the instruction cache.
template <class C, class Offer>
__device__ __forceinline__ void contest_streamed(Shard<C>& shard, const Selection<C>& selection, const char* latents, int step, const Offer& offer) {
  constexpr int N = C::quads < 4 ? C::quads : 4;
  const int quads = selection.quads();
  Front fronts[C::quads];
#pragma unroll
  for (int quad = 0; quad < C::quads; ++quad) {
    selection.start(fronts[quad], quad);
    if (C::groups == 0) offer(typename Selection<C>::Best(), quad, true);
  }
#pragma unroll 1
  for (int slot = C::resident_slots; slot < C::slots; ++slot) {
    uint32_t base[C::quads];
    selection.base_logits.load_alone(base, slot, step);
#pragma unroll
    for (int quad = 0; quad < C::quads; quad += N) {
      if (quad >= quads) break;
      typename Shard<C>::Sum sums[N][4];
      shard.template streamed_products<N>(sums, latents, quad, quad + N >= quads);
      selection.contest_alone(fronts, sums, base, quad, slot, step, offer);
    }
  }
  for_each_index<(C::quads + 1) / 2>([&](auto two) {
    constexpr int quad = 2 * two, count = C::quads - quad < 2 ? 1 : 2;
    typename Selection<C>::Best best[count];
    selection.settle(best, fronts + quad, quad, step);
#pragma unroll
    for (int i = 0; i < count; ++i) offer(best[i], quad + i, false);
  });
}

// Best rows of every batch row, from this warp to the block: by warpgroups slot by slot; by warps first the slots that are
// multiplied side by side, for each reading of the matrix, then, where many rows are walked, each streamed slot for all of them.
template <class C>
__device__ __forceinline__ void select_best(Shard<C>& shard, Selection<C>& selection, const Leader<C>& leader, char* latents, int step,
                                            int lane, PhaseClock<C::probe>& clock) {
  using Best = typename Selection<C>::Best;
  const int quads = selection.quads();
  const auto offer = [&](const Best& best, int quad, bool first) {
    if (lane < C::together && 4 * quad + lane < selection.p.batch) leader.offer(best, step, 4 * quad + lane, first);
  };
  if constexpr (C::groups > 0) {
#pragma unroll 1
    for (int quad = 0; quad < quads; ++quad) {
      if (quad > 0) shard.fetch_ahead();
      const float2 latent = selection.latent_scales(quad);
      typename Shard<C>::Sums sums;
      shard.products(sums, latents, quad);
      clock.mark(0);
      offer(selection.best_of(sums, latent, quad, step), quad, true);
    }
  }
  if constexpr (C::grouped) {
    // Each slot with up to four quads at once; while a warpgroup's products run on, it selects from those of the slot before.
    const auto select_quads = [&](int first) {
      Best best[C::group_quads];
      typename Shard<C>::Sum sums[2][C::group_quads][4];
      float2 latent[C::group_quads];
#pragma unroll
      for (int i = 0; i < C::group_quads; ++i) latent[i] = selection.latent_scales(first + i);
      // A turn: the products of a slot are begun, and those of the slot before, in the other sums, are selected from.
      const auto begin = [&](auto sum, auto slot) { shard.begin_group(sums[sum % 2], latents + first * 8 * 16, slot); };
      const auto select = [&](auto sum, auto slot, auto pending) {
        const float2 scale = selection.row_scales(slot);
        shard.template await_group<pending>(sums[sum % 2]);
        clock.mark(0);
        selection.template offer_group<sum>(best, sums[sum % 2], scale, latent, first, slot, step);
      };
      for_each_index<C::turns>([&](auto i) {
        begin(i, i);
        if constexpr (i > 0) select(Index<i - 1>{}, Index<i - 1>{}, Index<1>{});
        clock.mark(1);
      });
#pragma unroll 1
      for (int slot = C::turns; slot < C::slots; slot += 2)
        for_each_index<2>([&](auto i) {
          begin(Index<C::turns + i>{}, slot + i);
          select(Index<C::turns + i + 1>{}, slot + i - 1, Index<1>{});
          clock.mark(1);
        });
      select(Index<C::slots - 1>{}, Index<C::slots - 1>{}, Index<0>{});
      clock.mark(1);
      reduce_quads(best, lane);
      const int row = 4 * (first + spread_quad<C::group_quads>(lane)) + lane % 4;
      if (spread_holds<C::group_quads>(lane) && row < selection.p.batch) leader.offer(best[0], step, row, true);
    };
    if constexpr (C::quads == C::group_quads) {
      select_quads(0);
    } else {
#pragma unroll 1
      for (int first = 0; first < C::quads; first += C::group_quads)
        if (first < quads) select_quads(first);
    }
  } else if constexpr (C::streamed_alone && C::streamed_slots > 0) {
    if constexpr (C::sampling) contest_streamed(shard, selection, latents, step, offer);
    else select_streamed(shard, selection, latents, step, offer);
  }
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1) walk_kernel(const __grid_constant__ WalkParams p) {
  char* const shared = dynamic_shared();
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int first_tile = first_tile_of(blockIdx.x, p.vocab_tiles, reciprocal_of(gridDim.x));
  const int end_tile = first_tile_of(blockIdx.x + 1, p.vocab_tiles, reciprocal_of(gridDim.x));
  char* const latents = shared + C::latent_offset;

  Leader<C> leader(p, shared, warp, lane);
  Shard<C> shard(p, shared, first_tile, end_tile - first_tile, warp, lane);
  Selection<C> selection(p, shared, first_tile, end_tile, warp, lane);
  typename RecurrenceOf<C>::type recurrence(p, shared + C::state_offset, warp, lane);
  PhaseClock<C::probe> clock;
  const bool leads = leader.leads();
  // Warps that multiply states while others exchange words.
  const int idle = C::leaders < C::warps ? C::warps - C::leaders : C::warps;
  const int idle_number = C::leaders < C::warps ? warp - C::leaders : warp;

  // A leader asks for its latents before the shard's loads fill the queue, everybody for the row scales.
  selection.ask_scales(end_tile - first_tile);
  if (leads) leader.enter();
  selection.base_logits.enter();
  shard.begin_entry(p.matrix_stays_in_l2);
  for (int i = threadIdx.x; i < C::key_bytes / static_cast<int>(sizeof(typename Leader<C>::Key)); i += C::threads) leader.keys()[i] = 0;
  selection.enter();
  if constexpr (C::recurrent) recurrence.load();
  if constexpr (C::recurrent) wait_copies<0>();
  else shard.finish_entry();
  __syncthreads();
  selection.keep_scales();
  if constexpr (C::recurrent) {
    const bool arrived = recurrence.advance(leader.tokens(), 0, 0, true, latents);
    if (!arrived && threadIdx.x == 0) *leader.halt() = 1;
  }
  shard.fetch_ahead();
  selection.look_ahead(0);
  if constexpr (C::grouped) publish_operand();
  __syncthreads();

  constexpr bool selects = C::probe != Probe::exchange && C::probe != Probe::state;
  clock.start();
  int step = 0;
  for (; step < p.steps; ++step) {
    const bool halted = *leader.halt();  // asked early, needed late: products of a halted walk harm nobody
    if constexpr (selects) select_best<C>(shard, selection, leader, latents, step, lane, clock);
    if (halted) break;
    clock.mark(1);
    const bool more = step + 1 < p.steps;
    const auto leave = [&] {
      if constexpr (selects) selection.leave(step);
    };
    const auto look_ahead = [&] {
      shard.fetch_ahead();
      if constexpr (selects)
        if (more) selection.look_ahead(step + 1);
    };
    const auto overlap = [&] {
      if constexpr (C::recurrent)
        if (more && idle_number >= 0) recurrence.publish_products(leader.epoch, idle_number, idle);
    };

    bool agreed = true;
    if (!leads) {
      barrier_arrive(kKeysReady, C::threads);
      ++leader.epoch;
      leave();
      overlap();
      look_ahead();
    } else {
      barrier_sync(kKeysReady, C::threads);
      if constexpr (C::probe == Probe::fixed_latent || C::probe == Probe::state) {
        ++leader.epoch;
        leave();
        if constexpr (C::leaders == C::warps) overlap();
        look_ahead();
        if (!C::wide && lane == 0) leader.keys()[((step + 1) & 1) * C::rows] = 0;
        if (blockIdx.x == 0 && warp == 0 && lane == 0) p.tokens[step] = 0;
      } else {
        leader.publish(step, first_tile * kTileRows);
        leave();
        if constexpr (C::leaders == C::warps) overlap();
        clock.mark(2);
        int token[Leader<C>::N];
        agreed = leader.agree(step, token);
        clock.mark(3);
        if (!agreed && lane == 0) *leader.halt() = 1;
        if (more) leader.bring(token, step + 1, look_ahead);
      }
    }
    if constexpr (C::recurrent) {
      __syncthreads();
      if (more && !*leader.halt()) {
        const bool arrived = recurrence.advance(leader.tokens(), step + 1, leader.epoch, false, latents);
        if (!arrived) {
          if (threadIdx.x < 32) report_stall(p.control, step, 0, lane);
          if (threadIdx.x == 0) *leader.halt() = 1;
        }
      }
    }
    if constexpr (C::grouped) publish_operand();
    barrier_sync(kLatentReady, C::threads);
    clock.mark(4);
  }
  wait_copies<0>();  // a halted walk leaves before its copies have landed
  if (leads) leader.leave(step);
  if constexpr (C::rows > 1) leader.keep_up();
  if (warp == 0) clock.store(p.phase_clocks, lane);
}

}  // namespace wts
