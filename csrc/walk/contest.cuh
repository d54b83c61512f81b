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

// The same where rows come a few at a time and none is kept, as those of streamed slots of many batch rows: each value lies between two bounds. A row
// leads where it surely exceeds the leader; one that surely trails it is left; one of which neither is sure is evaluated at once.
struct Bounds {
  float low, high;
};

// What a batch row's bounds are made with.
struct alignas(16) TwoBounds {
  float inverse_high, inverse_low;  // 1 / T, moved up and down
  float slope, slack;
  // The slack covers the errors of both logarithms, of the series and of the exact operations' roundings, together below 1.7e-5, and 6e-7 of the quotient.
  __device__ __forceinline__ static TwoBounds at(float temperature) {
    if (temperature == 0.0f) return {1.0f, 1.0f, 0.0f, 0.0f};  // no noise
    const float inverse = 1.0f / temperature;
    return {__fmul_rn(inverse, 1.0000008f), __fmul_rn(inverse, 0.9999992f), -0.69314718f, 2e-5f};
  }
  // Of y / T + g. Not ordered where they are not known: then the value is evaluated.
  __device__ __forceinline__ Bounds of(float y, uint32_t word) const {
    const float u = uniform_of(word), x = __fmul_rn(y, inverse_high), z = __fmul_rn(y, inverse_low);
    const float series = __fmul_rn(u, __fmaf_rn(__fmaf_rn(__fmaf_rn(0.25f, u, 0.33333334f), u, 0.5f), u, 1.0f));
    const float log = approximate_log2(u < 0.0625f ? series : __fmul_rn(-0.69314718f, approximate_log2(__fsub_rn(1.0f, u))));
    return {__fadd_rn(fminf(x, z), __fmaf_rn(log, slope, -slack)), __fadd_rn(fmaxf(x, z), __fmaf_rn(log, slope, slack))};
  }
};

// The leading row of one lane and batch row.
struct Front {
  Bounds bounds;
  float y;
  int row;

  // Before the first row, for which it stands until one exceeds -inf. Of a batch row that is not there none is looked at.
  __device__ __forceinline__ void start(int first_row, bool there) {
    y = -INFINITY, row = first_row;
    bounds.low = there ? -3.4028235e38f : INFINITY, bounds.high = there ? -INFINITY : INFINITY;
  }
  // Takes a row in, or leaves it; returns whether neither is sure.
  __device__ __forceinline__ bool meets(const Bounds& other, float other_y, int other_row) {
    const bool leads = other.low > bounds.high, open = !(leads || other.high < bounds.low);
    if (leads) bounds = other, y = other_y, row = other_row;
    return open;
  }
};

}  // namespace wts
