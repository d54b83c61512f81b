// What a warp owns for the whole walk: its tiles in three tiers with the products of a step, and its rows with their base
// logits, scales and selection. config.cuh says which slot lies where and ends in which lane.
#pragma once
#include <type_traits>
#include "tile.cuh"
#include "word.cuh"

namespace wts {

template <class C>
struct Shard {
  using Accumulator = std::conditional_t<C::int8x2, int, float>;
  // Fragments of shared memory in flight, in the order of use: enough products between a load and its use to hide it.
  static constexpr int shared_fragments = C::shared_slots * C::k_steps;
  static constexpr int in_flight = shared_fragments < kFragmentsInFlight ? shared_fragments : kFragmentsInFlight;

  const char* matrix;  // k-step 0 of the block's first tile, this lane's 16 bytes
  char* shared;
  int tiles;  // of the block
  int warp, lane;
  uint32_t column_mask[C::columns];
  uint4 held[C::register_slots > 0 ? C::register_slots : 1][C::k_steps];
  uint4 ahead[in_flight > 0 ? in_flight : 1];
  int ring = 0;  // next staging entry to multiply
  int refills;   // tiles still to be streamed in, over all steps

  __device__ __forceinline__ Shard(const WalkParams& p, char* shared_memory, int first_tile, int tiles_of_block, int warp_,
                                   int lane_)
      : matrix(static_cast<const char*>(p.matrix) + static_cast<int64_t>(first_tile) * C::tile_bytes + lane_ * kFragmentBytes),
        shared(shared_memory), tiles(tiles_of_block), warp(warp_), lane(lane_),
        refills(p.steps * C::streamed_slots - C::staging_slots) {
#pragma unroll
    for (int c = 0; c < C::columns; ++c) column_mask[c] = (lane >> 3) == c ? ~0u : 0u;
  }

  __device__ __forceinline__ const char* source(int slot, bool& present) const {
    const int tile = slot * C::warps + warp;
    present = tile < tiles;
    return matrix + static_cast<int64_t>(present ? tile : 0) * C::tile_bytes;
  }
  __device__ __forceinline__ char* resident(int shared_slot) const {
    return shared + C::resident_offset + (shared_slot * C::warps + warp) * C::tile_bytes + lane * kFragmentBytes;
  }
  __device__ __forceinline__ char* staging(int entry) const {
    return shared + C::staging_offset + (entry * C::warps + warp) * C::tile_bytes + lane * kFragmentBytes;
  }

  __device__ __forceinline__ void copy_slot(char* to, int slot) const {
    bool present;
    const char* from = source(slot, present);
    const uint32_t address = shared_address(to);
#pragma unroll
    for (int k = 0; k < C::k_steps; ++k) copy_fragment(address + k * C::k_step_bytes, from + k * C::k_step_bytes, present);
  }

