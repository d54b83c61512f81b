// From fp32 latents u to the operand of the products, in shared memory: the order of wts_lab/packing.py and the arithmetic of
// wts_lab/quantize.py, or one rounding to bf16. A latent has a header {s1, s2, 0, 0}; tile.cuh says where both lie.
//
// The largest |u| of a row travels as the bits of that float: unsigned integers order as magnitudes do, redux.sync reduces
// them in one instruction, and NaN stays on top. A row that is not finite gets NaN scales, which makes each of its logits NaN.
#pragma once
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include "activation.cuh"
#include "tile.cuh"

namespace wts {

__device__ __forceinline__ uint32_t magnitude_bits(float u) { return __float_as_uint(u) & 0x7fffffffu; }
__device__ __forceinline__ uint32_t magnitude_bits(float2 u) { return max(magnitude_bits(u.x), magnitude_bits(u.y)); }

__device__ __forceinline__ float2 bf16_pair(uint32_t bits) {
  return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}
__device__ __forceinline__ uint32_t round_to_bf16(float2 pair) {
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(pair.x, pair.y);
  uint32_t bits;
  memcpy(&bits, &rounded, 4);
  return bits;
}

struct LatentScales {
  float first, second;  // s1, s2
  float lift;           // tiny scales are divided by after a power of two has made them larger
  Divisor by_first, by_second;

  __device__ __forceinline__ explicit LatentScales(uint32_t largest_bits)
      : first(first_scale(largest_bits)), second(Divisor(254.0f, 1.0f / 254.0f).divide(first)),
        lift(first < 0x1p-50f ? 0x1p64f : 1.0f), by_first(divisor(first * lift)), by_second(divisor(second * lift)) {}

  // Round-half-even(u / s1) and what it leaves, in s2: floats that hold the code in the low byte. Codes stay within +-127 by
  // themselves: the largest quotient rounds to 127, and what the first vector leaves is at most 127.002 steps of the second.
  __device__ __forceinline__ void split(float u, float& code, float& second_code) const {
    code = __fadd_rn(by_first.divide(__fmul_rn(u, lift)), kRoundingShift);
    const float left = __fsub_rn(u, __fmul_rn(first, __fsub_rn(code, kRoundingShift)));
    second_code = __fadd_rn(by_second.divide(__fmul_rn(left, lift)), kRoundingShift);
  }

 private:
  __device__ __forceinline__ static float first_scale(uint32_t largest_bits) {
    constexpr uint32_t infinity = 0x7f800000u, nan = 0x7fffffffu;
    const float scale = Divisor(127.0f, 1.0f / 127.0f).divide(__uint_as_float(largest_bits));
    if (largest_bits >= infinity) return __uint_as_float(nan);
    return scale < 254.0f * 0x1p-126f ? 0.0f : scale;  // s2 would not be a normal number
  }
  __device__ __forceinline__ static Divisor divisor(float scale) { return Divisor(scale == 0.0f ? 1.0f : scale); }
};

// Elements `element` (even) and the next of one latent row.
template <class C>
__device__ __forceinline__ void store_pair(char* latents, int row, int element, float2 u, const LatentScales& scales) {
  char* const at = LatentPlace<C>::pair(latents, row, element);
  if constexpr (C::int8x2) {
    float x, x_second, y, y_second;
    scales.split(u.x, x, x_second);
    scales.split(u.y, y, y_second);
    *reinterpret_cast<uint16_t*>(at) = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x0040);
    *reinterpret_cast<uint16_t*>(at + LatentPlace<C>::second_vector) = __byte_perm(__float_as_uint(x_second), __float_as_uint(y_second), 0x0040);
  } else {
    *reinterpret_cast<uint32_t*>(at) = round_to_bf16(u);
  }
}

// s1 and s2; zeros in bf16, where nothing is scaled.
template <class C>
__device__ __forceinline__ void store_header(char* latents, int row, const LatentScales& scales) {
  *reinterpret_cast<float4*>(LatentPlace<C>::header(latents, row)) =
      C::int8x2 ? make_float4(scales.first, scales.second, 0.0f, 0.0f) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Entries of a token's row of the table: gated [e, Wg_e e], rnn [a, c, o], domino [r, z, n].
template <class C>
constexpr int table_entries = C::head == HeadKind::gated ? 2 * C::rank : C::head == HeadKind::rnn ? 3 * C::rank : 3 * C::gru;

// A token's row of the table into L2, by one warp: for the token that a block would like to see win.
template <class C>
__device__ __forceinline__ void prefetch_entry(const WalkParams& p, int token, int lane) {
  const uint16_t* const row = p.token_table + static_cast<int64_t>(token) * table_entries<C>;
#pragma unroll
  for (int first = 0; first < table_entries<C>; first += 32 * 64)
    if (first + 64 * lane < table_entries<C>) prefetch_l2(row + first + 64 * lane);
}

// The gated head's latent u = sigmoid(P + t) * e, by one warp for one row of the batch. The token's row of the table is
// [e, t] (t = Wg_e e), P = positions[row, position]. Lane l takes elements 8 (l + 32 c) + j; every load is issued before the
// first use. The last writes are not yet visible to other warps: a barrier follows.
template <class C>
__device__ __forceinline__ void gate_latent(const WalkParams& p, int row, int token, int position, char* latents, int lane) {
  constexpr int chunks = (C::rank + 255) / 256;
  const auto present = [&](int c) { return C::rank % 256 == 0 || 8 * (lane + 32 * c) < C::rank; };
  const uint16_t* const entry = p.token_table + static_cast<int64_t>(token) * table_entries<C> + 8 * lane;
  const float* const term = p.positions + (static_cast<int64_t>(row) * p.steps + position) * C::rank + 8 * lane;
  uint4 embedding[chunks], gate[chunks], place[chunks][2];
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    embedding[c] = gate[c] = place[c][0] = place[c][1] = make_uint4(0, 0, 0, 0);
    if (!present(c)) continue;
    embedding[c] = load_fragment(entry + 256 * c);
    gate[c] = load_fragment(entry + C::rank + 256 * c);
    place[c][0] = load_fragment(term + 256 * c);
    place[c][1] = load_fragment(term + 256 * c + 4);
  }
  float2 u[chunks][4];
  uint32_t largest = 0;
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    const uint32_t* const e = &embedding[c].x;
    const uint32_t* const t = &gate[c].x;
    const uint32_t* const at = &place[c][0].x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 factor = bf16_pair(e[i]), shift = bf16_pair(t[i]);
      u[c][i].x = __fmul_rn(sigmoid(__fadd_rn(__uint_as_float(at[2 * i]), shift.x)), factor.x);
      u[c][i].y = __fmul_rn(sigmoid(__fadd_rn(__uint_as_float(at[2 * i + 1]), shift.y)), factor.y);
      largest = max(largest, magnitude_bits(u[c][i]));
    }
  }
  const LatentScales scales(__reduce_max_sync(~0u, largest));
#pragma unroll
  for (int c = 0; c < chunks; ++c)
    if (present(c))
#pragma unroll
      for (int i = 0; i < 4; ++i) store_pair<C>(latents, row, 8 * (lane + 32 * c) + 2 * i, u[c][i], scales);
  if (lane == 0) store_header<C>(latents, row, scales);
}

}  // namespace wts
