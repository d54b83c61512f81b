// sigmoid, tanh and SiLU in fp32, each operation rounded on its own, so that wts_lab/recurrent_twin.py is equal bit for bit.
//
// Both come from e^y - 1 for y <= 0, without cancellation near 0. With n = round(y / ln 2) and r = y - n ln 2 in two parts (n
// times the first part is exact), e^y - 1 = 2^n p + (2^n - 1), where p = r + r^2 q(r) is e^r - 1; the quartic q has 1/2 and
// the four fitted constants below (minimax on |r| <= ln 2 / 2: relative error 1.5e-8 of p). Beyond kSaturation e^y counts as 0:
// sigmoid is then 0 or 1 and tanh is 1, as their fp32 roundings but for sigmoid below 2^-125. NaN passes. Measured against
// fp64: at most 3 units in the last place (tests/wts_lab/test_recurrent_twin.py, which also holds the constants of both sides
// together).
#pragma once
#include <cstdint>

namespace wts {

constexpr float kPerLn2 = 1.44269502f;        // 1 / ln 2
constexpr float kLn2High = 0.693359375f;      // 355 / 512
constexpr float kLn2Low = -2.12194442e-4f;    // ln 2 - kLn2High
constexpr float kExp3 = 0.166665480f, kExp4 = 0.0416668579f, kExp5 = 0.00836622901f, kExp6 = 0.00138982735f;
constexpr float kSaturation = 87.0f;
constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23: added to |x| < 2^22 it leaves x, rounded half to even, in the low bits

// numerator / denominator in IEEE rounding, for a denominator from 1 to 2 and |numerator| <= 1: what __fdiv_rn does in that
// range, without its branch to the rest. A numerator small enough to make a remainder inexact comes with a denominator of
// exactly 1 or 2 here, where the quotient is exact.
__device__ __forceinline__ float divide_near_one(float numerator, float denominator) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(denominator));
  inverse = __fmaf_rn(inverse, __fmaf_rn(-denominator, inverse, 1.0f), inverse);
  float quotient = __fmul_rn(numerator, inverse);
  quotient = __fmaf_rn(inverse, __fmaf_rn(-denominator, quotient, numerator), quotient);
  return __fmaf_rn(inverse, __fmaf_rn(-denominator, quotient, numerator), quotient);
}

// e^y = power * (e_r - 1) + power, for 0 >= y >= -kSaturation.
struct Exponential {
  float power;       // 2^n
  float fraction;    // e^r - 1

  __device__ __forceinline__ explicit Exponential(float y) {
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

__device__ __forceinline__ float sigmoid(float x) {
  const float y = -fabsf(x);
  const Exponential e(y);
  const float small = y < -kSaturation ? 0.0f : __fadd_rn(__fmul_rn(e.power, e.fraction), e.power);
  return divide_near_one(x < 0.0f ? small : 1.0f, __fadd_rn(1.0f, small));
}

__device__ __forceinline__ float hyperbolic_tangent(float x) {
  const float y = __fmul_rn(-2.0f, fabsf(x));
  const Exponential e(y);
  const float less_one = y < -kSaturation ? -1.0f : __fadd_rn(__fmul_rn(e.power, e.fraction), __fsub_rn(e.power, 1.0f));
  return copysignf(divide_near_one(-less_one, __fadd_rn(2.0f, less_one)), x);
}

__device__ __forceinline__ float silu(float x) { return __fmul_rn(x, sigmoid(x)); }

}  // namespace wts
