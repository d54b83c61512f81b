// Probe: the rate of mma.sync on one multiprocessor, operands already in registers.
//
// Counting: one m16n8k32 int8 product is 2 * 16 * 8 * 32 operations, one m16n8k16 bf16 product 2 * 16 * 8 * 16. A unit is
// one product of every accumulator of every warp: warps * kAccumulators products. Each warp has kAccumulators independent
// chains, which hides the latency of a chain; rates are a multiprocessor's, all of them running at once.
#include "probe.cuh"

namespace {

constexpr int kAccumulators = 8;
constexpr int kMaxWarps = 16;

__device__ __forceinline__ void multiply_s8(int32_t (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void multiply_bf16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Operands differ between lanes and registers, as real weights do: equal ones would draw less power.
__device__ __forceinline__ uint32_t scrambled(uint32_t seed) { return (seed + 1u) * 0x9e3779b1u; }

__global__ void __launch_bounds__(kMaxWarps * 32, 1) products_s8(int repeats, uint32_t* sink) {
  int32_t sum[kAccumulators][4] = {};
  uint32_t a[4];
  for (int i = 0; i < 4; ++i) a[i] = scrambled(threadIdx.x * 4 + i);
  for (int repeat = 0; repeat < repeats; ++repeat) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) multiply_s8(sum[i], a, scrambled(threadIdx.x), scrambled(threadIdx.x + 7));
  }
  uint32_t folded = 0;
  for (int i = 0; i < kAccumulators; ++i) folded ^= static_cast<uint32_t>(sum[i][0] ^ sum[i][1] ^ sum[i][2] ^ sum[i][3]);
  wts_probe::keep(folded, sink);
}

__global__ void __launch_bounds__(kMaxWarps * 32, 1) products_bf16(int repeats, uint32_t* sink) {
  float sum[kAccumulators][4] = {};
  uint32_t a[4];
  // 0x3f80 with low mantissa bits varied: values in [1, 1.25), finite through any number of sums that is timed here.
  for (int i = 0; i < 4; ++i) a[i] = 0x3f803f80u | (scrambled(threadIdx.x * 4 + i) & 0x001f001fu);
  const uint32_t b0 = 0x3f803f80u | (scrambled(threadIdx.x) & 0x001f001fu);
  const uint32_t b1 = 0xbf80bf80u | (scrambled(threadIdx.x + 7) & 0x001f001fu);
  for (int repeat = 0; repeat < repeats; ++repeat) {
#pragma unroll
    for (int i = 0; i < kAccumulators; ++i) multiply_bf16(sum[i], a, b0, b1);
  }
  float folded = 0.0f;
  for (int i = 0; i < kAccumulators; ++i) folded += sum[i][0] + sum[i][1] + sum[i][2] + sum[i][3];
  wts_probe::keep(__float_as_uint(folded), sink);
}

}  // namespace

// Accumulators a warp: the host needs it to count operations.
WTS_PROBE_API int wts_probe_products_accumulators() { return kAccumulators; }

// kind 0: int8 m16n8k32, 1: bf16 m16n8k16.
WTS_PROBE_API int wts_probe_products(int kind, int repeats, int blocks, int warps, uint32_t* sink,
                                     cudaStream_t stream) {
  if (repeats < 1 || blocks < 1 || warps < 1 || warps > kMaxWarps) return cudaErrorInvalidValue;
  if (kind == 0) {
    products_s8<<<blocks, warps * 32, 0, stream>>>(repeats, sink);
  } else if (kind == 1) {
    products_bf16<<<blocks, warps * 32, 0, stream>>>(repeats, sink);
  } else {
    return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}
