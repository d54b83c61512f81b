// How near cache lines are to the multiprocessors that read them: the time of a first read after another multiprocessor has
// written the line, which is what every word of the exchange costs. On an H200 some lines take every reader 270 to 320 clocks, others
// take half of the readers 440 to 510; which they are depends on the physical address, so a workspace is measured once.
//
// For each reader in turn: block 0 (the last block, when block 0 reads) writes all lines, everybody meets, the reader times one load of
// each line. One cooperative launch, one block a multiprocessor.
#include <cooperative_groups.h>
#include <cstdint>
#include <cuda_runtime.h>

namespace {

__device__ __forceinline__ uint32_t timed_load(const char* address, uint32_t& value) {
  uint32_t before, after;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(before)::"memory");
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  // The second reading of the clock waits for the value.
  asm volatile("{ .reg .pred p; .reg .u32 late; setp.eq.u32 p, %1, 0xffffffff; selp.u32 late, 1, 0, p; mov.u32 %0, %%clock; add.u32 %0, %0, late; }"
               : "=r"(after) : "r"(value) : "memory");
  return after - before;
}

// clocks: u32 [readers][lines]; reader r is block r * (grid / readers).
__global__ void first_reads(char* buffer, int lines, int line_bytes, int readers, uint32_t* clocks) {
  const auto grid = cooperative_groups::this_grid();
  for (int reader = 0; reader < readers; ++reader) {
    const int block = reader * (gridDim.x / readers);
    if (blockIdx.x == (block == 0 ? gridDim.x - 1 : 0))
      for (int line = threadIdx.x; line < lines; line += blockDim.x)
        asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(buffer + static_cast<int64_t>(line) * line_bytes), "r"(reader) : "memory");
    grid.sync();
    if (blockIdx.x == block && threadIdx.x == 0)
      for (int line = 0; line < lines; ++line) {
        uint32_t value;
        clocks[reader * lines + line] = timed_load(buffer + static_cast<int64_t>(line) * line_bytes, value);
      }
    grid.sync();
  }
}

}  // namespace

extern "C" int wts_first_reads(void* buffer, int lines, int line_bytes, int grid_blocks, int readers, void* clocks, void* stream) {
  void* arguments[] = {&buffer, &lines, &line_bytes, &readers, &clocks};
  const cudaError_t error = cudaLaunchCooperativeKernel(reinterpret_cast<void*>(first_reads), dim3(grid_blocks), dim3(128), arguments, 0,
                                                        static_cast<cudaStream_t>(stream));
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}
extern "C" const char* wts_workspace_error(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
