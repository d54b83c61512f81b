// The exchange word: ordered value (32 bits) | inverted row index (20 bits) | epoch (12 bits), so that the maximum of the
// words is the largest value and, among equal values, the lowest index.
//
// With bf16-rounded values a block needs no 64-bit arithmetic of its own: 16 ordered bits and the inverted index of the
// row inside the block fit in one 32-bit key, which redux.sync reduces in one instruction.
#pragma once
#include <cstdint>
#include <cstring>
#include <cuda_bf16.h>
#include "wts_abi.h"

namespace wts {

// Two bf16 values (low, high half) to two 16-bit integers of the same order. NaN is already canonical (0x7fff, from the
// conversion), so it orders above +inf; adding +0 makes -0 equal to +0.
__device__ __forceinline__ uint32_t ordered_bf16x2(__nv_bfloat162 pair) {
  const __nv_bfloat162 one = __float2bfloat162_rn(1.0f), zero = __float2bfloat162_rn(0.0f);
  const __nv_bfloat162 sum = __hfma2(pair, one, zero);
  uint32_t bits;
  memcpy(&bits, &sum, 4);
  uint32_t sign;  // 0xffff in each negative half: prmt's sign-replicating selectors, which __byte_perm does not offer
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(sign) : "r"(bits));
  return bits ^ (sign | 0x80008000u);
}

// Keys of the two halves; inverse_row is 0xffff - row of the low half, the high half is the next row.
__device__ __forceinline__ uint32_t best_key(uint32_t best, uint32_t ordered, uint32_t inverse_row) {
  best = max(best, __byte_perm(ordered, inverse_row, 0x1054));
  return max(best, __byte_perm(ordered, inverse_row - 1, 0x3254));
}

__device__ __forceinline__ uint64_t word_from_key(uint32_t key, uint32_t first_row, uint32_t epoch) {
  const uint32_t row = first_row + (0xffffu - (key & 0xffffu));
  const uint32_t value = (key & 0xffff0000u) | ((key & 0x80000000u) ? 0u : 0xffffu);
  const uint32_t low = ((kIndexMask - row) << kEpochBits) | (epoch & kEpochMask);
  return (static_cast<uint64_t>(value) << 32) | low;
}

__device__ __forceinline__ int row_from_word(uint64_t word) {
  return static_cast<int>(kIndexMask - (static_cast<uint32_t>(word) >> kEpochBits));
}

}  // namespace wts
