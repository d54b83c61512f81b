// The walk's instructions on the host: csrc/walk/ptx.cuh says what each does.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace wts {

using emulator::now;

inline char* dynamic_shared() { return now->block->shared(); }
inline uint32_t shared_address(const void* pointer) { return static_cast<uint32_t>(static_cast<const char*>(pointer) - now->block->shared()); }

inline void copy_fragment(uint32_t to, const void* from, bool present) {
  now->open.push_back({now->block->shared() + to, static_cast<const char*>(from), present});
}
inline void commit_copies() {
  now->groups.push_back(std::move(now->open));
  now->open.clear();
}
template <int Pending>
void wait_copies() {
  for (; now->groups.size() > Pending; now->groups.pop_front())
    for (const emulator::Copy& copy : now->groups.front()) {
      if (copy.present) std::memcpy(copy.to, copy.from, 16);
      else std::memset(copy.to, 0, 16);
    }
}

inline uint4 load_fragment(const void* from, bool = false) { return *static_cast<const uint4*>(from); }
inline uint4 load_words(const char* from, bool = false) {
  uint4 v;
  uint32_t* const words[4] = {&v.x, &v.y, &v.z, &v.w};
  for (int i = 0; i < 4; ++i) std::memcpy(words[i], from + 128 * i, 4);
  return v;
}
inline uint4 load_cores(uint32_t row) {
  return emulator::together(row, [](auto of) {
    uint4 v;
    uint32_t* const words[4] = {&v.x, &v.y, &v.z, &v.w};
    for (int i = 0; i < 4; ++i) std::memcpy(words[i], now->block->shared() + of(8 * i + emulator::lane() / 4) + emulator::lane() % 4 * 4, 4);
    return v;
  });
}
inline uint32_t load_pair_past_l1(const uint16_t* from) { return from[0] | static_cast<uint32_t>(from[1]) << 16; }
inline void prefetch_l2(const void*) {}
inline void store_word(uint64_t* address, uint64_t word) { *address = word; }
inline void store_word(uint32_t* address, uint32_t word) { *address = word; }
// Looking gives the others a chance to publish.
inline void load_word_pair(const uint64_t* address, uint64_t& first, uint64_t& second) {
  emulator::yield();
  first = address[0], second = address[1];
}
inline uint4 load_unit(const char* address) { return *reinterpret_cast<const uint4*>(address); }
inline uint32_t load_bf16_pair(const uint16_t* from) { return from[0] | static_cast<uint32_t>(from[1]) << 16; }
inline float2 load_float_pair(const float* from) { return {from[0], from[1]}; }

