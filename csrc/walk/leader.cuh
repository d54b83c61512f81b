// A leader's side of a step: words out and in, tokens, and the next latents of its batch rows (leader, leader + leaders, ...).
// With one batch row that is warp 0, while the other warps fetch what the next step needs.
#pragma once
#include "exchange.cuh"
#include "recurrent.cuh"

namespace wts {

// Kept out of line and free of references, so that the walk's registers stay registers. The first block to stall reports.
__device__ __noinline__ void report_stall(uint32_t* control, int step, uint32_t pending, int lane) {
  uint32_t previous = kStatusStalled;
  if (lane == 0) previous = atomicExch(&control[kControlStatus], kStatusStalled);
  const bool first = __shfl_sync(~0u, previous, 0) != kStatusStalled;
  for (int i = 0; i < kMissingWords; ++i) {
    const uint32_t missing = __ballot_sync(~0u, (pending >> i) & 1u);
    if (first && lane == 0) control[kControlMissing + i] = missing;
  }
  if (first && lane == 0) control[kControlDetail] = step;
}

template <class C>
struct Leader {
  static constexpr int N = C::led_rows;
  using Key = typename std::conditional_t<C::wide, WideBest, NarrowBest>::Key;

  const WalkParams& p;
  char* shared;
  int warp, lane;
  Exchange<C> exchange;
  uint32_t epoch;  // of the last exchange; every warp counts along
  int64_t anchor[N];
  bool stalled_before = false;
  uint32_t known = 0;  // bit n: the anchor of row n is a target id

  __device__ __forceinline__ Leader(const WalkParams& p_, char* shared_, int warp_, int lane_)
      : p(p_), shared(shared_), warp(warp_), lane(lane_), exchange(p_, lane_), epoch(p_.control[kControlEpoch]) {}

  __device__ __forceinline__ bool leads() const { return warp < C::leaders && warp < p.batch; }
  __device__ __forceinline__ int row(int n) const {
    const int row = warp + n * C::leaders;
    return row < p.batch ? row : -1;
  }
  // Rows of the kernel, whether or not the call has them.
  __device__ __forceinline__ bool built(int n) const { return C::rows % C::leaders == 0 || warp + n * C::leaders < C::rows; }
  __device__ __forceinline__ char* latents() const { return shared + C::latent_offset; }
  __device__ __forceinline__ int* tokens() const { return reinterpret_cast<int*>(shared + C::token_offset); }
  __device__ __forceinline__ uint32_t* halt() const { return reinterpret_cast<uint32_t*>(shared + C::halt_offset); }
  __device__ __forceinline__ Key* keys() const { return reinterpret_cast<Key*>(shared + C::key_offset); }

  // What only the device can see, and the latents (or, for a recurrent head, tokens) of the anchors.
  __device__ __forceinline__ void enter() {
    stalled_before = p.control[kControlStatus] == kStatusStalled;
    int token[N];
#pragma unroll
    for (int n = 0; n < N; ++n) anchor[n] = row(n) < 0 ? 0 : p.anchors[row(n)];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const bool is_known = anchor[n] >= 0 && anchor[n] < p.target_vocab_size;
      if (is_known) known |= 1u << n;
      token[n] = is_known ? static_cast<int>(anchor[n]) : 0;
      if (!is_known && blockIdx.x == 0 && lane == 0) {
        atomicCAS(&p.control[kControlStatus], kStatusClean, kStatusAnchor);
        atomicOr(&p.control[kControlBadRows], 1u << row(n));
      }
    }
    if (warp == 0 && lane == 0) *halt() = stalled_before;
    bring(token, 0, [] {});
  }

