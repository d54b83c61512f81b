// What a warp keeps of the matrix for the whole walk: its tiles in three tiers, and their products with the latents of a step.
// config.cuh says which slot lies where and ends in which lane.
#pragma once
#include <type_traits>
#include "tile.cuh"

namespace wts {

template <class C>
struct Shard {
  using Sum = std::conditional_t<C::int8x2, int, float>;
  using Sums = Sum[C::groups > 0 ? C::groups : 1][4];  // of the slots that are multiplied side by side
  // An integer sum starts at the bits of 1.5 * 2^23: below 2^22 its bits are then those of the float 1.5 * 2^23 + sum, and a subtraction
  // is all its conversion. A warpgroup's sums start at nothing, which costs nothing: while other products run on, the compiler waits for
  // them before it sets registers that are to be sums.
  static constexpr bool shifted = C::int8x2 && C::rank * 127 * 127 < 1 << 22;
  static constexpr int shift = shifted ? 0x4b400000 : 0;
  static constexpr Sum start = C::grouped ? 0 : shift;
  static __device__ __forceinline__ float to_float(int sum) {
    return shifted ? __fsub_rn(__uint_as_float(C::grouped ? sum + shift : sum), 0x1.8p23f) : static_cast<float>(sum);
  }
  // Fragments of shared memory in flight, in the order of use: enough products between a load and its use to hide it. A warpgroup
  // loads those of a slot at once.
  static constexpr int shared_fragments = C::grouped ? 0 : C::shared_slots * C::k_steps;
  static constexpr int in_flight_limit = C::groups > 5 || C::wide ? kFragmentsInFlight - 1 : kFragmentsInFlight;  // many sums and wide words take the registers
  static constexpr int in_flight = shared_fragments < in_flight_limit ? shared_fragments : in_flight_limit;

  const char* matrix;  // k-step 0 of the block's first tile
  char* shared;
  int tiles;  // of the block
  int warp, lane;
  uint32_t first_group;  // address of this warpgroup's first shared tiles
  uint32_t column_mask[C::columns > 0 ? C::columns : 1];
  uint4 held[C::register_slots > 0 ? C::register_slots : 1][C::k_steps];
  uint4 ahead[in_flight > 0 ? in_flight : 1];
  // The ring of streamed tiles, in parts of a tile: what is multiplied next, and what is asked for next.
  int ring = 0;  // entry
  int next_part = 0, next_streamed = 0;
  int refills;  // parts still to be asked for, over all steps

  __device__ __forceinline__ Shard(const WalkParams& p, char* shared_memory, int first_tile, int tiles_of_block, int warp_,
                                   int lane_)
      : matrix(static_cast<const char*>(p.matrix) + static_cast<int64_t>(first_tile) * C::tile_bytes),
        shared(shared_memory), tiles(tiles_of_block), warp(warp_), lane(lane_),
        refills(p.steps * C::streamed_slots * C::tile_entries) {
    if constexpr (C::grouped) first_group = group_address();
#pragma unroll
    for (int c = 0; c < C::columns; ++c) column_mask[c] = (lane >> 3) / C::together == c ? ~0u : 0u;
  }

  __device__ __forceinline__ const char* source(int slot, bool& present) const {
    const int tile = slot * C::warps + warp;
    present = tile < tiles;
    return matrix + static_cast<int64_t>(present ? tile : 0) * C::tile_bytes;
  }
  // This lane's first 16 bytes of a shared tile. Packed by rows they are row lane % 8 of the core with rows 8 (lane / 8 % 2) on and half
  // lane / 16 of a k-step.
  __device__ __forceinline__ char* resident(int shared_slot) const {
    if constexpr (C::grouped)
      return group_tiles(shared_slot) + lane / 16 * C::group_half_bytes + (warp % 4 * kTileRows + lane % 16) * kFragmentBytes;
    return shared + C::resident_offset + (shared_slot * C::warps + warp) * C::tile_bytes + lane * kFragmentBytes;
  }
  __device__ __forceinline__ char* group_tiles(int shared_slot) const {
    return shared + C::resident_offset + (shared_slot * C::warps + warp / 4 * 4) * C::tile_bytes;
  }
  // The same as an address that the compiler knows to be one for all lanes.
  __device__ __forceinline__ uint32_t group_address() const { return __shfl_sync(~0u, shared_address(group_tiles(0)), 0); }
  __device__ __forceinline__ char* staging(int entry) const {
    return shared + C::staging_offset + (entry * C::warps + warp) * C::entry_bytes + lane * kFragmentBytes;
  }

  __device__ __forceinline__ void copy_slot(char* to, int slot) const {
    bool present;
    const char* from = source(slot, present) + lane * kFragmentBytes;
    const uint32_t address = shared_address(to);
    constexpr int stride = C::grouped ? C::group_step_bytes : C::k_step_bytes;
#pragma unroll
    for (int k = 0; k < C::k_steps; ++k) copy_fragment(address + k * stride, from + k * C::k_step_bytes, present);
  }

