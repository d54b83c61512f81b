// Selection across blocks: for each batch row every block publishes one word, every block reads all words and takes their maximum.
//
// Words lie in *units* of 16 bytes (four narrow words or two wide ones, of neighbouring blocks), two buffers by epoch & 1; units lie
// unit_stride bytes apart (wts_lab/workspace.py).
//
// Two buffers suffice: a block writes epoch e + 2 only after it has read every word of e + 1, each written after its writer
// had finished reading e. A word carries its own epoch, so relaxed accesses are enough: no other data is published through
// it. Waits are bounded by max_polls and report the missing units.
#pragma once
#include <cstdint>
#include <type_traits>
#include "config.cuh"
#include "walk/ptx.cuh"
#include "word.cuh"

namespace wts {

// First tile of a block: block * tiles / grid, rounded down, without a division. reciprocal * grid exceeds 2^32 by at most grid, so it is exact
// while block * tiles stays below 2^32 / grid: at most 192 * 65,536 against 2^32 / 192.
__device__ __forceinline__ uint32_t reciprocal_of(uint32_t grid) { return 0xffffffffu / grid + 1; }
__device__ __forceinline__ int first_tile_of(uint32_t block, int tiles, uint32_t grid_reciprocal) {
  const uint32_t product = block * static_cast<uint32_t>(tiles);
  return static_cast<int>(gridDim.x == 1 ? product : __umulhi(product, grid_reciprocal));
}

// What one word is made of, and which of a warp's units wins: `seen` are the units lane + 32 i, zero where there is none. Words that the
// last unit lacks are zero, too, and below every value.
template <bool Wide>
struct Words;
template <>
struct Words<false> {
  using Word = uint32_t;
  static constexpr int in_unit = 4;
  static constexpr uint32_t epoch_mask = (1u << kNarrowEpochBits) - 1;
  static __device__ __forceinline__ uint4 load(const char* unit) { return load_unit(unit); }
  // Bits that tell the epochs of the unit's first words from the one that is awaited.
  static __device__ __forceinline__ uint32_t differs(const uint4& unit, uint32_t epoch, int words) {
    uint32_t bits = unit.x ^ epoch;
    bits |= words > 1 ? unit.y ^ epoch : 0;
    bits |= words > 2 ? unit.z ^ epoch : 0;
    bits |= words > 3 ? unit.w ^ epoch : 0;
    return bits & epoch_mask;
  }
  // Value 16 | inverted block 16, reduced over the warp; the block then tells lane, unit and word of the row.
  template <int Looks>
  static __device__ __forceinline__ int winner(const uint4 (&seen)[Looks], int lane, int tiles, uint32_t grid_reciprocal) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < Looks; ++i) {
      const uint32_t place = 0xffffu - 4 * (lane + 32 * i);
      best = max(best, max(max(__byte_perm(seen[i].x, place, 0x3254), __byte_perm(seen[i].y, place - 1, 0x3254)),
                           max(__byte_perm(seen[i].z, place - 2, 0x3254), __byte_perm(seen[i].w, place - 3, 0x3254))));
    }
    const uint32_t block = 0xffffu - (__reduce_max_sync(~0u, best) & 0xffffu);
    uint4 unit = seen[0];
#pragma unroll
    for (int i = 1; i < Looks; ++i)
      if (block / 128 == i) unit = seen[i];
    const uint32_t low = block & 1 ? unit.y : unit.x, high = block & 1 ? unit.w : unit.z;
    const uint32_t word = __shfl_sync(~0u, block & 2 ? high : low, block / 4 % 32);
    return first_tile_of(block, tiles, grid_reciprocal) * kTileRows + kNarrowRows - 1 - ((word >> kNarrowEpochBits) & (kNarrowRows - 1));
  }
};
template <>
struct Words<true> {
  using Word = uint64_t;
  static constexpr int in_unit = 2;
  static constexpr uint32_t epoch_mask = kEpochMask;
  static __device__ __forceinline__ uint4 load(const char* unit) {
    uint64_t first, second;
    load_word_pair(reinterpret_cast<const uint64_t*>(unit), first, second);
    return make_uint4(static_cast<uint32_t>(first), static_cast<uint32_t>(first >> 32), static_cast<uint32_t>(second), static_cast<uint32_t>(second >> 32));
  }
  static __device__ __forceinline__ uint32_t differs(const uint4& unit, uint32_t epoch, int words) {
    return ((unit.x ^ epoch) | (words > 1 ? unit.z ^ epoch : 0)) & epoch_mask;
  }
  template <int Looks>
  static __device__ __forceinline__ int winner(const uint4 (&seen)[Looks], int, int, uint32_t) {
    uint32_t value = 0, low = 0;
#pragma unroll
    for (int i = 0; i < Looks; ++i) value = max(value, max(seen[i].y, seen[i].w));
    value = __reduce_max_sync(~0u, value);
#pragma unroll
    for (int i = 0; i < Looks; ++i) low = max(low, max(seen[i].y == value ? seen[i].x : 0u, seen[i].w == value ? seen[i].z : 0u));
    return static_cast<int>(kIndexMask - (__reduce_max_sync(~0u, low) >> kEpochBits));
  }
};

