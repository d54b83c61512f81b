// The exchange alone for the emulator: the stress of it, and its probe.
#include <cuda_runtime.h>

template <class T> T atomicAdd(T* at, T value) { const T old = *at; *at = old + value; return old; }

#include "probes/walk_exchange.cuh"
#include "stress/exchange.cuh"

namespace {

template <class F>
int for_words(int rows, int wide, const F& f) {
  return wide ? wts_offers::for_rows<true>(rows, -1, f) : wts_offers::for_rows<false>(rows, -1, f);
}

}  // namespace

extern "C" int emulate_stress(const wts::WalkParams* p, unsigned long long* counts, int blocks, int rows, int wide, int rounds,
                              uint32_t first_epoch, uint64_t seed, uint64_t checked_seed, uint64_t order) {
  return for_words(rows, wide, [&](auto config) {
    using C = decltype(config);
    return emulator::launch(blocks, wts_offers::threads_of<C>(), 0, order,
                            [&] { wts_stress::stress_kernel<C>(*p, counts, rounds, first_epoch, seed, checked_seed); });
  });
}
extern "C" int emulate_probe(const wts::WalkParams* p, int32_t* agreed, uint32_t* status, int blocks, int rows, int wide, int rounds,
                             uint32_t first_epoch, uint64_t order) {
  return for_words(rows, wide, [&](auto config) {
    using C = decltype(config);
    return emulator::launch(blocks, wts_offers::threads_of<C>(), 0, order,
                            [&] { wts_probe::walk_exchange_kernel<C>(*p, agreed, status, rounds, first_epoch); });
  });
}
