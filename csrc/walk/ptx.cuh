// The instructions that the walk needs and C++ does not spell, one function each. Everything else of the walk is plain C++, which a
// test compiles for the host with another file of this name (tests/emulator/walk/ptx.cuh) and runs in fibers.
#pragma once
#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace wts {

// --- memory ---------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(128) char memory[];
  return memory;
}
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// 16 bytes to shared memory through L2 only; zeros where the source is absent (no global access then). Copies are waited for in groups,
// by the thread that made them.
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
// The same fragment from a matrix packed by rows: a word from each of its four cores of 8 rows of 16 bytes. `from` is the lane's first word.
__device__ __forceinline__ uint4 load_words(const char* from, bool stays_in_l2 = false) {
  uint4 v;
  if (stays_in_l2)
    asm volatile("{ ld.global.cg.u32 %0, [%4]; ld.global.cg.u32 %1, [%4 + 128]; ld.global.cg.u32 %2, [%4 + 256]; ld.global.cg.u32 %3, [%4 + 384]; }"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(from));
  else
    asm volatile("{ ld.global.nc.L1::no_allocate.u32 %0, [%4]; ld.global.nc.L1::no_allocate.u32 %1, [%4 + 128];\n"
                 "ld.global.nc.L1::no_allocate.u32 %2, [%4 + 256]; ld.global.nc.L1::no_allocate.u32 %3, [%4 + 384]; }"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(from));
  return v;
}
// And from shared memory: lane l names row l of the four cores.
__device__ __forceinline__ uint4 load_cores(uint32_t row) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(row) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t load_pair_past_l1(const uint16_t* from) {
  uint32_t pair;
  asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(pair) : "l"(from));
  return pair;
}
__device__ __forceinline__ void prefetch_l2(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// Words of the exchange: relaxed, at the scope of the device.
__device__ __forceinline__ void store_word(uint64_t* address, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}
__device__ __forceinline__ void store_word(uint32_t* address, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}
__device__ __forceinline__ void load_word_pair(const uint64_t* address, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address) : "memory");
}
__device__ __forceinline__ uint4 load_unit(const char* address) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address) : "memory");
  return v;
}
// Loads that stay in front of the words': a token's row of the table comes from farther away. (Relaxed only for that: ptxas moves
// loads of constants behind the words, to where they are used.)
__device__ __forceinline__ uint32_t load_bf16_pair(const uint16_t* from) {
  uint32_t pair;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(pair) : "l"(from) : "memory");
  return pair;
}
__device__ __forceinline__ float2 load_float_pair(const float* from) {
  float2 pair;
  asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "l"(from) : "memory");
  return pair;
}

