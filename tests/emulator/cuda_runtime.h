// A host that runs CUDA threads as fibers, for kernels whose instructions are functions (csrc/walk/ptx.cuh). One system thread: a fiber
// runs until it has to wait for others, and who runs next is drawn from a seed, so that every seed is another order of events and
// repeats itself. Asynchronous copies land when they are waited for, and not before. Shared memory starts as NaN.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)

struct int2 { int x, y; };
struct uint2 { uint32_t x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;

namespace emulator {

struct Copy { char* to; const char* from; bool present; };
struct Barrier { int arrived = 0, generation = 0; };
struct Warp { uint64_t value[32][6]; Barrier barrier; };
struct Block {
  std::vector<char> memory;
  std::vector<Warp> warps;
  Barrier barriers[16];
  int index, threads, votes = 0;
  char* shared() { return memory.data() + (128 - reinterpret_cast<uintptr_t>(memory.data()) % 128) % 128; }
};
struct Fiber {
  ucontext_t context;
  std::vector<char> stack;
  Block* block;
  int thread;
  bool done = false;
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
};

inline ucontext_t scheduler;
inline Fiber* now = nullptr;
inline int grid_blocks = 0;
inline uint32_t ticks = 0;
inline std::function<void()> body;

inline void yield() { swapcontext(&now->context, &scheduler); }
inline void wait(Barrier& barrier, int participants) {
  const int generation = barrier.generation;
  if (++barrier.arrived == participants) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  while (barrier.generation == generation) yield();
}
inline void arrive(Barrier& barrier, int participants) {
  if (++barrier.arrived == participants) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
}
inline Warp& warp() { return now->block->warps[now->thread / 32]; }
inline int lane() { return now->thread % 32; }
// Everybody in the warp leaves a value; `read` sees all of them.
template <class T, class F>
auto together(T value, F read) {
  static_assert(sizeof(T) <= sizeof(Warp::value[0]));
  std::memcpy(warp().value[lane()], &value, sizeof(T));
  wait(warp().barrier, 32);
  const auto of = [](int other) { T theirs; std::memcpy(&theirs, warp().value[other], sizeof(T)); return theirs; };
  auto result = read(of);
  wait(warp().barrier, 32);
  return result;
}
inline void entry() {
  body();
  now->done = true;
  yield();
}

// Runs `kernel` on every thread of every block; 0, or 1 when nobody gets on any more.
inline int launch(int blocks, int threads, size_t shared_bytes, uint64_t seed, std::function<void()> kernel) {
  constexpr size_t kStack = 256 * 1024;
  grid_blocks = blocks;
  body = std::move(kernel);
  std::mt19937_64 order(seed);
  std::vector<std::unique_ptr<Block>> all;
  std::vector<std::unique_ptr<Fiber>> fibers;
  for (int b = 0; b < blocks; ++b) {
    all.push_back(std::make_unique<Block>());
    all[b]->memory.assign(shared_bytes + 256, static_cast<char>(0xff));
    all[b]->warps.resize(threads / 32);
    all[b]->index = b, all[b]->threads = threads;
    for (int t = 0; t < threads; ++t) {
      auto fiber = std::make_unique<Fiber>();
      fiber->stack.resize(kStack);
      fiber->block = all[b].get(), fiber->thread = t;
      getcontext(&fiber->context);
      fiber->context.uc_stack.ss_sp = fiber->stack.data();
      fiber->context.uc_stack.ss_size = kStack;
      fiber->context.uc_link = &scheduler;
      makecontext(&fiber->context, entry, 0);
      fibers.push_back(std::move(fiber));
    }
  }
  // A warp is scheduled as one, lane by lane; warps in any order.
  std::vector<int> warps(fibers.size() / 32);
  for (size_t w = 0; w < warps.size(); ++w) warps[w] = static_cast<int>(w);
  for (long rounds = 0; rounds < 2000000; ++rounds) {
    bool running = false;
    std::shuffle(warps.begin(), warps.end(), order);
    for (int w : warps) {
      if (order() % 4 == 0) continue;  // some warps fall behind
      for (int l = 0; l < 32; ++l) {
        Fiber& fiber = *fibers[32 * w + l];
        if (fiber.done) continue;
        now = &fiber;
        swapcontext(&scheduler, &fiber.context);
      }
    }
    for (const auto& fiber : fibers) running = running || !fiber->done;
    if (!running) return 0;
  }
  return 1;
}

}  // namespace emulator

struct Index3 { int x; };
#define threadIdx (Index3{emulator::now->thread})
#define blockIdx (Index3{emulator::now->block->index})
#define gridDim (Index3{emulator::grid_blocks})

#define clock emulated_clock  // libc has one, too
inline uint32_t emulated_clock() { emulator::ticks += 50; return emulator::ticks; }
template <class T> T __ldg(const T* from) { return *from; }

inline void __syncwarp() { emulator::wait(emulator::warp().barrier, 32); }
inline void __syncthreads() { emulator::wait(emulator::now->block->barriers[0], emulator::now->block->threads); }
inline int __syncthreads_and(int vote) {
  emulator::Block& block = *emulator::now->block;
  block.votes += vote != 0;
  __syncthreads();
  const int all = block.votes == block.threads;
  __syncthreads();
  block.votes = 0;
  __syncthreads();
  return all;
}
template <class T> T __shfl_sync(uint32_t, T value, int from) { return emulator::together(value, [&](auto of) { return of(from & 31); }); }
template <class T> T __shfl_xor_sync(uint32_t, T value, int distance) {
  return emulator::together(value, [&](auto of) { return of(emulator::lane() ^ distance); });
}
inline uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  return emulator::together(value, [](auto of) { uint32_t top = 0; for (int i = 0; i < 32; ++i) top = max(top, of(i)); return top; });
}
inline uint32_t __ballot_sync(uint32_t, bool vote) {
  return emulator::together(static_cast<uint32_t>(vote), [](auto of) { uint32_t bits = 0; for (int i = 0; i < 32; ++i) bits |= of(i) << i; return bits; });
}
inline bool __all_sync(uint32_t mask, bool vote) { return __ballot_sync(mask, vote) == ~0u; }
inline bool __any_sync(uint32_t mask, bool vote) { return __ballot_sync(mask, vote) != 0; }

template <class T> T atomicMax(T* at, T value) { const T old = *at; *at = max(old, value); return old; }
template <class T> T atomicExch(T* at, T value) { const T old = *at; *at = value; return old; }
template <class T> T atomicOr(T* at, T value) { const T old = *at; *at = old | value; return old; }
template <class T> T atomicCAS(T* at, T expected, T value) { const T old = *at; if (old == expected) *at = value; return old; }

inline uint32_t __float_as_uint(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
inline float __uint_as_float(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
inline float canonical(float value) { return value != value ? __uint_as_float(0x7fffffffu) : value; }
inline float __fadd_rn(float a, float b) { return canonical(a + b); }
inline float __fsub_rn(float a, float b) { return canonical(a - b); }
inline float __fmul_rn(float a, float b) { return canonical(a * b); }
inline float __fmaf_rn(float a, float b, float c) { return canonical(std::fma(a, b, c)); }
inline float __uint2float_rn(uint32_t value) { return static_cast<float>(value); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32); }
inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = (static_cast<uint64_t>(high) << 32) | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>((bytes >> (8 * ((selector >> (4 * i)) & 7))) & 0xff) << (8 * i);
  return result;
}