  // Issues every load of the shard; finish_entry waits for the shared ones, first use waits for the registers.
  __device__ __forceinline__ void begin_entry() {
#pragma unroll
    for (int slot = 0; slot < C::resident_slots; ++slot)
      if (C::is_shared(slot)) copy_slot(resident(C::shared_before(slot)), slot);
    commit_copies();
    if constexpr (C::streamed_slots > 0) {
#pragma unroll
      for (int entry = 0; entry < C::staging_slots; ++entry) {
        copy_slot(staging(entry), C::resident_slots + entry % C::streamed_slots);
        commit_copies();
      }
    }
#pragma unroll
    for (int slot = 0; slot < C::resident_slots; ++slot) {
      if (!C::is_register(slot)) continue;
      bool present;
      const char* from = source(slot, present);
#pragma unroll
      for (int k = 0; k < C::k_steps; ++k)
        held[slot - C::shared_before(slot)][k] = present ? load_fragment(from + k * C::k_step_bytes) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ void finish_entry() { wait_copies<C::staging_slots>(); }

  // Place of a shared slot's fragment in the order of use (k-step by k-step), and the other way round; -1 past the end.
  __host__ __device__ static constexpr int fragment_index(int slot, int k) {
    return k * C::shared_slots + C::shared_before(slot);
  }
  __host__ __device__ static constexpr int fragment_offset(int index) {
    return index < shared_fragments
               ? (index % C::shared_slots) * C::warps * C::tile_bytes + (index / C::shared_slots) * C::k_step_bytes
               : -1;
  }
  template <int Index>
  __device__ __forceinline__ void fetch_fragment() {
    if constexpr (Index < shared_fragments) {
      constexpr int offset = fragment_offset(Index);
      ahead[Index % in_flight] = *reinterpret_cast<const uint4*>(resident(0) + offset);
    }
  }
  // The first fragments of a step, fetched before its latent is there.
  __device__ __forceinline__ void fetch_ahead() {
    for_each_index<in_flight>([&](auto i) { fetch_fragment<i>(); });
  }

  // acc = products of all slots with the latent.
  __device__ __forceinline__ void products(Accumulator (&acc)[C::groups][4], const LatentOperand<C>& latent) {
#pragma unroll
    for (int q = 0; q < C::groups; ++q) acc[q][0] = acc[q][1] = acc[q][2] = acc[q][3] = 0;
    if constexpr (C::resident_slots > 0) {
      for_each_index<C::k_steps>([&](auto k) {
        const uint2 b = latent.fetch(k);
        for_each_index<C::resident_slots>([&](auto slot) {
          if constexpr (C::is_shared(slot)) {
            constexpr int index = fragment_index(slot, k);
            const uint4 a = ahead[index % in_flight];
            fetch_fragment<index + in_flight>();
            multiply_slot(acc, slot, a, b);
          } else {
            multiply_slot(acc, slot, held[slot - C::shared_before(slot)][k], b);
          }
        });
      });
    }
    for_each_index<C::streamed_slots>([&](auto streamed) { streamed_products<streamed>(acc, latent); });
  }

  __device__ __forceinline__ void multiply_slot(Accumulator (&acc)[C::groups][4], int slot, const uint4& a, uint2 b) const {
    const uint32_t mask = column_mask[C::slot_column(slot)];
    multiply(acc[C::slot_group(slot)], a, make_uint2(b.x & mask, b.y & mask));
  }

  // The ring runs on across steps: the matrix does not change, so tiles of the next step land while the blocks agree.
  template <int Streamed>
  __device__ __forceinline__ void streamed_products(Accumulator (&acc)[C::groups][4], const LatentOperand<C>& latent) {
    wait_copies<C::staging_slots - 1>();
    char* const entry = staging(ring);
#pragma unroll 4  // fully unrolled, the loads ahead take registers from the resident slots
    for (int k = 0; k < C::k_steps; ++k)
      multiply_slot(acc, C::resident_slots + Streamed, *reinterpret_cast<const uint4*>(entry + k * C::k_step_bytes), latent.fetch(k));
    if (refills > 0) copy_slot(entry, C::resident_slots + (Streamed + C::staging_slots) % C::streamed_slots);
    commit_copies();  // empty at the end, which keeps the count that wait_copies relies on
    --refills;
    ring = ring + 1 == C::staging_slots ? 0 : ring + 1;
  }
};

// The rows of one lane: base logits (bf16 pairs, kept raw until used: a conversion at load time would wait for the load),
// scales, and the selection key. Group q's rows are row, row + 1 with row = first + q * warps * 16.
template <class C>
struct LaneRows {
  static constexpr int group_rows = C::warps * kTileRows;

  const uint16_t* logits;  // of row `first`, in the step that load() will fetch next
  int64_t step_stride;
  int rows_left;         // of the block or the vocabulary, from `first` on
  bool pairs;            // rows 2g and 2g + 1 load as one aligned word
  uint32_t inverse_row;  // 0xffff - row in the block, of group 0
  float2* scales;        // of group 0, this lane
  uint32_t raw[C::groups];

  __device__ __forceinline__ LaneRows(const WalkParams& p, char* shared, int first_tile, int end_tile, int warp, int lane)
      : step_stride(p.base_step_stride),
        pairs(((reinterpret_cast<uintptr_t>(p.base_logits) | (p.base_step_stride * 2)) & 3) == 0 && p.vocab_size % 2 == 0),
        scales(reinterpret_cast<float2*>(shared + C::scale_offset) + warp * 32 + lane) {
    const int g = lane >> 2, t = lane & 3;
    const int row_in_block = (t * C::groups * C::warps + warp) * kTileRows + 2 * g;
    const int first = first_tile * kTileRows + row_in_block;
    logits = p.base_logits + first;
    rows_left = t < C::columns ? min(p.vocab_size, end_tile * kTileRows) - first : 0;
    inverse_row = 0xffffu - row_in_block;
    if constexpr (C::int8x2) {
#pragma unroll
      for (int q = 0; q < C::groups; ++q)
        scales[q * C::warps * 32] = q * group_rows < rows_left
                                        ? __ldg(reinterpret_cast<const float2*>(p.row_scales + first + q * group_rows))
                                        : make_float2(0.f, 0.f);
    }
  }

  // Fetches the next step. Rows past the end keep -inf: no valid row loses to them, since ties go to the lower index.
  __device__ __forceinline__ void load() {
#pragma unroll
    for (int q = 0; q < C::groups; ++q) raw[q] = 0xff80ff80u;
    if (pairs) {
#pragma unroll
      for (int q = 0; q < C::groups; ++q)
        if (q * group_rows < rows_left)
          asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(raw[q]) : "l"(logits + q * group_rows));
    } else {
#pragma unroll
      for (int q = 0; q < C::groups; ++q) {
        if (q * group_rows < rows_left) raw[q] = 0xff800000u | __ldg(logits + q * group_rows);
        if (q * group_rows + 1 < rows_left)
          raw[q] = (raw[q] & 0xffffu) | (static_cast<uint32_t>(__ldg(logits + q * group_rows + 1)) << 16);
      }
    }
    logits += step_stride;
  }

  // y = bf16(base + correction), every operation rounded on its own; the largest key of the lane's rows.
  __device__ __forceinline__ uint32_t best(const typename Shard<C>::Accumulator (&acc)[C::groups][4], float s1, float s2) const {
    uint32_t key = 0;
#pragma unroll
    for (int q = 0; q < C::groups; ++q) {
      float low = __uint_as_float(raw[q] << 16), high = __uint_as_float(raw[q] & 0xffff0000u);
      if constexpr (C::int8x2) {
        const float2 w = scales[q * C::warps * 32];
        low = __fadd_rn(low, __fmul_rn(w.x, dequantised(acc[q][0], acc[q][1], s1, s2)));
        high = __fadd_rn(high, __fmul_rn(w.y, dequantised(acc[q][2], acc[q][3], s1, s2)));
      } else {
        low = __fadd_rn(low, acc[q][0]);
        high = __fadd_rn(high, acc[q][2]);
      }
      key = best_key(key, ordered_bf16x2(__floats2bfloat162_rn(low, high)), inverse_row - q * group_rows);
    }
    return key;
  }

 private:
  __device__ __forceinline__ static float dequantised(int c1, int c2, float s1, float s2) {
    return __fadd_rn(__fmul_rn(s1, static_cast<float>(c1)), __fmul_rn(s2, static_cast<float>(c2)));
  }
};

}  // namespace wts
