// What the blocks compare: a value in an order of its own, and the row that has it, so that the maximum is the largest value
// and, among equal values, the lowest index. NaN orders above all, -0 equals +0.
//
//   narrow, 32 bits: bf16 value 16 | inverted row in the block 11 | epoch 5. One redux.sync reduces it, and four blocks' words are one
//           16-byte load. The block is known from where the word lies.
//   wide, 64 bits: fp32 value 32 | inverted row of the vocabulary 20 | epoch 12.
#pragma once
#include <cstdint>
#include <cstring>
#include "walk/ptx.cuh"
#include "wts_abi.h"

namespace wts {

// Two bf16 values (low, high half) to two 16-bit integers of the same order. NaN is already canonical (0x7fff, from the
// conversion), so it orders above +inf; adding +0 makes -0 equal to +0.
__device__ __forceinline__ uint32_t ordered_bf16x2(__nv_bfloat162 pair) {
  const __nv_bfloat162 one = __float2bfloat162_rn(1.0f), zero = __float2bfloat162_rn(0.0f);
  const __nv_bfloat162 sum = __hfma2(pair, one, zero);
  uint32_t bits;
  memcpy(&bits, &sum, 4);
  return bits ^ (signs_of_halves(bits) | 0x80008000u);
}

// The same for fp32: an addition's NaN is canonical (0x7fffffff).
__device__ __forceinline__ uint32_t ordered_float(float value) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
}

// The best of one lane, and of a warp's lanes that share a batch row. Rows are offered in ascending order.
struct NarrowBest {
  using Key = uint32_t;
  uint32_t key = 0;
  static __device__ __forceinline__ uint32_t place(int row) { return (kNarrowRows - 1 - row) << kNarrowEpochBits; }
  // Values of two neighbouring rows; `place` is that of the first one.
  __device__ __forceinline__ void offer(uint32_t ordered_pair, uint32_t place) {
    key = max(key, __byte_perm(ordered_pair, place, 0x1054));
    key = max(key, __byte_perm(ordered_pair, place - (1u << kNarrowEpochBits), 0x3254));
  }
  template <int Together>
  __device__ __forceinline__ void reduce() {
    if constexpr (Together == 1) {
      key = __reduce_max_sync(~0u, key);
    } else {
#pragma unroll
      for (int distance = 16; distance >= Together; distance /= 2) take(*this, distance);
    }
  }
  // The larger of this and of what the lane at a distance gives.
  __device__ __forceinline__ void take(const NarrowBest& given, int distance) { key = max(key, __shfl_xor_sync(~0u, given.key, distance)); }
};

struct WideBest {
  using Key = uint64_t;
  uint32_t value = 0, inverse = 0;  // inverse: kMaxVocabulary - 1 - row of the vocabulary
  __device__ __forceinline__ void offer(uint32_t ordered, uint32_t inverse_row) {
    if (ordered > value) value = ordered, inverse = inverse_row;
  }
  template <int Together>
  __device__ __forceinline__ void reduce() {
    if constexpr (Together == 1) {
      const uint32_t top = __reduce_max_sync(~0u, value);
      inverse = __reduce_max_sync(~0u, value == top ? inverse : 0u);
      value = top;
    } else {
#pragma unroll
      for (int distance = 16; distance >= Together; distance /= 2) take(*this, distance);
    }
  }
  __device__ __forceinline__ void take(const WideBest& given, int distance) {
    const uint32_t other = __shfl_xor_sync(~0u, given.value, distance), place = __shfl_xor_sync(~0u, given.inverse, distance);
    if (other > value || (other == value && place > inverse)) value = other, inverse = place;
  }
  __device__ __forceinline__ uint64_t key() const { return (static_cast<uint64_t>(value) << 32) | (inverse << kEpochBits); }
};

// The best of a warp's lanes that share a batch row, for one, two, four or eight quads at once: lanes that are apart give each other half of their
// quads, so that the last ones reduce one quad each. Leaves in best[0] that of quad spread_quad<N>(lane), in lanes that spread_holds names.
template <int N, class Best>
__device__ __forceinline__ void reduce_quads(Best (&best)[N], int lane) {
  static_assert(N == 1 || N == 2 || N == 4 || N == 8, "quads are halved");
  int distance = 16;
#pragma unroll
  for (int left = N; left > 1; left /= 2, distance /= 2) {
    const bool upper = lane & distance;
#pragma unroll
    for (int i = 0; i < left / 2; ++i) {
      const Best given = upper ? best[i] : best[i + left / 2];
      if (upper) best[i] = best[i + left / 2];
      best[i].take(given, distance);
    }
  }
  for (; distance >= 4; distance /= 2) best[0].take(best[0], distance);
}
template <int N>
__device__ __forceinline__ int spread_quad(int lane) { return N == 1 ? 0 : lane / (32 / N); }
template <int N>
__device__ __forceinline__ bool spread_holds(int lane) { return lane % (32 / N) < 4; }

}  // namespace wts