  // The next latents of the led rows, or their tokens where the whole block advances a state; `meanwhile` runs as they travel.
  template <class Meanwhile>
  __device__ __forceinline__ void bring(const int (&token)[N], int position, const Meanwhile& meanwhile) const {
    if constexpr (C::head == HeadKind::markov) {
      fetch_latents(token, meanwhile);
    } else if constexpr (C::head == HeadKind::gated) {
      meanwhile();
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (row(n) >= 0) gate_latent<C>(p, row(n), token[n], position, latents(), lane);
    } else {
#pragma unroll
      for (int n = 0; n < N; ++n)
        if (row(n) >= 0 && lane == 0) tokens()[row(n)] = token[n];
      meanwhile();
    }
  }
  template <class Meanwhile>
  __device__ __forceinline__ void fetch_latents(const int (&token)[N], const Meanwhile& meanwhile) const {
    constexpr int chunks = C::latent_bytes / 16, rounds = (chunks + 31) / 32;
    uint4 chunk[N][rounds];
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint4* const from = reinterpret_cast<const uint4*>(p.token_table) + static_cast<int64_t>(token[n]) * chunks;
#pragma unroll
      for (int i = 0; i < rounds; ++i)
        if (lane + 32 * i < chunks) chunk[n][i] = __ldg(from + lane + 32 * i);
    }
    meanwhile();
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int i = 0; i < rounds; ++i)
        if (built(n) && lane + 32 * i < chunks) LatentPlace<C>::store_chunk(latents(), warp + n * C::leaders, lane + 32 * i, chunk[n][i]);
  }

  // Any warp: its best of a batch row, from the lane that holds it. Narrow keys meet in shared memory as a maximum; two steps
  // alternate. A wide key has a place for each warp; `first` tells whether it holds the step before.
  template <class Best>
  __device__ __forceinline__ void offer(const Best& best, int step, int batch, bool first) const {
    if constexpr (C::wide) {
      Key& mine = keys()[batch * C::warps + warp];
      mine = first ? best.key() : max(mine, best.key());
    } else {
      atomicMax(&keys()[(step & 1) * C::rows + batch], best.key);
    }
  }
  // Block maxima of the led rows, published as this step's words.
  __device__ __forceinline__ void publish(int step, int first_row) {
    ++epoch;
    uint32_t wanted[N];
    Key key[N];
#pragma unroll
    for (int n = 0; n < N; ++n)
      if constexpr (C::wide) key[n] = built(n) && lane < C::warps ? keys()[(warp + n * C::leaders) * C::warps + lane] : 0u;
      else key[n] = built(n) ? keys()[(step & 1) * C::rows + warp + n * C::leaders] : 0u;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      typename Exchange<C>::W::Word word;
      if constexpr (C::wide) {
        const uint32_t value = static_cast<uint32_t>(key[n] >> 32), top = __reduce_max_sync(~0u, value);
        const uint32_t low = __reduce_max_sync(~0u, value == top ? static_cast<uint32_t>(key[n]) : 0u);
        word = (static_cast<uint64_t>(top) << 32) | low | (epoch & kEpochMask);
        wanted[n] = kIndexMask - (low >> kEpochBits);
      } else {
        word = key[n] | (epoch & Words<false>::epoch_mask);
        wanted[n] = first_row + kNarrowRows - 1 - ((key[n] >> kNarrowEpochBits) & (kNarrowRows - 1));
      }
      if (row(n) >= 0) exchange.publish(word, epoch, row(n));
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (row(n) < 0) continue;
      want(wanted[n]);
      if (!C::wide && lane == 0) keys()[((step + 1) & 1) * C::rows + row(n)] = 0;
    }
  }
  // The row this block would like to see next: in L2 by the time it wins, if it wins.
  __device__ __forceinline__ void want(uint32_t row) const {
    if (p.draft_to_target != nullptr || row >= static_cast<uint32_t>(p.vocab_size)) return;
    if constexpr (C::head == HeadKind::markov) {
      if (lane < (C::latent_bytes + 127) / 128)
        prefetch_l2(reinterpret_cast<const char*>(p.token_table) + static_cast<int64_t>(row) * C::latent_bytes + lane * 128);
    } else {
      prefetch_entry<C>(p, static_cast<int>(row), lane);
    }
  }

  // The winners of the led rows, as target ids; false after a stall, which it reports. Block 0 writes them out.
  __device__ __forceinline__ bool agree(int step, int (&token)[N]) const {
    int rows[N], winner[N];
#pragma unroll
    for (int n = 0; n < N; ++n) rows[n] = row(n);
    const uint32_t missed = exchange.wait(epoch, rows, p.vocab_tiles, p.max_polls, winner);
    const bool agreed = !__any_sync(~0u, missed != 0);
    if (!agreed) report_stall(p.control, step, missed, lane);
#pragma unroll
    for (int n = 0; n < N; ++n) {
      token[n] = 0;
      if (rows[n] < 0) continue;
      token[n] = !agreed ? 0 : p.draft_to_target == nullptr ? winner[n] : __ldg(p.draft_to_target + winner[n]);
      if (blockIdx.x == 0 && lane == 0) p.tokens[rows[n] * p.tokens_row_stride + step] = known & (1u << n) ? token[n] : 0;
    }
    return agreed;
  }
  // After the last step: the words of batch rows that this call leaves out look as if they had been walked, too. Otherwise the epoch
  // field of an old word would come round while its row is away. Nobody reads these words in this launch.
  __device__ __forceinline__ void keep_up() {
    for (int row = p.batch + warp; row < C::rows; row += C::warps)
      for (uint32_t last = epoch - 1; last != epoch + 1; ++last) exchange.publish(last & Exchange<C>::W::epoch_mask, last, row);
  }
  // After the last step: tokens that a stall has left open, and the epoch of the next call.
  __device__ __forceinline__ void leave(int step) const {
    if (blockIdx.x != 0 || lane != 0) return;
    for (int n = 0; n < N; ++n)
      for (int rest = step; rest < p.steps && row(n) >= 0; ++rest) p.tokens[row(n) * p.tokens_row_stride + rest] = 0;
    if (warp != 0) return;
    p.control[kControlEpoch] = epoch;
    if (C::sampling && p.noise_offset != nullptr) *p.noise_offset += 1;
  }
};

}  // namespace wts