  // Issues every load of the shard; finish_entry waits for the shared ones, first use waits for the registers.
  __device__ __forceinline__ void begin_entry(bool stays_in_l2) {
#pragma unroll
    for (int slot = 0; slot < C::resident_slots; ++slot)
      if (C::is_shared(slot)) copy_slot(resident(C::shared_before(slot)), slot);
    commit_copies();
    if constexpr (C::streamed_slots > 0)
      for (int entry = 0; entry < C::staging_entries; ++entry) ask(entry);
#pragma unroll
    for (int slot = 0; slot < C::resident_slots; ++slot) {
      if (!C::is_register(slot)) continue;
      bool present;
      const char* from = source(slot, present);
#pragma unroll
      for (int k = 0; k < C::k_steps; ++k)
        held[slot - C::shared_before(slot)][k] = present ? load_held(from + k * C::k_step_bytes, stays_in_l2) : make_uint4(0, 0, 0, 0);
    }
  }
  __device__ __forceinline__ uint4 load_held(const char* k_step, bool stays_in_l2) const {
    if constexpr (C::grouped) return load_words(k_step + lane * 4, stays_in_l2);
    return load_fragment(k_step + lane * kFragmentBytes, stays_in_l2);
  }
  __device__ __forceinline__ void finish_entry() { wait_copies<C::staging_entries>(); }

  // Place of a shared slot's fragment in the order of use (k-step by k-step), and the other way round; -1 past the end.
  __host__ __device__ static constexpr int fragment_index(int slot, int k) {
    return k * C::shared_slots + C::shared_before(slot);
  }
  __host__ __device__ static constexpr int fragment_offset(int index) {
    return index < shared_fragments
               ? (index % C::shared_slots) * C::warps * C::tile_bytes + (index / C::shared_slots) * C::k_step_bytes
               : -1;
  }
  template <int Index>
  __device__ __forceinline__ void fetch_fragment() {
    if constexpr (Index < shared_fragments) {
      constexpr int offset = fragment_offset(Index);
      ahead[Index % in_flight] = *reinterpret_cast<const uint4*>(resident(0) + offset);
    }
  }
  // The first fragments of a reading, fetched before its latents are there.
  __device__ __forceinline__ void fetch_ahead() {
    for_each_index<in_flight>([&](auto i) { fetch_fragment<i>(); });
  }

  // Products of the slots that go side by side with the latents of a quad.
  __device__ __forceinline__ void products(Sums& sums, const char* latents, int quad) {
#pragma unroll
    for (int i = 0; i < C::groups; ++i) sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = start;
    const LatentOperand<C> operand(latents, lane);
    if constexpr (C::resident_slots > 0) {
      for_each_index<C::k_steps>([&](auto k) {
        const uint2 b = operand.fetch(k, quad);
        for_each_index<C::resident_slots>([&](auto slot) {
          if constexpr (C::is_shared(slot)) {
            constexpr int index = fragment_index(slot, k);
            const uint4 a = ahead[index % in_flight];
            fetch_fragment<index + in_flight>();
            multiply_slot(sums, slot, a, b);
          } else {
            multiply_slot(sums, slot, held[slot - C::shared_before(slot)][k], b);
          }
        });
      });
    }
    if constexpr (!C::streamed_alone)
      for_each_index<C::streamed_slots>([&](auto streamed) {
#pragma unroll 1  // unrolled, the loads ahead take registers from the resident slots
        for (int part = 0; part < C::tile_entries; ++part) {
          const char* const entry = await_part();
#pragma unroll
          for (int k = 0; k < C::entry_steps; ++k)
            multiply_slot(sums, C::resident_slots + streamed, fragment_of(entry, k), operand.fetch(part * C::entry_steps + k, 0));
          leave_part();
        }
      });
  }

