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

// Called by one warp. Reads the words of `blocks` blocks, two a lane and load; words already seen are not polled again.
template <int Replicas>
__device__ __forceinline__ ExchangeResult exchange_wait(uint64_t* slots, uint32_t epoch, int blocks, int lane,
                                                        uint32_t max_polls) {
  constexpr int kPairsALane = kSlotCapacity / 64;
  epoch &= kEpochMask;
  const uint64_t* words = slot_base<Replicas>(slots, epoch, blockIdx.x % Replicas);
  uint32_t pending = 0;
#pragma unroll
  for (int i = 0; i < kPairsALane; ++i)
    if (2 * (lane + 32 * i) < blocks) pending |= 1u << i;
  uint64_t best = 0;
  for (uint32_t polls = 0;; ++polls) {
    uint64_t word[kPairsALane][2];
#pragma unroll
    for (int i = 0; i < kPairsALane; ++i)
      if (pending & (1u << i)) load_word_pair(words + 2 * (lane + 32 * i), word[i][0], word[i][1]);
#pragma unroll
    for (int i = 0; i < kPairsALane; ++i) {
      if (!(pending & (1u << i))) continue;
      const bool lone = 2 * (lane + 32 * i) + 1 >= blocks;  // an odd grid's last word has no partner
      const bool first_in = (static_cast<uint32_t>(word[i][0]) & kEpochMask) == epoch;
      const bool second_in = lone || (static_cast<uint32_t>(word[i][1]) & kEpochMask) == epoch;
      if (!(first_in && second_in)) continue;
      pending &= ~(1u << i);
      best = max(best, word[i][0]);
      if (!lone) best = max(best, word[i][1]);
    }
    if (__all_sync(~0u, pending == 0)) break;
    if (polls >= max_polls) return {0, pending};
  }
  const uint32_t high = __reduce_max_sync(~0u, static_cast<uint32_t>(best >> 32));
  const uint32_t mine = static_cast<uint32_t>(best >> 32) == high ? static_cast<uint32_t>(best) : 0u;
  return {(static_cast<uint64_t>(high) << 32) | __reduce_max_sync(~0u, mine), 0};
}

}  // namespace wts
