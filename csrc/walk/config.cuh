// The shape of one walk kernel as constants: placement, rank, precision, rows, head, and the shared-memory budget that follows.
//
// Axes used everywhere: a block owns a contiguous range of 16-row tiles; tile i of the block belongs to warp i % warps,
// slot i / warps. A *row* of a walk is a batch row; a row of the matrix is called so.
//
// Columns. The 8 columns of mma.m16n8 are four pairs: the two latent vectors of one batch row in int8x2 (in bf16 the same
// vector twice). With 1 or 2 batch rows, `pack` slots share one accumulator: slot j writes column pairs slot_column(j) of
// accumulator slot_group(j), the others being masked to zero in operand B. Lane (g, t) = (lane / 4, lane % 4) then holds the
// products of tile rows 2g and 2g + 1 of the slots in column t / together for batch row t % together: no selects, and a part
// of the registers. Neighbouring slots go to different groups, so that consecutive products do not wait for each other. From 4
// batch rows on a column pair is a batch row, and more than 4 are walked in `quads` of 4, each reading the matrix once.
//
// Warpgroups multiply a slot's tiles, four at once, with up to four quads: 8 columns a quad. What they multiply lies in shared memory by
// rows, so their matrix is packed so, too; a fragment in registers is four words of it (wts_lab/packing.py).
//
// Tiers. Register and shared slots alternate evenly over the resident positions, so that reads of shared memory spread over
// the products; streamed slots come last.
#pragma once
#include <cstdint>
#include "wts_abi.h"

namespace wts {

enum class Precision : int { int8x2 = 0, bf16 = 1 };
enum class Rounding : int { once = 0, twice = 1, none = 2 };
enum class HeadKind : int { markov = 0, gated = 1, rnn = 2, domino = 3 };
enum class Products : int { warp = 0, warpgroup = 1 };  // who multiplies a tile: mma.sync, or wgmma for four tiles at once
enum class Probe : int { none = 0, fixed_latent = 1, phases = 2, exchange = 3, state = 4 };

template <int Warps, int RegisterSlots, int SharedSlots, int StreamedSlots, int StagingEntries, int Rows, int Rank, Precision P, Rounding R,
          bool Sampling, bool Wide, Products By, HeadKind Kind, int Gru, int StateRows, int ProjectorRows, Probe Pr>
struct WalkConfig {
  static constexpr int warps = Warps, threads = Warps * 32;
  static constexpr int register_slots = RegisterSlots, shared_slots = SharedSlots, streamed_slots = StreamedSlots;
  static constexpr int staging_entries = StagingEntries;  // of a warp's ring
  static constexpr int resident_slots = RegisterSlots + SharedSlots, slots = resident_slots + StreamedSlots;
  static constexpr int rows = Rows, rank = Rank;
  static constexpr Precision precision = P;
  static constexpr Rounding rounding = R;
  static constexpr bool int8x2 = P == Precision::int8x2, sampling = Sampling, wide = Wide;
  static constexpr bool grouped = By == Products::warpgroup;
  static constexpr HeadKind head = Kind;
  static constexpr bool recurrent = Kind == HeadKind::rnn || Kind == HeadKind::domino;
  static constexpr int gru = Gru, state_rows = StateRows, projector_rows = ProjectorRows;
  static constexpr Probe probe = Pr;

  static constexpr int k_steps = int8x2 ? Rank / 32 : Rank / 16;
  static constexpr int k_step_bytes = kFragmentBytes * 32;  // of one tile: 16 bytes a lane
  static constexpr int tile_bytes = k_steps * k_step_bytes;
  static constexpr int entry_steps = k_steps % 4 == 0 ? 4 : k_steps;  // k-steps of one entry of the ring: a part of a tile
  static constexpr int entry_bytes = entry_steps * k_step_bytes, tile_entries = k_steps / entry_steps;
  static constexpr int latent_bytes = int8x2 ? 2 * Rank + kLatentHeaderBytes : 2 * Rank;  // one row of the Markov table
  static constexpr int latent_header = 2 * Rank;  // offset of {s1, s2, 0, 0} in the shared copy, both precisions
  // Neighbouring latents differ by 64 bytes modulo 128: two batch rows are read without bank conflicts.
  static constexpr int latent_stride = (latent_header + kLatentHeaderBytes + 127) / 128 * 128 + 64;
  // Operand of a warpgroup: [k-step][half of its 32 elements][latent vectors of all batch rows][16 bytes], then a header a batch row.
  // The 32 bytes keep k-steps, which the lanes of a warp write side by side, in different banks.
  static constexpr int half_bytes = 2 * Rows * 16, operand_step_bytes = 2 * half_bytes + 32;
  static constexpr int operand_bytes = k_steps * operand_step_bytes;
  // Shared tiles of a warpgroup, four side by side: [k-step][half of its 32 elements][64 rows][16 bytes].
  static constexpr int group_step_bytes = 4 * k_step_bytes, group_half_bytes = group_step_bytes / 2;
  static constexpr int latents_bytes = grouped ? operand_bytes + Rows * kLatentHeaderBytes : Rows * latent_stride;