// --- arithmetic -----------------------------------------------------------------------------------------------------------

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
// Products of a warpgroup (sm_90a): four tiles, one a warp, with N columns that lie in shared memory as [2 halves of a k-step][N][16 bytes];
// the tiles are fragments in registers, or lie in shared memory as [2 halves][64 rows][16 bytes].
// They run on by themselves: sums and fragments belong to them from order_products to wait_products.
__device__ void order_products();
__device__ void commit_products();
template <int Pending>  // groups, the youngest
__device__ void wait_products();
__device__ void publish_operand();  // writes of this thread to shared memory become visible to products that start behind the next barrier
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ uint64_t operand_descriptor(uint32_t address, uint32_t half_bytes) {
  return (address >> 4 & 0x3fffu) | static_cast<uint64_t>(half_bytes >> 4) << 16 | static_cast<uint64_t>(128 >> 4) << 32;
}
__device__ __forceinline__ void multiply_group(int (&c)[1][4], const uint4& a, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void multiply_group(int (&c)[2][4], const uint4& a, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %12, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3]), "+r"(c[1][0]), "+r"(c[1][1]), "+r"(c[1][2]), "+r"(c[1][3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void multiply_group(int (&c)[4][4], const uint4& a, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %20, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3]), "+r"(c[1][0]), "+r"(c[1][1]), "+r"(c[1][2]), "+r"(c[1][3]),
        "+r"(c[2][0]), "+r"(c[2][1]), "+r"(c[2][2]), "+r"(c[2][3]), "+r"(c[3][0]), "+r"(c[3][1]), "+r"(c[3][2]), "+r"(c[3][3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void multiply_group(int (&c)[8][4], const uint4& a, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3]), "+r"(c[1][0]), "+r"(c[1][1]), "+r"(c[1][2]), "+r"(c[1][3]),
        "+r"(c[2][0]), "+r"(c[2][1]), "+r"(c[2][2]), "+r"(c[2][3]), "+r"(c[3][0]), "+r"(c[3][1]), "+r"(c[3][2]), "+r"(c[3][3]),
        "+r"(c[4][0]), "+r"(c[4][1]), "+r"(c[4][2]), "+r"(c[4][3]), "+r"(c[5][0]), "+r"(c[5][1]), "+r"(c[5][2]), "+r"(c[5][3]),
        "+r"(c[6][0]), "+r"(c[6][1]), "+r"(c[6][2]), "+r"(c[6][3]), "+r"(c[7][0]), "+r"(c[7][1]), "+r"(c[7][2]), "+r"(c[7][3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void multiply_group(int (&c)[1][4], uint32_t tiles, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%0, %1, %2, %3}, %4, %5, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3])
      : "l"(operand_descriptor(tiles, 16 * 64)), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void multiply_group(int (&c)[2][4], uint32_t tiles, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, "
      "%8, %9, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3]), "+r"(c[1][0]), "+r"(c[1][1]), "+r"(c[1][2]), "+r"(c[1][3])
      : "l"(operand_descriptor(tiles, 16 * 64)), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void multiply_group(int (&c)[4][4], uint32_t tiles, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
      "%16, %17, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3]), "+r"(c[1][0]), "+r"(c[1][1]), "+r"(c[1][2]), "+r"(c[1][3]), "+r"(c[2][0]), "+r"(c[2][1]), "+r"(c[2][2]), "+r"(c[2][3]), "+r"(c[3][0]), "+r"(c[3][1]), "+r"(c[3][2]), "+r"(c[3][3])
      : "l"(operand_descriptor(tiles, 16 * 64)), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void multiply_group(int (&c)[8][4], uint32_t tiles, uint32_t operand, uint32_t half_bytes, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, adds; }"
      : "+r"(c[0][0]), "+r"(c[0][1]), "+r"(c[0][2]), "+r"(c[0][3]), "+r"(c[1][0]), "+r"(c[1][1]), "+r"(c[1][2]), "+r"(c[1][3]), "+r"(c[2][0]), "+r"(c[2][1]), "+r"(c[2][2]), "+r"(c[2][3]), "+r"(c[3][0]), "+r"(c[3][1]), "+r"(c[3][2]), "+r"(c[3][3]),
        "+r"(c[4][0]), "+r"(c[4][1]), "+r"(c[4][2]), "+r"(c[4][3]), "+r"(c[5][0]), "+r"(c[5][1]), "+r"(c[5][2]), "+r"(c[5][3]), "+r"(c[6][0]), "+r"(c[6][1]), "+r"(c[6][2]), "+r"(c[6][3]), "+r"(c[7][0]), "+r"(c[7][1]), "+r"(c[7][2]), "+r"(c[7][3])
      : "l"(operand_descriptor(tiles, 16 * 64)), "l"(operand_descriptor(operand, half_bytes)), "r"(static_cast<int>(adds)));
}
__device__ __forceinline__ void order_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
__device__ __forceinline__ void publish_operand() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif
// The compiler neither moves nor copies sums across this.
template <int Quads>
__device__ __forceinline__ void hold(int (&c)[Quads][4]) {
#pragma unroll
  for (int q = 0; q < Quads; ++q) asm volatile("" : "+r"(c[q][0]), "+r"(c[q][1]), "+r"(c[q][2]), "+r"(c[q][3])::"memory");
}
// The same value, computed where this stands: the compiler neither moves what depends on it ahead nor keeps it in registers until then.
__device__ __forceinline__ int computed_here(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
// 0xffff for each negative half: prmt's sign-replicating selectors, which __byte_perm does not offer.
__device__ __forceinline__ uint32_t signs_of_halves(uint32_t bits) {
  uint32_t signs;
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(signs) : "r"(bits));
  return signs;
}
__device__ __forceinline__ float approximate_reciprocal(float d) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(d));
  return inverse;
}
__device__ __forceinline__ float approximate_log2(float x) {
  float log;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(x));
  return log;
}
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}
// Triton's division of fp32.
__device__ __forceinline__ float divided(float value, float by) {
  float quotient;
  asm("div.full.f32 %0, %1, %2;" : "=f"(quotient) : "f"(value), "f"(by));
  return quotient;
}

// --- threads --------------------------------------------------------------------------------------------------------------

// Named barriers of a block; 0 is __syncthreads.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The low half of the clock. Not clock(): that is 64 bits wide, and a difference from 32 bits of it is no time.
__device__ __forceinline__ uint32_t short_clock() {
  uint32_t clock;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock)::"memory");
  return clock;
}
__device__ __forceinline__ int64_t clock_now() {
  int64_t clock;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(clock)::"memory");
  return clock;
}

}  // namespace wts
