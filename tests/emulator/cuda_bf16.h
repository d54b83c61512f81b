// bf16 as CUDA has it: rounded to nearest even, one NaN.
#pragma once
#include "cuda_runtime.h"

struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { uint16_t low, high; };
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  const uint32_t bits = __float_as_uint(value);
  if (value != value) return {0x7fff};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
inline float __bfloat162float(__nv_bfloat16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {__float2bfloat16_rn(low).bits, __float2bfloat16_rn(high).bits}; }
inline __nv_bfloat162 __float2bfloat162_rn(float value) { return __floats2bfloat162_rn(value, value); }
inline float __low2float(__nv_bfloat162 pair) { return __bfloat162float({pair.low}); }
inline float __high2float(__nv_bfloat162 pair) { return __bfloat162float({pair.high}); }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 pair) { return {pair.low}; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 pair) { return {pair.high}; }
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  return __floats2bfloat162_rn(__low2float(a) * __low2float(b) + __low2float(c), __high2float(a) * __high2float(b) + __high2float(c));
}