  // One slot of four warps with all batch rows. The products run on by themselves: await_group waits for them.
  template <int Slot>
  __device__ __forceinline__ void begin_group(Sum (&sums)[C::group_quads][4], const char* latents, Index<Slot>) {
    if constexpr (Slot < C::resident_slots) {
      const uint32_t operand = shared_address(latents);
      constexpr int before = C::shared_before(Slot);
      if constexpr (C::is_shared(Slot)) {
        uint32_t tiles[C::k_steps];
#pragma unroll
        for (int k = 0; k < C::k_steps; ++k) tiles[k] = first_group + before * C::warps * C::tile_bytes + k * C::group_step_bytes;
        multiply_steps<C::k_steps>(sums, tiles, operand, false);
      } else {
        multiply_steps<C::k_steps>(sums, held[Slot - before], operand, false);
      }
    } else {
      begin_group(sums, latents, Slot);
    }
  }
  // The next streamed slot.
  __device__ __forceinline__ void begin_group(Sum (&sums)[C::group_quads][4], const char* latents, int) {
    uint32_t operand = shared_address(latents);
#pragma unroll 1
    for (int part = 0; part < C::tile_entries; ++part) {
      if (part > 0) await_group<0>(sums);
      const char* const entry = await_part();
      uint4 fragment[C::entry_steps];
#pragma unroll
      for (int k = 0; k < C::entry_steps; ++k) fragment[k] = fragment_of(entry, k);
      multiply_steps<C::entry_steps>(sums, fragment, operand, part > 0);
      operand += C::entry_steps * C::operand_step_bytes;
      leave_part();
    }
  }
  template <int Pending>
  __device__ __forceinline__ void await_group(Sum (&sums)[C::group_quads][4]) const {
    wait_products<Pending>();
    hold(sums);
  }
  // `tiles` are fragments, or addresses in shared memory.
  template <int Steps, class Tiles>
  __device__ __forceinline__ void multiply_steps(Sum (&sums)[C::group_quads][4], const Tiles (&tiles)[Steps], uint32_t operand, bool adds) const {
    order_products();
#pragma unroll
    for (int k = 0; k < Steps; ++k) multiply_group(sums, tiles[k], operand + k * C::operand_step_bytes, C::half_bytes, adds || k > 0);
    commit_products();
  }

  __device__ __forceinline__ void multiply_slot(Sums& sums, int slot, const uint4& a, uint2 b) const {
    if constexpr (C::pack > 1) {
      const uint32_t mask = column_mask[C::slot_column(slot)];
      b = make_uint2(b.x & mask, b.y & mask);
    }
    multiply(sums[C::slot_group(slot)], a, b);
  }

  // One streamed tile with N quads from `quad` on; the last quads of a tile leave it behind.
  template <int N>
  __device__ __forceinline__ void streamed_products(Sum (&sum)[N][4], const char* latents, int quad, bool last) {
#pragma unroll
    for (int q = 0; q < N; ++q) sum[q][0] = sum[q][1] = sum[q][2] = sum[q][3] = start;
    const LatentOperand<C> operand(latents, lane);
#pragma unroll 1
    for (int part = 0; part < C::tile_entries; ++part) {
      const char* const entry = last ? await_part() : await_whole(part);
#pragma unroll
      for (int k = 0; k < C::entry_steps; ++k) {
        const uint4 a = fragment_of(entry, k);
#pragma unroll
        for (int q = 0; q < N; ++q) multiply(sum[q], a, operand.fetch(part * C::entry_steps + k, quad + q));
      }
      if (last) leave_part();
    }
  }

  // The ring runs on across steps: the matrix does not change, so parts of the next step land while the blocks agree. Each part is one group
  // of copies. A lane reads the bytes it has copied, so it waits for its own copies alone; packed by rows, for those of its warp.
  __device__ __forceinline__ static uint4 fragment_of(const char* entry, int k) {
    if constexpr (C::grouped) return load_cores(shared_address(entry + k * C::k_step_bytes));
    return *reinterpret_cast<const uint4*>(entry + k * C::k_step_bytes);
  }
  __device__ __forceinline__ const char* await_part() const {
    wait_copies<(C::staging_entries > 0 ? C::staging_entries - 1 : 0)>();
    if constexpr (C::grouped) __syncwarp();
    return staging(ring);
  }
  // A part of a tile that stays in the ring.
  __device__ __forceinline__ const char* await_whole(int part) const {
    wait_copies<(C::staging_entries > C::tile_entries ? C::staging_entries - C::tile_entries : 0)>();
    const int entry = ring + part;
    return staging(entry < C::staging_entries ? entry : entry - C::staging_entries);
  }
  __device__ __forceinline__ void leave_part() {
    if constexpr (C::grouped) __syncwarp();
    ask(ring);
    ring = ring + 1 == C::staging_entries ? 0 : ring + 1;
  }
  __device__ __forceinline__ void ask(int entry) {
    if (refills > 0) {
      bool present;
      const char* const from = source(C::resident_slots + next_streamed, present) + next_part * C::entry_bytes + lane * kFragmentBytes;
      const uint32_t to = shared_address(staging(entry));
#pragma unroll
      for (int k = 0; k < C::entry_steps; ++k) copy_fragment(to + k * C::k_step_bytes, from + k * C::k_step_bytes, present);
      if (++next_part == C::tile_entries) next_part = 0, next_streamed = next_streamed + 1 == C::streamed_slots ? 0 : next_streamed + 1;
    }
    commit_copies();  // empty at the end, which keeps the count that wait_copies relies on
    --refills;
  }
};

}  // namespace wts
