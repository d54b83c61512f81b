// One instantiation of the walk for the emulator; EMULATED_CONFIG is its WalkConfig.
#include <cuda_runtime.h>

#include "walk/walk.cuh"

extern "C" int emulate(const wts::WalkParams* params, int grid_blocks, uint64_t seed) {
  using C = EMULATED_CONFIG;
  return emulator::launch(grid_blocks, C::threads, wts::shared_bytes_of<C>(), seed, [params] { wts::walk_kernel<C>(*params); });
}
extern "C" size_t shared_bytes() { return wts::shared_bytes_of<EMULATED_CONFIG>(); }
