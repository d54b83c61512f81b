// Moving and multiplying tiles: matrix fragments from global memory to registers or shared memory (L1 bypassed), and the
// tensor-core products. A lane loads exactly the bytes it multiplies, so no barrier stands between copy and use.
#pragma once
#include <cstdint>
#include <utility>
#include "config.cuh"

namespace wts {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory through L2 only; zeros where the tile is absent (no global access then).
__device__ __forceinline__ void copy_fragment(uint32_t to_shared, const void* from, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from), "r"(present ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Pending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Past L1. A matrix that stays in L2 is found there by the next call; otherwise its lines leave first, which keeps base logits
// that were just written in L2.
__device__ __forceinline__ uint4 load_fragment(const void* from, bool stays_in_l2 = false) {
  uint4 v;
  if (stays_in_l2)
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  else
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

__device__ __forceinline__ void multiply(int (&c)[4], const uint4& a, uint2 b) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint4& a, uint2 b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

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
