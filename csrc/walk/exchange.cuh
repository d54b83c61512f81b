// Selection across blocks: for each batch row every block publishes one word, every block reads all words and takes their maximum.
//
// Words lie in *units* of 16 bytes (four narrow words or two wide ones, of neighbouring blocks), two buffers by epoch & 1. Where a
// unit lies is a table of the host's: on an H200 a word that another multiprocessor has just written takes 270 to 320 clocks to
// read from some cache lines and 440 to 510 from others, depending on the reader, so the host measures lines and takes
// those that are near to all (wts_lab/exchange_lines.py). Units of one line belong to different batch rows of the same blocks.
//
// Two buffers suffice: a block writes epoch e + 2 only after it has read every word of e + 1, each written after its writer
// had finished reading e. A word carries its own epoch, so relaxed accesses are enough: no other data is published through
// it. Waits are bounded by max_polls and report the missing units.
#pragma once
#include <cstdint>
#include <type_traits>
#include "config.cuh"
#include "word.cuh"

namespace wts {

__device__ __forceinline__ void store_word(uint64_t* address, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}
__device__ __forceinline__ void store_word(uint32_t* address, uint32_t word) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}
__device__ __forceinline__ void load_word_pair(const uint64_t* address, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address) : "memory");
}
__device__ __forceinline__ uint4 load_unit(const char* address) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(address) : "memory");
  return v;
}

// What one word is made of.
template <bool Wide>
struct Words;
template <>
struct Words<false> {
  using Word = uint32_t;
  static constexpr int in_unit = 4;
  static constexpr uint32_t epoch_mask = (1u << kNarrowEpochBits) - 1;
  // Epochs of all four, where they differ from the one that is awaited.
  static __device__ __forceinline__ uint32_t differs(const uint4& unit, uint32_t epoch, int missing) {
    uint32_t bits = unit.x ^ epoch;
    bits |= missing > 2 ? 0 : unit.y ^ epoch;
    bits |= missing > 1 ? 0 : unit.z ^ epoch;
    bits |= missing > 0 ? 0 : unit.w ^ epoch;
    return bits & epoch_mask;
  }
};
template <>
struct Words<true> {
  using Word = uint64_t;
  static constexpr int in_unit = 2;
  static constexpr uint32_t epoch_mask = kEpochMask;
  static __device__ __forceinline__ uint32_t differs(const uint4& unit, uint32_t epoch, int missing) {
    return ((unit.x ^ epoch) | (missing > 0 ? 0 : unit.z ^ epoch)) & epoch_mask;
  }
};

// The winning row of the matrix, in every lane, from the best unit each lane has seen.
struct NarrowWinner {
  uint32_t best = 0, word = 0;  // value and inverted block; the word
  __device__ __forceinline__ void take(const uint4& unit, int first_block, int missing) {
    const uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t key = j < 4 - missing ? (words[j] & 0xffff0000u) | (0xffffu - (first_block + j)) : 0u;
      if (key > best) best = key, word = words[j];
    }
  }
  __device__ __forceinline__ int row(int vocab_tiles) const {
    const uint32_t top = __reduce_max_sync(~0u, best);
    const int block = 0xffff - (top & 0xffffu);
    const uint32_t theirs = __shfl_sync(~0u, word, (block / 4) & 31);
    const int first_tile = static_cast<int>(static_cast<int64_t>(block) * vocab_tiles / gridDim.x);
    return first_tile * kTileRows + kNarrowRows - 1 - ((theirs >> kNarrowEpochBits) & (kNarrowRows - 1));
  }
};
struct WideWinner {
  uint32_t value = 0, low = 0;
  __device__ __forceinline__ void take(const uint4& unit, int, int missing) {
    offer(unit.y, unit.x);
    if (missing == 0) offer(unit.w, unit.z);
  }
  __device__ __forceinline__ void offer(uint32_t other, uint32_t other_low) {
    if (other > value || (other == value && other_low > low)) value = other, low = other_low;
  }
  __device__ __forceinline__ int row(int) const {
    const uint32_t top = __reduce_max_sync(~0u, value);
    return static_cast<int>(kIndexMask - (__reduce_max_sync(~0u, value == top ? low : 0u) >> kEpochBits));
  }
};

// One leader's side of the exchange: its batch rows are leader, leader + leaders, ...
// Its batch rows share their looks, so that a leader of many rows waits once.
template <class C>
struct Exchange {
  using W = Words<C::wide>;
  using Winner = std::conditional_t<C::wide, WideWinner, NarrowWinner>;
  static constexpr int max_units = kMaxBlocks / W::in_unit, looks = (max_units + 31) / 32;  // units of a lane