  static constexpr int together = Rows < 4 ? Rows : 4;  // batch rows of one product
  static constexpr int quads = (Rows + 3) / 4;
  static constexpr int pack = 4 / together;
  // Slots that are multiplied side by side: all of them, but for many rows the resident ones, and then each streamed one alone. A
  // warpgroup takes each slot alone.
  static constexpr bool streamed_alone = quads > 1;
  static constexpr int joint_slots = grouped ? 0 : streamed_alone ? resident_slots : slots;
  // Quads of a warpgroup's products: four leave registers for tiles, but what streams is read once for all.
  static constexpr int group_quads = quads < 4 || StreamedSlots > 0 ? quads : 4;
  // Slots ahead of its selection that a warpgroup's base logits are asked for: as many as the registers allow.
  static constexpr int wanted_ahead = group_quads <= 2 ? 7 : group_quads == 4 ? 3 : 2, slots_ahead = slots < wanted_ahead ? slots : wanted_ahead;
  // Slots of a warpgroup whose code stands by itself; the others, two for each turn of a loop, are streamed ones of more than 16 rows: the code of
  // each is 11 KiB, with more than ten a kernel outgrows the instruction cache, and at ranks above 256 it spills.
  static constexpr int loopable = StreamedSlots > 0 ? (StreamedSlots - (resident_slots == 0)) / 2 * 2 : 0;  // after the first slot, in pairs
  static constexpr bool loops = grouped && quads > 4 && loopable > 0 && (slots > 10 || Rank > 256);
  static constexpr int turns = slots - (loops ? loopable : 0);
  static constexpr int least_groups = joint_slots < 3 ? joint_slots : 3;
  static constexpr int groups = (joint_slots + pack - 1) / pack < least_groups ? least_groups : (joint_slots + pack - 1) / pack;
  static constexpr int columns = groups == 0 ? 0 : (joint_slots + groups - 1) / groups;
  __host__ __device__ static constexpr int slot_group(int slot) { return slot % groups; }
  __host__ __device__ static constexpr int slot_column(int slot) { return slot / groups; }

  // Of the first `slot` resident slots, those in shared memory; slot s is shared when the count rises at s.
  __host__ __device__ static constexpr int shared_before(int slot) {
    return resident_slots == 0 ? 0 : slot * SharedSlots / resident_slots;
  }
  __host__ __device__ static constexpr bool is_shared(int slot) {
    return slot < resident_slots && shared_before(slot + 1) > shared_before(slot);
  }
  __host__ __device__ static constexpr bool is_register(int slot) { return slot < resident_slots && !is_shared(slot); }

  static constexpr int leaders = Rows < Warps ? Rows : Warps;         // warps that exchange words, one batch row each or more
  static constexpr int led_rows = (Rows + Warps - 1) / Warps;         // of one leader
  static constexpr int block_rows = slots * Warps * kTileRows;        // of the matrix

  // Shared memory, in order: resident tiles, staging ring, row scales, latents, keys, tokens and flags, temperatures and bounds of noise, state.
  static constexpr int scale_slots = pack * groups > slots ? pack * groups : slots;  // lanes read scales of slots that are not there
  static constexpr int scale_stride = Warps * kTileRows * 4 + 32;  // of a slot; the 32 bytes keep columns in different banks
  static constexpr int resident_offset = 0;
  static constexpr int staging_offset = resident_offset + SharedSlots * Warps * tile_bytes;
  static constexpr int scale_offset = staging_offset + StagingEntries * Warps * entry_bytes;
  static constexpr int latent_offset = (scale_offset + (int8x2 ? scale_slots * scale_stride : 0) + 127) / 128 * 128;
  static constexpr int key_offset = latent_offset + latents_bytes;
  static constexpr int key_bytes = Wide ? 8 * Rows * Warps : 4 * 2 * Rows;  // narrow: block maxima of two steps
  static constexpr int token_offset = key_offset + (key_bytes + 15) / 16 * 16;
  static constexpr int halt_offset = token_offset + 4 * Rows;
  static constexpr int temperature_offset = halt_offset + 4;
  static constexpr int bounds_offset = (temperature_offset + (Sampling ? 4 * Rows : 0) + 15) / 16 * 16;
  static constexpr int bounds_bytes = Sampling && streamed_alone && StreamedSlots > 0 ? 16 * Rows : 0;
  static constexpr int state_offset = bounds_offset + bounds_bytes;

  static_assert(Warps >= 1 && Warps <= 32 && slots >= 1, "a walk needs 1 to 32 warps and at least one slot a warp");
  static_assert(Rows == 1 || Rows == 2 || Rows % 4 == 0 && Rows <= kMaxRows && (quads <= 4 || quads % 4 == 0),
                "rows are 1, 2, or quads up to 32; streamed tiles take four quads at a time");
  static_assert(Rank % 32 == 0 && Rank >= 32 && Rank <= kMaxRank, "rank is a multiple of 32 up to 512");
  static_assert(columns <= pack, "a product has four column pairs");
  static_assert((StreamedSlots == 0) == (StagingEntries == 0), "streamed slots need a staging ring, and only they do");
  static_assert(!grouped || !Sampling, "sampled rows are multiplied by warps");
  static_assert(!grouped || int8x2 && Warps % 4 == 0 && Rows >= 4, "warpgroups multiply int8x2 with 4, 8, 16 or 32 rows");
  static_assert(grouped || quads <= 4 || StreamedSlots == 0 || StagingEntries >= tile_entries, "a tile is read twice for more than four quads: the ring holds it whole");
  static_assert(!loops || slots_ahead == 2, "a turn of the loop has the places of two slots' base logits");
  static_assert(Wide || block_rows <= kNarrowRows, "a row's index in its block has 11 bits in a 32-bit word");
  static_assert(Wide || (!Sampling && R != Rounding::none), "fp32 values need 64-bit words");
};

}  // namespace wts
