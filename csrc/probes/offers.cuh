// What the exchange is given where nobody walks: kernels of the walk's own `Exchange`, and drawn words to publish.
//
// Draws are SplitMix64 (Steele, Lea, Flood 2014) by position: anybody can tell what any block offers in any epoch. wts_lab/probe_jobs.py
// computes the same.
#pragma once
#include <cstdint>
#include "../walk/exchange.cuh"

namespace wts_offers {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
constexpr int kPlaces = 256;  // of one batch row and epoch: a block each, and others above kMaxBlocks

// The walk that an exchange belongs to: nothing of it but rows and words matters here.
template <int Rows, bool Wide>
using ExchangeConfig = wts::WalkConfig<8, 1, 0, 0, 0, Rows, 32, wts::Precision::int8x2, wts::Rounding::once, false, Wide,
                                       wts::Products::warp, wts::HeadKind::markov, 0, 0, 0, wts::Probe::none>;

__device__ __forceinline__ uint64_t draw(uint64_t seed, uint64_t position) {
  uint64_t z = seed + kGolden * (position + 1);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
__device__ __forceinline__ uint64_t position(uint32_t epoch, int row, int place) {
  return (static_cast<uint64_t>(epoch) * wts::kMaxRows + row) * kPlaces + place;
}

// The word of a row of the matrix, `local` rows past the block's first; of the value a narrow word has the upper 16 bits.
template <class C>
__device__ __forceinline__ typename wts::Words<C::wide>::Word word_of(uint32_t value, int first_row, int local, uint32_t epoch) {
  const uint32_t tag = epoch & wts::Words<C::wide>::epoch_mask;
  if constexpr (C::wide) {
    const uint32_t inverse = wts::kIndexMask - static_cast<uint32_t>(first_row + local);
    return (static_cast<uint64_t>(value) << 32) | (inverse << wts::kEpochBits) | tag;
  } else {
    return (value & 0xffff0000u) | static_cast<uint32_t>(wts::kNarrowRows - 1 - local) << wts::kNarrowEpochBits | tag;
  }
}

// f(config) for batch rows that a walk is built for; `otherwise` for others.
template <bool Wide, class F, class R>
R for_rows(int rows, R otherwise, const F& f) {
  switch (rows) {
    case 1: return f(ExchangeConfig<1, Wide>{});
    case 2: return f(ExchangeConfig<2, Wide>{});
    case 4: return f(ExchangeConfig<4, Wide>{});
    case 8: return f(ExchangeConfig<8, Wide>{});
    case 16: return f(ExchangeConfig<16, Wide>{});
    case 32: return f(ExchangeConfig<32, Wide>{});
    default: return otherwise;
  }
}

// One warp a leader, as in the walk, and nobody else.
template <class C>
constexpr int threads_of() {
  return 32 * C::leaders;
}

}  // namespace wts_offers
