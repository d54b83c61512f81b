// Stress: the walk's own exchange (csrc/walk/exchange.cuh) with blocks that come late and words that are hard to tell apart. Every
// leader of every block checks every winner against what all blocks must have published, by arithmetic of its own.
//
// Buffers: slots and places as wts_lab/workspace.py makes them, zeroed before the first launch; counts uint64[2], added to:
// mismatches and stalls, each of one block and batch row. The grid is launched cooperatively; every wait is bounded, and a leader that
// stalls leaves, and later launches do nothing. Batch rows that a launch leaves out keep up at its end, as they must where words carry few bits of their epoch.
#pragma once
#include "../probes/offers.cuh"

namespace wts_stress {

using wts_offers::draw;
using wts_offers::position;

constexpr int kCommon = wts_offers::kPlaces - 1;  // place of what the blocks of an epoch and batch row share
constexpr uint64_t kDelays = 0x5eed;              // seed of delays, beside that of words

struct Offer {
  uint32_t value;
  int local;  // row of the matrix past the block's first
};

__device__ __forceinline__ int first_row_of(int block, int vocab_tiles) {
  return static_cast<uint32_t>(block) * static_cast<uint32_t>(vocab_tiles) / gridDim.x * wts::kTileRows;
}

__device__ Offer offer_of(uint64_t seed, uint32_t epoch, int row, int block, int vocab_tiles) {
  const uint64_t own = draw(seed, position(epoch, row, block)), common = draw(seed, position(epoch, row, kCommon));
  const int rows = first_row_of(block + 1, vocab_tiles) - first_row_of(block, vocab_tiles);
  Offer offer{static_cast<uint32_t>(own >> 32), static_cast<int>(static_cast<uint32_t>(own) % rows)};
  switch (common % 5) {
    case 0: break;                                                     // anything
    case 1: offer.value = static_cast<uint32_t>(common >> 32); break;  // all alike: the lowest row wins
    case 2: offer.value = block == epoch % gridDim.x ? ~0u : offer.value >> 1; break;  // every block's turn
    case 3:                                                            // the ends of every field
      offer.value = own & 1 ? ~0u : own & 2 ? 0x80000000u : 0u;
      offer.local = own & 4 ? 0 : rows - 1;
      break;
    case 4: offer.value = static_cast<uint32_t>(common >> 32) ^ (own & 1 ? 0x10001u : 0u); break;  // neighbours, in either width
  }
  return offer;
}

// The row that must win: of the largest values the lowest, each lane looking at a part of the blocks.
template <class C>
__device__ int expected_winner(uint64_t seed, uint32_t epoch, int row, int vocab_tiles, int lane) {
  uint32_t value = 0, lowest = ~0u;
  for (int block = lane; block < gridDim.x; block += 32) {
    const Offer offer = offer_of(seed, epoch, row, block, vocab_tiles);
    const uint32_t seen = C::wide ? offer.value : offer.value >> 16;
    const uint32_t place = first_row_of(block, vocab_tiles) + offer.local;
    if (lowest == ~0u || seen > value || (seen == value && place < lowest)) value = seen, lowest = place;
  }
  const uint32_t top = __reduce_max_sync(~0u, value);
  return static_cast<int>(~__reduce_max_sync(~0u, value == top ? ~lowest : 0u));
}

// Clocks that a block idles: nobody, everybody a little, one block always, a few blocks long, in turns of 256 epochs.
__device__ uint32_t delay_of(uint64_t seed, uint32_t epoch, int leader, int moment) {
  const uint64_t drawn = draw(seed ^ kDelays, position(2 * epoch + moment, leader, blockIdx.x));
  switch ((epoch >> 8) & 3) {
    case 1: return drawn % 512;
    case 2: return blockIdx.x == (epoch >> 10) % gridDim.x ? 4096 : 0;
    case 3: return drawn % 16 == 0 ? (drawn >> 32) % 4096 : 0;
    default: return 0;
  }
}
__device__ __forceinline__ void idle(uint32_t clocks) {
  const uint32_t start = wts::short_clock();
  while (__any_sync(~0u, wts::short_clock() - start < clocks)) {  // all lanes together
  }
}

template <class C>
__global__ void __launch_bounds__(wts_offers::threads_of<C>(), 1)
    stress_kernel(const __grid_constant__ wts::WalkParams p, unsigned long long* counts, int rounds, uint32_t first_epoch, uint64_t seed,
                  uint64_t checked_seed) {
  constexpr int N = C::led_rows;
  if (counts[1] != 0) return;  // the words are no longer what the epoch says
  const int leader = threadIdx.x / 32, lane = threadIdx.x % 32, first_row = first_row_of(blockIdx.x, p.vocab_tiles);
  wts::Exchange<C> exchange(p, lane);
  int row[N], winner[N];
#pragma unroll
  for (int n = 0; n < N; ++n) row[n] = leader + n * C::leaders < p.batch ? leader + n * C::leaders : -1;
  unsigned long long mismatches = 0;
  bool stalled = false;
  for (int round = 0; round < rounds && row[0] >= 0; ++round) {
    const uint32_t epoch = first_epoch + round;
    idle(delay_of(seed, epoch, leader, 0));
#pragma unroll
    for (int n = 0; n < N; ++n) {
      if (row[n] < 0) continue;
      const Offer offer = offer_of(seed, epoch, row[n], blockIdx.x, p.vocab_tiles);
      exchange.publish(wts_offers::word_of<C>(offer.value, first_row, offer.local, epoch), epoch, row[n]);
    }
    idle(delay_of(seed, epoch, leader, 1));
    const uint32_t missed = exchange.wait(epoch, row, p.vocab_tiles, p.max_polls, winner);
    stalled = __any_sync(~0u, missed != 0);
    if (stalled) break;
#pragma unroll
    for (int n = 0; n < N; ++n)
      if (row[n] >= 0 && winner[n] != expected_winner<C>(checked_seed, epoch, row[n], p.vocab_tiles, lane)) ++mismatches;
  }
  const uint32_t last_epoch = first_epoch + rounds - 1;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const int left_out = leader + n * C::leaders;
    if (left_out < p.batch) continue;
    for (uint32_t epoch = last_epoch - 1; epoch != last_epoch + 1; ++epoch)
      exchange.publish(wts_offers::word_of<C>(0, first_row, 0, epoch), epoch, left_out);
  }
  if (lane == 0 && mismatches > 0) atomicAdd(&counts[0], mismatches);
  if (lane == 0 && stalled) atomicAdd(&counts[1], 1ull);
}

}  // namespace wts_stress