  char* slots;
  const int32_t* places;  // byte offset of each unit: [epoch & 1][row][unit]
  int blocks, lane;       // blocks: words to wait for
  int grid_units;
  int own[2];          // byte offset of this block's word in either buffer, where one batch row is walked
  int theirs[2][looks];  // likewise of the units that this lane reads
  uint32_t published = 0;  // clock of the last publication

  __device__ __forceinline__ Exchange(const WalkParams& p, int lane_)
      : slots(p.slots), places(p.slot_places), blocks(p.expected_blocks), lane(lane_),
        grid_units((gridDim.x + W::in_unit - 1) / W::in_unit) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      own[parity] = C::rows == 1 ? own_word(parity, 0) : 0;
#pragma unroll
      for (int i = 0; i < looks; ++i) theirs[parity][i] = C::rows == 1 && lane + 32 * i < grid_units ? unit_offset(parity, 0, lane + 32 * i) : 0;
    }
  }
  __device__ __forceinline__ int units() const { return (blocks + W::in_unit - 1) / W::in_unit; }
  __device__ __forceinline__ int unit_offset(uint32_t epoch, int row, int number) const {
    return __ldg(places + ((epoch & 1u) * C::rows + row) * grid_units + number);
  }
  __device__ __forceinline__ int own_word(uint32_t epoch, int row) const {
    return unit_offset(epoch, row, blockIdx.x / W::in_unit) + blockIdx.x % W::in_unit * static_cast<int>(sizeof(typename W::Word));
  }
  __device__ __forceinline__ const char* unit(uint32_t epoch, int row, int i) const {
    if constexpr (C::rows == 1) return slots + ((epoch & 1u) ? theirs[1][i] : theirs[0][i]);
    else return slots + unit_offset(epoch, row, lane + 32 * i);
  }
  __device__ __forceinline__ void publish(typename W::Word word, uint32_t epoch, int row) {
    const int offset = C::rows == 1 ? ((epoch & 1u) ? own[1] : own[0]) : own_word(epoch, row);
    if (lane == 0) store_word(reinterpret_cast<typename W::Word*>(slots + offset), word);
    published = clock();
  }
  // Units past the grid's never come: a test that wants a stall waits for them.
  __device__ __forceinline__ bool awaited(uint32_t pending, int i) const { return (pending & (1u << i)) && lane + 32 * i < grid_units; }

  // Waits for the words of N batch rows at once and gives their winners; returns the units this lane still misses (bit i: lane + 32 i).
  template <int N>
  __device__ __forceinline__ uint32_t wait(uint32_t epoch, const int (&row)[N], int vocab_tiles, uint32_t max_polls, int (&winner)[N]) const {
    Winner best[N];
    uint32_t pending[N];
    const int last_missing = blocks % W::in_unit == 0 ? 0 : W::in_unit - blocks % W::in_unit;  // words that the last unit lacks
#pragma unroll
    for (int n = 0; n < N; ++n) {
      pending[n] = 0;
#pragma unroll
      for (int i = 0; i < looks; ++i)
        if (row[n] >= 0 && lane + 32 * i < units()) pending[n] |= 1u << i;
    }
    while (clock() - published < kFirstPollClocks) {  // no word can be complete yet, and a look that finds nothing delays the next
    }
    for (uint32_t count = 0;; ++count) {
      uint4 seen[N][looks];
#pragma unroll
      for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < looks; ++i)
          if (awaited(pending[n], i)) seen[n][i] = load_unit(unit(epoch, row[n], i));
      bool done = true;
#pragma unroll
      for (int n = 0; n < N; ++n) {
#pragma unroll
        for (int i = 0; i < looks; ++i) {
          const int number = lane + 32 * i, missing = number + 1 == units() ? last_missing : 0;
          if (awaited(pending[n], i) && W::differs(seen[n][i], epoch & W::epoch_mask, missing) == 0) {
            pending[n] &= ~(1u << i);
            best[n].take(seen[n][i], number * W::in_unit, missing);
          }
        }
        done = done && pending[n] == 0;
      }
      if (__all_sync(~0u, done) || count >= max_polls) break;
    }
    uint32_t missed = 0;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      winner[n] = best[n].row(vocab_tiles);
      missed |= pending[n];
    }
    return missed;
  }
};

}  // namespace wts
