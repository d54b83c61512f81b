// sigmoid, tanh and SiLU in fp32, each operation rounded on its own, so that wts_lab/recurrent_twin.py is equal bit for bit; and
// division without branches.
//
// Both functions come from e^y - 1 for y <= 0, without cancellation near 0. With n = round(y / ln 2) and r = y - n ln 2 in two
// parts (n times the first part is exact), e^y - 1 = 2^n p + (2^n - 1), where p = r + r^2 q(r) is e^r - 1; the quartic q has 1/2
// and the four fitted constants below (minimax on |r| <= ln 2 / 2: relative error 1.5e-8 of p). Where e^y would not be a normal
// number, n = -127 makes the power 0: sigmoid is then 0 or 1. NaN passes. At most 3 units in the last place from fp64
// (tests/wts_lab/test_recurrent_twin.py, which also holds the constants of both sides together).
//
// Nothing here branches: a branch would keep the compiler from working on several elements at once. An earlier form with a
// select for saturation and __fdiv_rn was compiled to three branches an activation.
#pragma once
#include "walk/ptx.cuh"
#include <cstdint>

namespace wts {

constexpr float kPerLn2 = 1.44269502f;        // 1 / ln 2
constexpr float kLn2High = 0.693359375f;      // 355 / 512
constexpr float kLn2Low = -2.12194442e-4f;    // ln 2 - kLn2High
constexpr float kExp3 = 0.166665480f, kExp4 = 0.0416668579f, kExp5 = 0.00836622901f, kExp6 = 0.00138982735f;
constexpr float kSaturation = 88.0f;
constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23: added to |x| < 2^22 it leaves x, rounded half to even, in the low bits

// n / d in IEEE rounding, in the steps of __fdiv_rn without its test for operands that need others: d from 2^-60 to 2^122, and n
// at least d / 4 in magnitude, or d = 1 or 2 (below, a remainder may be inexact and the quotient off by one unit).
struct Divisor {
  float value, inverse;

  __device__ __forceinline__ explicit Divisor(float d) : value(d) {
    inverse = approximate_reciprocal(d);
    inverse = __fmaf_rn(inverse, __fmaf_rn(-d, inverse, 1.0f), inverse);
  }
  __device__ __forceinline__ constexpr Divisor(float d, float inverse_) : value(d), inverse(inverse_) {}

  __device__ __forceinline__ float divide(float n) const {
    const float quotient = __fmul_rn(n, inverse);
    return __fmaf_rn(inverse, __fmaf_rn(-value, quotient, n), quotient);
  }
};

// e^y = power * (e_r - 1) + power, for y <= 0.
struct Exponential {
  float power;     // 2^n
  float fraction;  // e^r - 1

  __device__ __forceinline__ explicit Exponential(float y) {
    y = larger_or_nan(y, -kSaturation);
    const float shifted = __fadd_rn(__fmul_rn(y, kPerLn2), kRoundingShift);
    const float n = __fsub_rn(shifted, kRoundingShift);
    const float r = __fsub_rn(__fsub_rn(y, __fmul_rn(n, kLn2High)), __fmul_rn(n, kLn2Low));
    const float square = __fmul_rn(r, r);
    const float low = __fadd_rn(0.5f, __fmul_rn(kExp3, r));
    const float high = __fadd_rn(__fadd_rn(kExp4, __fmul_rn(kExp5, r)), __fmul_rn(kExp6, square));
    fraction = __fadd_rn(r, __fmul_rn(square, __fadd_rn(low, __fmul_rn(square, high))));
    power = __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u);
  }
};

// The denominators are 1 to 2, and 1 or 2 exactly where a numerator is tiny.
__device__ __forceinline__ float sigmoid(float x) {
  const Exponential e(-fabsf(x));
  const float small = __fadd_rn(__fmul_rn(e.power, e.fraction), e.power);
  return Divisor(__fadd_rn(1.0f, small)).divide(x < 0.0f ? small : 1.0f);
}

__device__ __forceinline__ float hyperbolic_tangent(float x) {
  const Exponential e(__fmul_rn(-2.0f, fabsf(x)));
  const float less_one = __fadd_rn(__fmul_rn(e.power, e.fraction), __fsub_rn(e.power, 1.0f));
  return copysignf(Divisor(__fadd_rn(2.0f, less_one)).divide(-less_one), x);
}

__device__ __forceinline__ float silu(float x) { return __fmul_rn(x, sigmoid(x)); }

}  // namespace wts
