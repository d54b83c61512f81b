// Probe: the time of one load whose address is the value of the load before it.
//
// A ring of 128-byte lines is laid out by the host: the first word of each line holds the index, in words, of the next
// line's first word, in random order. One thread walks it, past the L1 cache, so each hop costs one access to where the
// line lies: L2 for a ring that fits it and was walked before, HBM for a ring several times larger. `cursor` carries the
// position from launch to launch, so an HBM ring is never walked over lines that the launch before it brought in.
//
// Buffers: ring uint32[lines][32], read only; cursor uint32[1], read and written.
#include "probe.cuh"

namespace {

__global__ void __launch_bounds__(1, 1) chase_kernel(const uint32_t* __restrict__ ring, uint32_t* cursor, int hops) {
  uint32_t at = *cursor;
#pragma unroll 8
  for (int hop = 0; hop < hops; ++hop) {
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(ring + at) : "memory");
  }
  *cursor = at;
}

}  // namespace

WTS_PROBE_API int wts_probe_chase(const uint32_t* ring, uint32_t* cursor, int hops, cudaStream_t stream) {
  if (hops < 1) return cudaErrorInvalidValue;
  chase_kernel<<<1, 1, 0, stream>>>(ring, cursor, hops);
  return cudaGetLastError();
}