struct Operands { uint4 a; uint2 b; };
inline void multiply(int (&c)[4], const uint4& a, uint2 b) {
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  struct Sums { int value[4]; };
  const Sums sums = emulator::together(Operands{a, b}, [&](auto of) {
    Sums sum = {};
    for (int owner = 0; owner < 4; ++owner) {  // the lane of the row, and of the column, that holds these elements
      const Operands row = of(4 * g + owner);
      const uint32_t rows[2][2] = {{row.a.x, row.a.z}, {row.a.y, row.a.w}};  // row g and g + 8, both halves of the depth
      for (int column = 0; column < 2; ++column) {
        const Operands operand = of(4 * (2 * t + column) + owner);
        const uint32_t halves[2] = {operand.b.x, operand.b.y};
        for (int r = 0; r < 2; ++r)
          for (int half = 0; half < 2; ++half)
            for (int byte = 0; byte < 4; ++byte)
              sum.value[2 * r + column] += static_cast<int8_t>(rows[r][half] >> (8 * byte)) * static_cast<int8_t>(halves[half] >> (8 * byte));
      }
    }
    return sum;
  });
  for (int i = 0; i < 4; ++i) c[i] += sums.value[i];
}
inline void multiply(float (&c)[4], const uint4& a, uint2 b) {
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  struct Sums { float value[4]; };
  const auto bf16 = [](uint32_t pair, int i) { return __uint_as_float(i ? pair & 0xffff0000u : pair << 16); };
  const Sums sums = emulator::together(Operands{a, b}, [&](auto of) {
    Sums sum = {};
    for (int owner = 0; owner < 4; ++owner) {
      const Operands row = of(4 * g + owner);
      const uint32_t rows[2][2] = {{row.a.x, row.a.z}, {row.a.y, row.a.w}};
      for (int column = 0; column < 2; ++column) {
        const Operands operand = of(4 * (2 * t + column) + owner);
        const uint32_t halves[2] = {operand.b.x, operand.b.y};
        for (int r = 0; r < 2; ++r)
          for (int half = 0; half < 2; ++half)
            for (int i = 0; i < 2; ++i) sum.value[2 * r + column] += bf16(rows[r][half], i) * bf16(halves[half], i);
      }
    }
    return sum;
  });
  for (int i = 0; i < 4; ++i) c[i] += sums.value[i];
}
// A warp's share of a warpgroup's products; done at once, so the sums are there when they are waited for.
template <int Quads>
void multiply_group(int (&c)[Quads][4], const uint4& a, uint32_t operand, uint32_t half_bytes, bool adds) {
  const int g = emulator::lane() / 4, t = emulator::lane() % 4;
  const char* const shared = now->block->shared() + operand;
  struct Sums { int value[Quads][4]; };
  const Sums sums = emulator::together(a, [&](auto of) {
    Sums sum = {};
    for (int owner = 0; owner < 4; ++owner) {
      const uint4 row = of(4 * g + owner);
      const uint32_t rows[2][2] = {{row.x, row.z}, {row.y, row.w}};
      for (int quad = 0; quad < Quads; ++quad)
        for (int i = 0; i < 4; ++i)
          for (int half = 0; half < 2; ++half)
            for (int byte = 0; byte < 4; ++byte)
              sum.value[quad][i] += static_cast<int8_t>(rows[i / 2][half] >> (8 * byte)) *
                                    static_cast<int8_t>(shared[half * half_bytes + (8 * quad + 2 * t + i % 2) * 16 + 4 * owner + byte]);
    }
    return sum;
  });
  for (int quad = 0; quad < Quads; ++quad)
    for (int i = 0; i < 4; ++i) c[quad][i] = sums.value[quad][i] + (adds ? c[quad][i] : 0);
}
template <int Quads>
void multiply_group(int (&c)[Quads][4], uint32_t tiles, uint32_t operand, uint32_t half_bytes, bool adds) {
  const int g = emulator::lane() / 4, t = emulator::lane() % 4, first = now->thread / 32 % 4 * 16 + g;
  const char* const shared = now->block->shared();
  for (int quad = 0; quad < Quads; ++quad)
    for (int i = 0; i < 4; ++i) {
      int sum = adds ? c[quad][i] : 0;
      for (int half = 0; half < 2; ++half)
        for (int byte = 0; byte < 16; ++byte)
          sum += static_cast<int8_t>(shared[tiles + half * 1024 + (first + i / 2 * 8) * 16 + byte]) *
                 static_cast<int8_t>(shared[operand + half * half_bytes + (8 * quad + 2 * t + i % 2) * 16 + byte]);
      c[quad][i] = sum;
    }
}
inline void order_products() {}
inline void commit_products() {}
template <int>
void wait_products() {}
inline void publish_operand() {}
template <int Quads>
void hold(int (&)[Quads][4]) {}
inline int computed_here(int value) { return value; }
inline uint32_t signs_of_halves(uint32_t bits) { return (bits & 0x80000000u ? 0xffff0000u : 0u) | (bits & 0x8000u ? 0xffffu : 0u); }
inline float approximate_reciprocal(float d) { return 1.0f / d; }
// As far above the logarithm as the hardware's may be, which makes upper bounds as low as they may be; -DLOG2_ERROR=-1 for as far below.
#ifndef LOG2_ERROR
#define LOG2_ERROR 1
#endif
inline float approximate_log2(float x) {
  const float log = std::log2(x);
  return std::isfinite(log) ? log + LOG2_ERROR * 0x1p-22f * max(1.0f, std::abs(log)) : log;
}
inline float larger_or_nan(float a, float b) { return a != a || b != b ? __uint_as_float(0x7fffffffu) : max(a, b); }
inline float divided(float value, float by) { return value / by; }

inline void barrier_arrive(int id, int threads) { emulator::arrive(now->block->barriers[id], threads); }
inline void barrier_sync(int id, int threads) { emulator::wait(now->block->barriers[id], threads); }
inline uint32_t short_clock() { return clock(); }
inline int64_t clock_now() { return clock(); }

}  // namespace wts