// One leader's side of the exchange: its batch rows are leader, leader + leaders, ...
// Its batch rows share their looks, so that a leader of many rows waits once.
template <class C>
struct Exchange {
  using W = Words<C::wide>;
  static constexpr int max_units = kMaxBlocks / W::in_unit, looks = (max_units + 31) / 32;  // units of a lane

  char* slots;
  int unit_stride;
  int blocks, lane;  // blocks: words to wait for
  int grid_units;
  uint32_t published = 0;  // clock of the last publication
  uint32_t grid_reciprocal;

  __device__ __forceinline__ Exchange(const WalkParams& p, int lane_)
      : slots(p.slots), unit_stride(p.unit_stride), blocks(p.expected_blocks), lane(lane_),
        grid_units((gridDim.x + W::in_unit - 1) / W::in_unit), grid_reciprocal(reciprocal_of(gridDim.x)) {}
  __device__ __forceinline__ int units() const { return (blocks + W::in_unit - 1) / W::in_unit; }
  __device__ __forceinline__ char* unit(uint32_t epoch, int row, int number) const {
    return slots + (((epoch & 1u) * C::rows + row) * grid_units + number) * unit_stride;
  }
  __device__ __forceinline__ void publish(typename W::Word word, uint32_t epoch, int row) {
    if (lane == 0) store_word(reinterpret_cast<typename W::Word*>(unit(epoch, row, blockIdx.x / W::in_unit)) + blockIdx.x % W::in_unit, word);
    published = short_clock();
  }
  // Units past the grid's never come: a test that wants a stall waits for them.
  __device__ __forceinline__ bool awaited(uint32_t pending, int i) const { return (pending & (1u << i)) && lane + 32 * i < grid_units; }

  // Waits for the words of N batch rows at once and gives their winners; returns the units this lane still misses (bit i: lane + 32 i).
  template <int N>
  __device__ __forceinline__ uint32_t wait(uint32_t epoch, const int (&row)[N], int vocab_tiles, uint32_t max_polls, int (&winner)[N]) const {
    uint4 seen[N][looks];
    uint32_t pending[N];
    const int last_words = blocks - (units() - 1) * W::in_unit;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      pending[n] = 0;
#pragma unroll
      for (int i = 0; i < looks; ++i) {
        seen[n][i] = make_uint4(0, 0, 0, 0);
        if (row[n] >= 0 && lane + 32 * i < units()) pending[n] |= 1u << i;
      }
    }
    if constexpr (C::rows <= 4)  // with more the words come later than that anyway
      while (short_clock() - published < kFirstPollClocks) {  // no word can be complete yet, and a look that finds nothing delays the next
      }
    for (uint32_t count = 0;; ++count) {
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < looks; ++i)
          if (awaited(pending[n], i)) seen[n][i] = W::load(unit(epoch, row[n], lane + 32 * i));
      bool done = true;
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < looks; ++i)
          if (awaited(pending[n], i) &&
              W::differs(seen[n][i], epoch & W::epoch_mask, lane + 32 * i + 1 == units() ? last_words : W::in_unit) == 0)
            pending[n] &= ~(1u << i);
        done = done && pending[n] == 0;
      }
      if (__all_sync(~0u, done) || count >= max_polls) break;
    }
    uint32_t missed = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      winner[n] = W::winner(seen[n], lane, vocab_tiles, grid_reciprocal);
      missed |= pending[n];
    }
    return missed;
  }
};

}  // namespace wts
