// Probe: what a launch costs before a kernel does any work.
//
// An empty kernel on any grid, launched plainly or cooperatively, with as much shared memory as asked for, so that the
// launch can be given the shape of a walk. The host captures it into CUDA graphs: alone, with others, and times replays.
#include "probe.cuh"

namespace {

__global__ void empty_kernel() {}

}  // namespace

WTS_PROBE_API int wts_probe_empty(int blocks, int threads, int shared_bytes, int cooperative, cudaStream_t stream) {
  if (blocks < 1 || threads < 1 || threads > 1024 || shared_bytes < 0) return cudaErrorInvalidValue;
  const cudaError_t error = wts_probe::allow_shared_bytes(empty_kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  if (cooperative) {
    return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(&empty_kernel), dim3(blocks), dim3(threads),
                                       nullptr, shared_bytes, stream);
  }
  empty_kernel<<<blocks, threads, shared_bytes, stream>>>();
  return cudaGetLastError();
}

// Text of an error that a launcher returned.
WTS_PROBE_API const char* wts_probe_error_string(int error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}
