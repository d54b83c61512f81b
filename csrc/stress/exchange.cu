// Launcher of the stressed exchange; exchange.cuh describes kernel and buffers.
#include <cuda_runtime.h>
#include "exchange.cuh"

namespace {

template <class C>
int launch(wts::WalkParams params, unsigned long long* counts, int blocks, int rounds, uint32_t first_epoch, uint64_t seed,
           uint64_t checked_seed, cudaStream_t stream) {
  void* arguments[] = {&params, &counts, &rounds, &first_epoch, &seed, &checked_seed};
  const cudaError_t error =
      cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&wts_stress::stress_kernel<C>), dim3(blocks), dim3(wts_offers::threads_of<C>()), arguments, 0, stream);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace

// first_epoch continues where the last launch on the same slots ended, and is 1 after zeroing them; batch is at most rows, and
// checked_seed equals seed unless the check itself is tested. expected_blocks above blocks stalls.
extern "C" int wts_stress_exchange(char* slots, int unit_stride, unsigned long long* counts, int blocks, int expected_blocks,
                                   int vocab_tiles, int rows, int wide, int batch, int rounds, uint32_t first_epoch, uint64_t seed,
                                   uint64_t checked_seed, uint32_t max_polls, cudaStream_t stream) {
  if (blocks < 1 || blocks > wts::kMaxBlocks || vocab_tiles < blocks || batch < 1 || batch > rows) return cudaErrorInvalidValue;
  wts::WalkParams params = {};
  params.slots = slots;
  params.unit_stride = unit_stride;
  params.expected_blocks = expected_blocks;
  params.vocab_tiles = vocab_tiles;
  params.batch = batch;
  params.max_polls = max_polls;
  const auto run = [&](auto config) {
    return launch<decltype(config)>(params, counts, blocks, rounds, first_epoch, seed, checked_seed, stream);
  };
  const int refused = cudaErrorInvalidValue;
  return wide ? wts_offers::for_rows<true>(rows, refused, run) : wts_offers::for_rows<false>(rows, refused, run);
}
extern "C" const char* wts_stress_error(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
