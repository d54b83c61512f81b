// Host side of one instantiation, torch-free: what the kernel needs and what the device has, and the cooperative launch.
#pragma once
#include <cuda_runtime.h>
#include "walk.cuh"

namespace wts {

// Raises the shared-memory limit of the kernel and fills the description for the current device. Called before the first
// launch, and never while a stream is being captured.
template <class C>
cudaError_t describe(WalkDescription* out) {
  int device = 0;
  cudaFuncAttributes attributes;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaFuncSetAttribute(walk_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_of<C>());
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, walk_kernel<C>);
  if (error == cudaSuccess)
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&out->blocks_per_multiprocessor, walk_kernel<C>, C::threads,
                                                          shared_bytes_of<C>());
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&out->multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess) error = cudaDeviceGetAttribute(&out->cooperative, cudaDevAttrCooperativeLaunch, device);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // ours to report, not the next caller's to find
    return error;
  }
  out->registers_per_thread = attributes.numRegs;
  out->local_bytes = static_cast<int32_t>(attributes.localSizeBytes);
  out->shared_bytes = shared_bytes_of<C>();
  out->threads = C::threads;
  return cudaSuccess;
}

template <class C>
cudaError_t launch(const WalkParams* params, int grid_blocks, cudaStream_t stream) {
  cudaLaunchAttribute cooperative;
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid_blocks);
  config.blockDim = dim3(C::threads);
  config.dynamicSmemBytes = shared_bytes_of<C>();
  config.stream = stream;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, walk_kernel<C>, *params);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

}  // namespace wts

#define WTS_EXPORT_WALK(...)                                                                                      \
  extern "C" int wts_walk_describe(wts::WalkDescription* out) { return wts::describe<__VA_ARGS__>(out); }         \
  extern "C" int wts_walk_launch(const wts::WalkParams* params, int grid_blocks, void* stream) {                  \
    return wts::launch<__VA_ARGS__>(params, grid_blocks, static_cast<cudaStream_t>(stream));                      \
  }                                                                                                               \
  extern "C" const char* wts_error_string(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }
