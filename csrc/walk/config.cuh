// The shape of one walk kernel as constants: placement, rank, precision, and the shared-memory budget that follows.
//
// Axes used everywhere: a block owns a contiguous range of 16-row tiles; tile i of the block belongs to warp i % warps,
// slot i / warps.
//
// Groups and columns. At batch 1 a product needs 2 of the 8 columns of mma.m16n8 (int8x2: the two latent vectors), so up to
// four slots share one accumulator: slot j writes column pair slot_column(j) of accumulator slot_group(j), the other columns
// of its operand B being masked to zero. Lane (g, t) = (lane / 4, lane % 4) then holds the products of tile rows 2g and
// 2g + 1 of the slots in column t: no selects, and a quarter of the registers. Neighbouring slots go to different groups, so
// that consecutive products do not wait for each other.
//
// Tiers. Register and shared slots alternate evenly over the resident positions, so that reads of shared memory spread over
// the products; streamed slots come last.
#pragma once
#include <cstdint>
#include "wts_abi.h"

namespace wts {

enum class Precision : int { int8x2 = 0, bf16 = 1 };
enum class Probe : int { none = 0, fixed_latent = 1, phases = 2 };

template <int Warps, int RegisterSlots, int SharedSlots, int StreamedSlots, int StagingSlots, int Rank, Precision P,
          int Replicas, Probe Pr>
struct WalkConfig {
  static constexpr int warps = Warps, threads = Warps * 32;
  static constexpr int register_slots = RegisterSlots, shared_slots = SharedSlots, streamed_slots = StreamedSlots;
  static constexpr int staging_slots = StagingSlots;  // ring entries of a warp
  static constexpr int slots = RegisterSlots + SharedSlots + StreamedSlots;
  static constexpr int rank = Rank, replicas = Replicas;
  static constexpr Precision precision = P;
  static constexpr Probe probe = Pr;
  static constexpr bool int8x2 = P == Precision::int8x2;

  static constexpr int k_steps = int8x2 ? Rank / 32 : Rank / 16;
  static constexpr int k_step_bytes = kFragmentBytes * 32;  // of one tile: 16 bytes a lane
  static constexpr int tile_bytes = k_steps * k_step_bytes;
  static constexpr int latent_bytes = int8x2 ? 2 * Rank + kLatentHeaderBytes : 2 * Rank;  // one row of the table
  static constexpr int latent_header = 2 * Rank;  // offset of {s1, s2, halt, 0} in the shared copy, both precisions

  static constexpr int groups = (slots + 3) / 4 < 3 ? (slots < 3 ? slots : 3) : (slots + 3) / 4;
  static constexpr int columns = (slots + groups - 1) / groups;
  __host__ __device__ static constexpr int slot_group(int slot) { return slot % groups; }
  __host__ __device__ static constexpr int slot_column(int slot) { return slot / groups; }
  static constexpr int resident_slots = RegisterSlots + SharedSlots;

  // Of the first `slot` resident slots, those in shared memory; slot s is shared when the count rises at s.
  __host__ __device__ static constexpr int shared_before(int slot) {
    return resident_slots == 0 ? 0 : slot * SharedSlots / resident_slots;
  }
  __host__ __device__ static constexpr bool is_shared(int slot) {
    return slot < resident_slots && shared_before(slot + 1) > shared_before(slot);
  }
  __host__ __device__ static constexpr bool is_register(int slot) { return slot < resident_slots && !is_shared(slot); }

  // Shared memory, in order: resident tiles, staging ring, row scales by (group, warp, lane), latent, warp keys.
  static constexpr int resident_offset = 0;
  static constexpr int staging_offset = resident_offset + SharedSlots * Warps * tile_bytes;
  static constexpr int scale_offset = staging_offset + StagingSlots * Warps * tile_bytes;
  static constexpr int latent_offset = scale_offset + (int8x2 ? groups * Warps * 32 * 8 : 0);
  static constexpr int key_offset = latent_offset + latent_header + kLatentHeaderBytes;
  static constexpr int shared_bytes = key_offset + Warps * 4;

  static_assert(Warps >= 1 && Warps <= 32 && slots >= 1, "a walk needs 1 to 32 warps and at least one slot a warp");
  static_assert(Rank % 32 == 0 && Rank >= 32 && Rank <= kMaxRank, "rank is a multiple of 32 up to 512");
  static_assert(columns <= 4, "a product has four column pairs");
  static_assert((StreamedSlots == 0) == (StagingSlots == 0), "streamed slots need a staging ring, and only they do");
  static_assert(slots * Warps * kTileRows <= 65536, "a row's index in its block has 16 bits");
  static_assert(Replicas >= 1 && Replicas <= kMaxReplicas, "replicas of the exchange words");
};

}  // namespace wts
