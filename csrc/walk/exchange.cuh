// Selection across blocks: every block publishes one word, every block reads all words and takes their maximum.
//
// Slots: uint64 [replica][buffer = epoch & 1][kSlotCapacity]; block b writes slot b of every replica and polls replica
// b % replicas only, so that a cache line of words is polled by grid / replicas blocks. Two buffers suffice: a block
// writes epoch e + 2 only after it has read every word of e + 1, each written after its writer had finished reading e.
// A word carries its own epoch, so relaxed accesses are enough: no other data is published through it.
// Waits are bounded by max_polls and report the missing words.
#pragma once
#include <cstdint>
#include "wts_abi.h"

namespace wts {

__device__ __forceinline__ void store_word(uint64_t* address, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(word) : "memory");
}

__device__ __forceinline__ void load_word_pair(const uint64_t* address, uint64_t& first, uint64_t& second) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(address) : "memory");
}

template <int Replicas>
__device__ __forceinline__ uint64_t* slot_base(uint64_t* slots, uint32_t epoch, int replica) {
  return slots + (replica * 2 + (epoch & 1u)) * kSlotCapacity;
}

// Called by one warp with the block's word in every lane.
template <int Replicas>
__device__ __forceinline__ void exchange_publish(uint64_t* slots, uint64_t word, int lane) {
  const uint32_t epoch = static_cast<uint32_t>(word) & kEpochMask;
#pragma unroll
  for (int first = 0; first < Replicas; first += 32)
    if (first + lane < Replicas) store_word(slot_base<Replicas>(slots, epoch, first + lane) + blockIdx.x, word);
}

struct ExchangeResult {
  uint64_t word;     // the maximum, in every lane; meaningless when a word is missing
  uint32_t pending;  // this lane's unread pairs: bit i stands for words 2 (lane + 32 i) and the next
};

// The words that one warp waits for, two a lane and load: a third of the requests of single words, and measured faster.
// Words already seen are not polled again.
struct WordPoll {
  static constexpr int pairs = kSlotCapacity / 64;
  const uint64_t* words;  // this lane's first pair
  uint32_t epoch, pending = 0, lone = 0;  // lone: the last word of an odd grid has no partner
  uint64_t best = 0;

  __device__ __forceinline__ WordPoll(const uint64_t* slots, uint32_t epoch_, int blocks, int lane)
      : words(slots + 2 * lane), epoch(epoch_ & kEpochMask) {
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      const int first = 2 * (lane + 32 * i);
      if (first < blocks) pending |= 1u << i;
      if (first + 1 == blocks) lone |= 1u << i;
    }
  }
  // One look at every pending pair; true, in every lane, once all have been seen.
  __device__ __forceinline__ bool look() {
    uint64_t word[pairs][2];
#pragma unroll
    for (int i = 0; i < pairs; ++i)
      if (pending & (1u << i)) load_word_pair(words + 64 * i, word[i][0], word[i][1]);
#pragma unroll
    for (int i = 0; i < pairs; ++i) {
      const uint64_t second = (lone & (1u << i)) ? word[i][0] : word[i][1];
      const uint32_t differs = (static_cast<uint32_t>(word[i][0]) ^ epoch) | (static_cast<uint32_t>(second) ^ epoch);
      if ((pending & (1u << i)) && (differs & kEpochMask) == 0) {
        pending &= ~(1u << i);
        best = max(best, max(word[i][0], second));
      }
    }
    return __all_sync(~0u, pending == 0);
  }
  __device__ __forceinline__ ExchangeResult result() const {
    const uint32_t high = __reduce_max_sync(~0u, static_cast<uint32_t>(best >> 32));
    const uint32_t mine = static_cast<uint32_t>(best >> 32) == high ? static_cast<uint32_t>(best) : 0u;
    return {(static_cast<uint64_t>(high) << 32) | __reduce_max_sync(~0u, mine), pending};
  }
};

// Called by one warp, after exchange_publish. The first look waits: no word can be complete yet, and every poll of every
// block passes through the few L2 slices that hold the words and delays those still on their way.
template <int Replicas>
__device__ __forceinline__ ExchangeResult exchange_wait(uint64_t* slots, uint32_t epoch, int blocks, int lane,
                                                        uint32_t max_polls) {
  WordPoll poll(slot_base<Replicas>(slots, epoch & kEpochMask, blockIdx.x % Replicas), epoch, blocks, lane);
  const uint32_t ready = clock();
  while (clock() - ready < kFirstPollClocks) {
  }
  for (uint32_t looks = 0;; ++looks)
    if (poll.look() || looks >= max_polls) return poll.result();
}

}  // namespace wts
