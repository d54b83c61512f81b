// Gumbel noise in the stream of SGLang's step sampler: Philox4x32-10 under a 64-bit key, counter (quad of four draft ids,
// batch row, step, offset), word k for draft id 4 quad + k; then the operations of its kernel: the word to fp32, plus one half, times
// 2^-32, log1p, log. A sampled value is y / T + noise with Triton's division of fp32.
#pragma once
#include <cstdint>
#include "walk/ptx.cuh"

namespace wts {

__device__ __forceinline__ uint4 philox(uint2 key, uint4 c) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t c0 = c.x, c2 = c.z;
    c.x = __umulhi(0xCD9E8D57u, c2) ^ c.y ^ key.x;
    c.z = __umulhi(0xD2511F53u, c0) ^ c.w ^ key.y;
    c.y = 0xCD9E8D57u * c2;
    c.w = 0xD2511F53u * c0;
    key.x += 0x9E3779B9u;
    key.y += 0xBB67AE85u;
  }
  return c;
}

__device__ __forceinline__ float uniform_of(uint32_t word) {
  return __fmul_rn(__fadd_rn(__uint2float_rn(word), 0.5f), 2.3283064365386963e-10f);
}
// A logit with the noise of its word; a greedy one has none.
__device__ __forceinline__ float sampled_value(float y, float temperature, uint32_t word) {
  return temperature == 0.0f ? y : __fadd_rn(divided(y, temperature), -logf(-log1pf(-uniform_of(word))));
}

// Noise words of a draft id and the next, the first of them even.
__device__ __forceinline__ uint2 noise_words(uint2 key, int id, int batch, int step, uint32_t offset) {
  const uint4 quad = philox(key, make_uint4(id / 4, batch, step, offset));
  return id & 2 ? make_uint2(quad.z, quad.w) : make_uint2(quad.x, quad.y);
}
// Two logits with their noise. Kept out of line, so that the walk's registers stay registers.
__device__ __noinline__ float2 sampled_pair(float2 y, float temperature, uint2 key, int id, int batch, int step, uint32_t offset) {
  const uint2 words = noise_words(key, id, batch, step, offset);
  return make_float2(sampled_value(y.x, temperature, words.x), sampled_value(y.y, temperature, words.y));
}
// Two rows of any batch rows.
__device__ __noinline__ float2 sampled_rows(float2 y, float2 temperature, uint2 key, int2 id, int2 batch, int step, uint32_t offset) {
  const uint2 first = noise_words(key, id.x & ~1, batch.x, step, offset), second = noise_words(key, id.y & ~1, batch.y, step, offset);
  return make_float2(sampled_value(y.x, temperature.x, id.x & 1 ? first.y : first.x), sampled_value(y.y, temperature.y, id.y & 1 ? second.y : second.x));
}

}  // namespace wts
