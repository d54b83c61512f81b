// Probe: the walk's own exchange (csrc/walk/exchange.cuh), alone: the leaders of a walk, one word a block and batch row, round after
// round.
//
// Each round's words depend on the winner of the round before, so rounds cannot overlap; their draws are made while the words travel.
// Buffers: slots as wts_lab/workspace.py makes them; agreed int32 [blocks, rows], the last winners; status uint32[1], 0 or
// 1 + the round that stalled. The grid is launched cooperatively.
#pragma once
#include "offers.cuh"

namespace wts_probe {

constexpr int kBlockTiles = wts::kNarrowRows / wts::kTileRows;  // as many rows as a narrow word can tell apart

template <class C>
__global__ void __launch_bounds__(wts_offers::threads_of<C>(), 1)
    walk_exchange_kernel(const __grid_constant__ wts::WalkParams p, int32_t* agreed, uint32_t* status, int rounds, uint32_t first_epoch) {
  constexpr int N = C::led_rows;
  const int leader = threadIdx.x / 32, lane = threadIdx.x % 32, first_row = blockIdx.x * wts::kNarrowRows;
  wts::Exchange<C> exchange(p, lane);
  int row[N], winner[N];
  uint64_t drawn[N];
#pragma unroll
  for (int n = 0; n < N; ++n) {
    row[n] = leader + n * C::leaders;
    winner[n] = 0;
    drawn[n] = wts_offers::draw(0, wts_offers::position(0, row[n], blockIdx.x));
  }
  for (int round = 0; round < rounds; ++round) {
    const uint32_t epoch = first_epoch + round;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const uint64_t offer = drawn[n] ^ (wts_offers::kGolden * static_cast<uint32_t>(winner[n]));
      const int local = static_cast<int>(offer & (wts::kNarrowRows - 1));
      exchange.publish(wts_offers::word_of<C>(static_cast<uint32_t>(offer >> 32), first_row, local, epoch), epoch, row[n]);
      drawn[n] = wts_offers::draw(0, wts_offers::position(round + 1, row[n], blockIdx.x));
    }
    const uint32_t missed = exchange.wait(epoch, row, p.vocab_tiles, p.max_polls, winner);
    if (__any_sync(~0u, missed != 0)) {
      if (lane == 0) atomicMax(status, static_cast<uint32_t>(round) + 1u);
      return;
    }
  }
#pragma unroll
  for (int n = 0; n < N; ++n)
    if (lane == 0) agreed[blockIdx.x * C::rows + row[n]] = winner[n];
}

}  // namespace wts_probe
