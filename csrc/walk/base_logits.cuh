// Base logits of a lane's rows, in pairs. They do not depend on tokens: L2 is asked for them some steps ahead, and a lane loads those of a step's
// first quad while the blocks agree, those of the next quad while the one before is selected from. What lies past the vocabulary, and in slots
// that are not there, is -inf: no valid row loses to it, since ties go to the lower index.
//
// Pairs start at four bytes, and -inf follows an odd vocabulary: the host copies what is not so (packing.in_pairs).
#pragma once
#include "tile.cuh"

namespace wts {

template <class C>
struct BaseLogits {
  static constexpr int groups = C::groups > 0 ? C::groups : 1;
  static constexpr int slot_rows = C::warps * kTileRows;

  const WalkParams& p;
  int warp, lane;
  int first_row, end;           // of the block in the vocabulary, and its rows
  int row_in_block, batch_row;  // of this lane's first pair, in quad 0
  uint32_t next[groups];        // of the slots that are multiplied side by side
  // A warpgroup's: of the next slots, and where the first pairs of each quad lie.
  static constexpr int columns = C::grouped ? C::group_quads : 1;
  uint32_t ahead[C::grouped ? C::slots_ahead : 1][columns];
  const uint16_t* column[columns];
  int columns_from = 0;  // the first of these quads

  // Where the pairs of a quad lie, and how many of the block's rows there are from the first on.
  struct Source {
    const uint16_t* from;
    int rows;
  };
  __device__ __forceinline__ Source source(int quad, int step) const {
    const int batch = batch_row + 4 * quad;
    return {of_block(batch, step) + row_in_block, batch < p.batch ? end - row_in_block : 0};
  }

  // Before anything else fills the queue.
  __device__ __forceinline__ void enter() {
    if constexpr (C::grouped)
#pragma unroll
      for (int quad = 0; quad < columns; ++quad) column[quad] = source(quad, 0).from;
    load_first(0);
    for (int step = 1; step < kPrefetchSteps; ++step) prefetch(step);
  }
  // After a step's last quad.
  __device__ __forceinline__ void leave(int step) {
    if constexpr (C::grouped)
#pragma unroll
      for (int quad = 0; quad < columns; ++quad) column[quad] += p.base_step_stride - columns_from * 4 * p.base_row_stride;
    columns_from = 0;
    if (step + 1 < p.steps) load_first(step + 1);
    if constexpr (!C::grouped) prefetch(step + kPrefetchSteps);
  }
  // While the step's latents travel. A warpgroup has loaded so much by then that looks at words would wait behind these, too.
  __device__ __forceinline__ void look_ahead(int step) const {
    if constexpr (C::grouped) prefetch(step + kPrefetchSteps - 1);
  }
  // The pair of a slot, which the next quad's takes the place of.
  __device__ __forceinline__ uint32_t take(int slot, const Source& next_quad) {
    const uint32_t taken = next[slot];
    if constexpr (C::quads > 1) load(slot, next_quad);
    return taken;
  }
  // Asks for the pairs of a warpgroup's slot, which come to `Place`.
  template <int Place>
  __device__ __forceinline__ void ask_ahead(int slot) {
    const int rows = row_in_block + slot * slot_rows < end ? p.batch - batch_row - 4 * columns_from : 0;
#pragma unroll
    for (int quad = 0; quad < columns; ++quad) ahead[Place % C::slots_ahead][quad] = load_present(column[quad] + slot * slot_rows, 4 * quad < rows);
  }
  // In the place of those of a slot that has been selected from: of a later one, or of the next quads.
  template <int Place>
  __device__ __forceinline__ void ask_after(int slot, bool more_quads) {
    if (slot + C::slots_ahead < C::slots) {
      ask_ahead<Place>(slot + C::slots_ahead);
    } else if (C::quads > columns && more_quads) {
      if (slot + C::slots_ahead == C::slots) {
        columns_from += columns;
#pragma unroll
        for (int quad = 0; quad < columns; ++quad) column[quad] += 4 * columns * p.base_row_stride;
      }
      ask_ahead<Place>(slot % C::slots_ahead);
    }
  }
  // Those of a slot that is multiplied alone, one pair of each quad.
  __device__ __forceinline__ void load_alone(uint32_t (&base)[C::quads], int slot, int step) const {
    const bool there = row_in_block + slot * slot_rows < end;
    const uint16_t* from = of_block(batch_row, step) + row_in_block + slot * slot_rows;
#pragma unroll
    for (int quad = 0; quad < C::quads; ++quad, from += 4 * p.base_row_stride)
      base[quad] = load_present(from, there && batch_row + 4 * quad < p.batch);
  }

 private:
  __device__ __forceinline__ const uint16_t* of_block(int batch, int step) const {
    return p.base_logits + batch * p.base_row_stride + step * p.base_step_stride + first_row;
  }
  __device__ __forceinline__ static uint32_t load_present(const uint16_t* pair, bool present) {
    return present ? load_pair_past_l1(pair) : 0xff80ff80u;
  }
  __device__ __forceinline__ void load(int slot, const Source& source) {
    next[slot] = load_present(source.from + slot * slot_rows, slot * slot_rows < source.rows);
  }
  __device__ __forceinline__ void load_first(int step) {
    if constexpr (C::grouped) {
      for_each_index<C::slots_ahead>([&](auto slot) { ask_ahead<slot>(slot); });
      return;
    }
    const Source first = source(0, step);
#pragma unroll
    for (int slot = 0; slot < C::groups; ++slot) load(slot, first);
  }
  // The warps share the batch rows, the last warp first.
  __device__ __forceinline__ void prefetch(int step) const {
    if (step >= p.steps) return;
    const uint16_t* row = of_block(C::warps - 1 - warp, step);
#pragma unroll
    for (int n = 0; n < C::led_rows; ++n, row += C::warps * p.base_row_stride) {
      if (C::warps - 1 - warp + n * C::warps >= p.batch) break;
#pragma unroll
      for (int first = 0; first < C::block_rows + 64; first += 64 * 32)
        if (first + 64 * lane < end + 64) prefetch_l2(row + min(first + 64 * lane, end - 1));
    }
  }
};

}  // namespace wts
