// Launcher of the probe of the walk's own exchange; walk_exchange.cuh describes kernel and buffers.
#include "walk_exchange.cuh"
#include "probe.cuh"

namespace {

template <class C>
int launch(wts::WalkParams params, int32_t* agreed, uint32_t* status, int blocks, int rounds, uint32_t first_epoch, cudaStream_t stream) {
  void* arguments[] = {&params, &agreed, &status, &rounds, &first_epoch};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&wts_probe::walk_exchange_kernel<C>), dim3(blocks),
                                     dim3(wts_offers::threads_of<C>()), arguments, 0, stream);
}

}  // namespace

// first_epoch continues where the last launch on the same slots ended, and is 1 after zeroing them.
WTS_PROBE_API int wts_probe_walk_exchange(char* slots, int unit_stride, int32_t* agreed, uint32_t* status, int blocks, int rows,
                                          int wide, int rounds, uint32_t first_epoch, uint32_t max_polls, cudaStream_t stream) {
  if (blocks < 1 || blocks > wts::kMaxBlocks) return cudaErrorInvalidValue;
  wts::WalkParams params = {};
  params.slots = slots;
  params.unit_stride = unit_stride;
  params.expected_blocks = blocks;
  params.vocab_tiles = blocks * wts_probe::kBlockTiles;
  params.max_polls = max_polls;
  const auto run = [&](auto config) { return launch<decltype(config)>(params, agreed, status, blocks, rounds, first_epoch, stream); };
  const int refused = cudaErrorInvalidValue;
  return wide ? wts_offers::for_rows<true>(rows, refused, run) : wts_offers::for_rows<false>(rows, refused, run);
}
