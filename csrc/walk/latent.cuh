// From fp32 latents u to the operand of the products, in shared memory: the order of wts_lab/packing.py and the arithmetic of
// wts_lab/quantize.py, or one rounding to bf16. A latent row is [2 * rank bytes of packed elements][s1, s2, halt, 0].
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
  float first = 0.0f, second = 0.0f;  // s1, s2; 0 in bf16, where nothing is scaled

  LatentScales() = default;
  __device__ __forceinline__ explicit LatentScales(uint32_t largest_bits) {
    constexpr uint32_t infinity = 0x7f800000u, nan = 0x7fffffffu;
    first = __fdiv_rn(__uint_as_float(largest_bits), 127.0f);
    if (first < 254.0f * 0x1p-126f) first = 0.0f;  // s2 would not be a normal number
    if (largest_bits >= infinity) first = __uint_as_float(nan);
    second = __fdiv_rn(first, 254.0f);
  }
};

// Round-half-even(value / scale) as a float that holds the code in its low byte. Codes stay within +-127 by themselves: the
// largest quotient rounds to 127, and what the first vector leaves is at most 127.002 steps of the second.
__device__ __forceinline__ float shifted_code(float value, float scale) {
  return __fadd_rn(__fdiv_rn(value, scale == 0.0f ? 1.0f : scale), kRoundingShift);
}

// Elements `element` (even) and the next of one latent row.
template <class C>
__device__ __forceinline__ void store_pair(char* latent_row, int element, float2 u, LatentScales scales) {
  if constexpr (C::int8x2) {
    char* const at = latent_row + element / 32 * 64 + element % 16 / 4 * 8 + element % 32 / 16 * 4 + element % 4;
    const float x = shifted_code(u.x, scales.first), y = shifted_code(u.y, scales.first);
    const float x_left = __fsub_rn(u.x, __fmul_rn(scales.first, __fsub_rn(x, kRoundingShift)));
    const float y_left = __fsub_rn(u.y, __fmul_rn(scales.first, __fsub_rn(y, kRoundingShift)));
    const float x_second = shifted_code(x_left, scales.second), y_second = shifted_code(y_left, scales.second);
    *reinterpret_cast<uint16_t*>(at) = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x0040);
    *reinterpret_cast<uint16_t*>(at + 32) = __byte_perm(__float_as_uint(x_second), __float_as_uint(y_second), 0x0040);
  } else {
    char* const at = latent_row + element / 16 * 32 + element % 8 / 2 * 8 + element % 16 / 8 * 4;
    *reinterpret_cast<uint32_t*>(at) = round_to_bf16(u);
  }
}

template <class C>
__device__ __forceinline__ LatentScales scales_of(uint32_t largest_bits) {
  if constexpr (C::int8x2) return LatentScales(largest_bits);
  return LatentScales();
}

template <class C>
__device__ __forceinline__ void store_header(char* latent_row, LatentScales scales) {
  *reinterpret_cast<float4*>(latent_row + C::latent_header) = make_float4(scales.first, scales.second, 0.0f, 0.0f);
}

// The gated head's latent u = sigmoid(P + t) * e, by one warp for one row of the batch. The token's row of the table is
// [e, t] (t = Wg_e e), P = positions[row, position]. Lane l takes elements 8 (l + 32 c) + j; every load is issued before the
// first use. The last writes are not yet visible to other warps: a barrier follows.
template <class C>
__device__ __forceinline__ void gate_latent(const WalkParams& p, int row, int token, int position, char* latent_row, int lane) {
  constexpr int chunks = (C::rank + 255) / 256;
  const uint16_t* const entry = p.token_table + static_cast<int64_t>(token) * (2 * C::rank) + 8 * lane;
  const float* const term = p.positions + (static_cast<int64_t>(row) * p.steps + position) * C::rank + 8 * lane;
  uint4 embedding[chunks], gate[chunks];
  float4 place[chunks][2];
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    const bool present = 8 * (lane + 32 * c) < C::rank;
    embedding[c] = gate[c] = make_uint4(0, 0, 0, 0);
    place[c][0] = place[c][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (!present) continue;
    embedding[c] = load_fragment(entry + 256 * c);
    gate[c] = load_fragment(entry + C::rank + 256 * c);
    place[c][0] = *reinterpret_cast<const float4*>(term + 256 * c);
    place[c][1] = *reinterpret_cast<const float4*>(term + 256 * c + 4);
  }
  float2 u[chunks][4];
  uint32_t largest = 0;
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    const uint32_t* const e = &embedding[c].x;
    const uint32_t* const t = &gate[c].x;
    const float2* const at = reinterpret_cast<const float2*>(place[c]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 factor = bf16_pair(e[i]), shift = bf16_pair(t[i]);
      u[c][i].x = __fmul_rn(sigmoid(__fadd_rn(at[i].x, shift.x)), factor.x);
      u[c][i].y = __fmul_rn(sigmoid(__fadd_rn(at[i].y, shift.y)), factor.y);
      largest = max(largest, magnitude_bits(u[c][i]));
    }
  }
  const LatentScales scales = scales_of<C>(__reduce_max_sync(~0u, largest));
#pragma unroll
  for (int c = 0; c < chunks; ++c)
    if (8 * (lane + 32 * c) < C::rank)
#pragma unroll
      for (int i = 0; i < 4; ++i) store_pair<C>(latent_row, 8 * (lane + 32 * c) + 2 * i, u[c][i], scales);
  if (lane == 0) store_header<C>(latent_row, scales);
}

}  // namespace wts
