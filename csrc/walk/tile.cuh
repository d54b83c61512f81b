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
