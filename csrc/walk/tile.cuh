// Loops over constants, and the operand that every tile is multiplied with.
#pragma once
#include <cstdint>
#include <utility>
#include "config.cuh"
#include "walk/ptx.cuh"

namespace wts {

// A loop whose index is a constant expression: f(Index<0>{}), ..., f(Index<N - 1>{}).
template <int I>
struct Index {
  __host__ __device__ constexpr operator int() const { return I; }
};
template <class F, int... I>
__device__ __forceinline__ void index_loop(F& f, std::integer_sequence<int, I...>) {
  (f(Index<I>{}), ...);
}
template <int N, class F>
__device__ __forceinline__ void for_each_index(F&& f) {
  index_loop(f, std::make_integer_sequence<int, N>{});
}

// Where a batch row's latent lies in shared memory: its header, the 16-byte chunks of a packed row (wts_lab/packing.py), and pairs of
// elements, the second vector `second_vector` bytes behind the first.
template <class C>
struct LatentPlace {
  static constexpr int second_vector = C::grouped ? 16 : 32;

  static __device__ __forceinline__ char* header(char* latents, int row) {
    return C::grouped ? latents + C::operand_bytes + row * kLatentHeaderBytes : latents + row * C::latent_stride + C::latent_header;
  }
  static __device__ __forceinline__ char* pair(char* latents, int row, int element) {
    if constexpr (C::grouped)
      return latents + element / 32 * C::operand_step_bytes + element % 32 / 16 * C::half_bytes + 2 * row * 16 + element % 16;
    char* const at = latents + row * C::latent_stride;
    return C::int8x2 ? at + element / 32 * 64 + element % 16 / 4 * 8 + element % 32 / 16 * 4 + element % 4
                     : at + element / 16 * 32 + element % 8 / 2 * 8 + element % 16 / 8 * 4;
  }
  static __device__ __forceinline__ void store_chunk(char* latents, int row, int i, const uint4& chunk) {
    if constexpr (C::grouped) {
      if (i == C::latent_bytes / 16 - 1) {
        *reinterpret_cast<uint4*>(header(latents, row)) = chunk;
        return;
      }
      // A chunk holds four elements of the k-step's first half, four of its second, and the next four of each.
      char* const at = latents + i / 4 * C::operand_step_bytes + (2 * row + i / 2 % 2) * 16 + i % 2 * 8;
      *reinterpret_cast<uint2*>(at) = make_uint2(chunk.x, chunk.z);
      *reinterpret_cast<uint2*>(at + C::half_bytes) = make_uint2(chunk.y, chunk.w);
    } else {
      reinterpret_cast<uint4*>(latents + row * C::latent_stride)[i] = chunk;
    }
  }
};

// Operand B of each k-step, from the latents in shared memory: column 2 i of a quad is the first latent vector of its batch row
// i % together, column 2 i + 1 the second in int8x2, and the same again in bf16.
template <class C>
struct LatentOperand {
  const char* fragment;  // of quad 0

  __device__ __forceinline__ LatentOperand(const char* latents, int lane) {
    const int g = lane >> 2, t = lane & 3;
    fragment = latents + (g >> 1) % C::together * C::latent_stride + (C::int8x2 ? ((g & 1) * 4 + t) * 8 : t * 8);
  }
  __device__ __forceinline__ uint2 fetch(int k, int quad) const {
    return *reinterpret_cast<const uint2*>(fragment + quad * 4 * C::latent_stride + k * (C::int8x2 ? 64 : 32));
  }
};

}  // namespace wts
