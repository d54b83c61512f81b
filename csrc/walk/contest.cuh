// Sampled selection with one exact noise a lane instead of one a row. The values to compare are y / T + g, with the Gumbel noise
// g = -log(-log1p(-u)) of SGLang's stream. Since -log1p(-u) >= u + u^2 / 2 + u^3 / 3, minus the logarithm of that is a bound of the noise, and
// nearly the noise itself where it is large: one base-2 logarithm of the hardware. Only the row with a lane's highest bound is evaluated; if
// another bound reaches the warp's best value, that lane evaluates all its rows: less than one warp and batch row in 10,000 where logits are normal.
#pragma once
#include "noise.cuh"

namespace wts {

// What a batch row's bounds are made with. The margins cover the errors of the approximate logarithm and reciprocal, of Triton's
// division, and of the exact operations' roundings: together below 1.2e-5, and 4.3e-7 of the quotient.
struct Bound {
  float inverse_high, inverse_low;  // 1 / T, moved up and down
  float slope, margin;              // of log2

  // Temperature zero has no noise.
  __device__ __forceinline__ explicit Bound(float temperature) {
    const bool sampled = temperature != 0.0f;
    const float inverse = sampled ? approximate_reciprocal(temperature) : 1.0f;
    inverse_high = __fmul_rn(inverse, sampled ? 1.0000005f : 1.0f), inverse_low = __fmul_rn(inverse, sampled ? 0.9999995f : 1.0f);
    slope = sampled ? -0.69314718f : 0.0f, margin = sampled ? 1.5e-5f : 0.0f;
  }
  // Not below y / T + g.
  __device__ __forceinline__ float of(float y, uint32_t word) const {
    const float u = uniform_of(word), log = approximate_log2(__fmul_rn(u, __fmaf_rn(__fmaf_rn(0.33333331f, u, 0.5f), u, 1.0f)));
    return __fadd_rn(fmaxf(__fmul_rn(y, inverse_high), __fmul_rn(y, inverse_low)), __fmaf_rn(log, slope, margin));
  }
};

// The rows of one lane and batch row, offered in ascending order.
struct Contest {
  float highest, next;  // bounds
  float value;          // y of the highest, with its noise word and its number
  uint32_t word;
  int number;
  bool unordered;  // a bound is no number

  template <int Number>
  __device__ __forceinline__ void offer(float bound, float y, uint32_t noise_word) {
    if constexpr (Number == 0) {
      highest = bound, next = -INFINITY, value = y, word = noise_word, number = 0, unordered = bound != bound;
    } else {
      const bool leads = bound > highest;
      next = fmaxf(next, leads ? highest : bound);
      highest = leads ? bound : highest, value = leads ? y : value, word = leads ? noise_word : word, number = leads ? Number : number;
      unordered |= bound != bound;
    }
  }
};

}  // namespace wts
