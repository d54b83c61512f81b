// From products to the best row of a lane: base logits, scales, rounding, noise, and the key that the blocks compare.
//
// Base logits do not depend on tokens, so a warp copies those of its own rows into shared memory some quads and steps before they are
// used: a ring of `logits_ahead` regions [slot][batch row of the quad][16 rows] of bf16. What lies past the vocabulary, and in slots
// that are not there, stays -inf: no valid row loses to it, since ties go to the lower index.
#pragma once
#include "noise.cuh"
#include "shard.cuh"
#include "word.cuh"

namespace wts {

// Base logits that do not start at 16 bytes, and the last rows of a vocabulary.
__device__ __noinline__ void copy_slowly(uint16_t* to, const uint16_t* from, int rows) {
  for (int i = 0; i < rows; ++i) to[i] = __ldg(from + i);
}

// A pair of which `rows` are there; the others are -inf.
__device__ __noinline__ uint32_t load_slowly(const uint16_t* from, int rows, bool aligned) {
  if (aligned && rows > 1) return load_pair_past_l1(from);
  return (rows > 0 ? __ldg(from) : 0xff80u) | (rows > 1 ? static_cast<uint32_t>(__ldg(from + 1)) << 16 : 0xff800000u);
}

template <class C>
struct Selection {
  using Best = std::conditional_t<C::wide, WideBest, NarrowBest>;
  using Sum = typename Shard<C>::Sum;
  static constexpr int slot_rows = C::warps * kTileRows;
  static constexpr int groups = C::groups > 0 ? C::groups : 1;
  static constexpr uint32_t minus_infinities = 0xff80ff80u;
  static constexpr int chunks = 2 * C::joint_slots * C::together;  // of a region: eight rows each

  const WalkParams& p;
  char* shared;
  int warp, lane;
  int first_row;     // of the block, in the vocabulary
  int end;           // rows of the block, or of the vocabulary from first_row on
  int row_in_block;  // of this lane's pair in the first slot of its column; the next slot's is slot_rows further
  int batch_row;     // of quad 0
  const char* scales;      // of that pair
  const char* pair_logits;  // of that pair, in region 0
  bool aligned;            // base logits are copied 16 bytes at a time
  int region = 0;          // of the ring, used next
  int copy_region = 0, copy_quad = 0, copy_step = 0;  // and copied next
  uint32_t noise_offset = 0;
  static constexpr bool keeps_at_once = C::wide && !C::sampling;  // fp32 values take the registers that logits would wait in
  static constexpr bool terms_ahead = C::quads == 1 && C::groups <= 3 && !C::recurrent;  // more sums, or the advance of a state, need the registers
  float2 kept_scales[terms_ahead ? groups : 1];
  uint32_t next_base[terms_ahead ? groups : 1];

  __device__ __forceinline__ Selection(const WalkParams& p_, char* shared_, int first_tile, int end_tile, int warp_, int lane_)
      : p(p_), shared(shared_), warp(warp_), lane(lane_), first_row(first_tile * kTileRows),
        end(min(p_.vocab_size, end_tile * kTileRows) - first_row),
        aligned(((reinterpret_cast<uintptr_t>(p_.base_logits) | (p_.base_row_stride * 2) | (p_.base_step_stride * 2)) & 15) == 0) {
    const int g = lane >> 2, t = lane & 3, column = t / C::together;
    batch_row = t % C::together;
    row_in_block = (column * groups * C::warps + warp) * kTileRows + 2 * g;
    pair_logits = shared + C::logits_offset + warp * C::logits_ahead * C::logits_quad_bytes +
                  (column * groups * C::together + batch_row) * kTileRows * 2 + 4 * g;
    scales = shared + C::scale_offset + column * groups * C::scale_stride + (warp * kTileRows + 2 * g) * 4;
  }
  // Asks for the row scales of the block's tiles, before anything else fills the queue. One group of copies.
  __device__ __forceinline__ void ask_scales(int tiles) const {
    constexpr int chunks = slot_rows / 4;  // of a slot, four scales each
    if constexpr (C::int8x2)
      for (int i = threadIdx.x; i < C::scale_slots * chunks; i += C::threads)
        copy_fragment(shared_address(shared + C::scale_offset + i / chunks * C::scale_stride + i % chunks * 16),
                      p.row_scales + first_row + 4 * i, 4 * i < tiles * kTileRows);
    commit_copies();
  }
  // Temperatures and the noise's offset, once.
  __device__ __forceinline__ void enter() {
    if constexpr (C::sampling) {
      for (int row = threadIdx.x; row < C::rows; row += C::threads)
        temperatures()[row] = p.temperatures != nullptr && row < p.batch ? p.temperatures[row] : 0.0f;
      if (p.noise_offset != nullptr) noise_offset = static_cast<uint32_t>(*p.noise_offset);
    }
  }
  __device__ __forceinline__ float* temperatures() const { return reinterpret_cast<float*>(shared + C::temperature_offset); }
  __device__ __forceinline__ float* noise(int row) const {
    return reinterpret_cast<float*>(shared + C::noise_offset) + row * C::block_rows;
  }

  __device__ __forceinline__ int quads() const { return C::quads == 1 ? 1 : (p.batch + 3) / 4; }

  // Fills the ring, once.
  __device__ __forceinline__ void fill() {
    uint4* const mine = reinterpret_cast<uint4*>(shared + C::logits_offset + warp * C::logits_ahead * C::logits_quad_bytes);
    for (int i = lane; i < C::logits_ahead * C::logits_quad_bytes / 16; i += 32)
      mine[i] = make_uint4(minus_infinities, minus_infinities, minus_infinities, minus_infinities);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < C::logits_ahead; ++i) copy_next();
  }
  // Copies the base logits of the next quad, or of the next step's first, into the region that was used last. One group of copies.
  __device__ __forceinline__ void copy_next() {
    __syncwarp();  // every lane has read what was there
    if (copy_step < p.steps) {
      char* const to = shared + C::logits_offset + (warp * C::logits_ahead + copy_region) * C::logits_quad_bytes;
#pragma unroll
      for (int i = lane; i < (chunks + 31) / 32 * 32; i += 32) {
        const int slot = i / (2 * C::together), batch = 4 * copy_quad + i / 2 % C::together;
        const int row = (slot * C::warps + warp) * kTileRows + i % 2 * 8;
        if (i >= chunks || batch >= p.batch || row >= end) continue;
        const uint16_t* const from = p.base_logits + batch * p.base_row_stride + copy_step * p.base_step_stride + first_row + row;
        if (aligned && row + 8 <= end) copy_fragment(shared_address(to + 16 * i), from, true);
        else copy_slowly(reinterpret_cast<uint16_t*>(to + 16 * i), from, min(8, end - row));
      }
    }
    commit_copies();
    copy_region = copy_region + 1 == C::logits_ahead ? 0 : copy_region + 1;
    if (++copy_quad == quads()) copy_quad = 0, ++copy_step;
  }
  // Waits for the region that is used next. Parts of streamed tiles that were asked for since may still be on their way.
  __device__ __forceinline__ void await() const {
    wait_copies<C::logits_ahead - 1 + C::streamed_parts>();
    __syncwarp();
  }
  __device__ __forceinline__ uint32_t pair(int slot) const {
    return *reinterpret_cast<const uint32_t*>(pair_logits + region * C::logits_quad_bytes + slot * C::together * kTileRows * 2);
  }
  __device__ __forceinline__ void leave() {
    region = region + 1 == C::logits_ahead ? 0 : region + 1;
    copy_next();
  }
  // The pairs of a slot that is multiplied alone, one of each quad, from global memory.
  __device__ __forceinline__ void load_pairs(uint32_t (&pairs)[C::quads], int slot, int step) const {
    const int row = row_in_block + slot * slot_rows;
    const uint16_t* from = p.base_logits + batch_row * p.base_row_stride + step * p.base_step_stride + first_row + row;
    if (aligned && (slot * C::warps + warp + 1) * kTileRows <= end) {
#pragma unroll
      for (int quad = 0; quad < C::quads; ++quad, from += 4 * p.base_row_stride) {
        pairs[quad] = minus_infinities;
        if (batch_row + 4 * quad < p.batch) pairs[quad] = load_pair_past_l1(from);
      }
    } else {
#pragma unroll
      for (int quad = 0; quad < C::quads; ++quad, from += 4 * p.base_row_stride)
        pairs[quad] = load_slowly(from, batch_row + 4 * quad < p.batch ? end - row : 0, aligned);
    }
  }

  // Asks L2 for a step's base logits of the block; the warps share the batch rows, the last warp first.
  __device__ __forceinline__ void prefetch(int step) const {
    if (step >= p.steps) return;
    for (int batch = C::warps - 1 - warp; batch < p.batch; batch += C::warps) {
      const uint16_t* const row = p.base_logits + batch * p.base_row_stride + step * p.base_step_stride + first_row;
      for (int at = 64 * lane; at < end + 64; at += 64 * 32) prefetch_l2(row + min(at, end - 1));
    }
  }
  // Noise of a step for the whole block, by some of its warps.
  __device__ __forceinline__ void draw(int step, int participant, int participants) const {
    const uint2 key = make_uint2(p.noise_key_low, p.noise_key_high);
    for (int batch = 0; batch < p.batch; ++batch) {
      if (temperatures()[batch] == 0.0f) continue;
      for (int i = participant * 32 + lane; 4 * i < end; i += participants * 32) {
        const uint4 word = philox(key, make_uint4(first_row / 4 + i, batch, step, noise_offset));
        reinterpret_cast<float4*>(noise(batch))[i] = make_float4(gumbel(word.x), gumbel(word.y), gumbel(word.z), gumbel(word.w));
      }
    }
  }

  // The scales of the latent of this lane's batch row.
  __device__ __forceinline__ float2 latent_scales(int quad) const {
    return *reinterpret_cast<const float2*>(LatentPlace<C>::header(shared + C::latent_offset, batch_row + 4 * quad));
  }
  // What an offer adds and multiplies the sums with. Where the registers suffice, scales are kept, and base logits wait in registers
  // before the latents are there; else both are read where they are used.
  __device__ __forceinline__ void keep_scales() {
    if constexpr (terms_ahead && C::int8x2)
#pragma unroll
      for (int i = 0; i < groups; ++i) kept_scales[i] = row_scales(i);
  }
  __device__ __forceinline__ void look_ahead() {
    if constexpr (terms_ahead) {
      await();
#pragma unroll
      for (int i = 0; i < groups; ++i) next_base[i] = pair(i);
    }
  }
  __device__ __forceinline__ float2 row_scales(int slot) const { return *reinterpret_cast<const float2*>(scales + slot * C::scale_stride); }

  // Offers the slots of one quad that are multiplied side by side.
  __device__ __forceinline__ void offer(Best& best, const Sum (&sums)[groups][4], float2 latent, int quad, int step) const {
    __nv_bfloat162 y[groups];
#pragma unroll
    for (int i = 0; i < C::groups; ++i) {
      y[i] = offer_pair(best, sums[i], terms_ahead ? next_base[i] : pair(i), terms_ahead ? kept_scales[i] : row_scales(i), latent, quad, i, step);
      if (keeps_at_once && p.logits_out != nullptr) keep(y[i], quad, i, step);
    }
    if (keeps_at_once || p.logits_out == nullptr) return;
#pragma unroll
    for (int i = 0; i < C::groups; ++i) keep(y[i], quad, i, step);
  }
  // Offers one slot that is multiplied alone: N quads from `first` on, of rows that are not there, too, since nobody looks at their best.
  template <int N>
  __device__ __forceinline__ void offer_alone(Best (&best)[C::quads], const Sum (&sums)[N][4], const uint32_t (&base)[C::quads], int first, int slot,
                                              int step) const {
    const float2 scale = row_scales(slot);
    __nv_bfloat162 y[N];
#pragma unroll
    for (int i = 0; i < N; ++i)
      y[i] = offer_pair(best[first + i], sums[i], base[first + i], scale, latent_scales(first + i), first + i, slot, step);
    if (p.logits_out == nullptr) return;
#pragma unroll
    for (int i = 0; i < N; ++i) keep(y[i], first + i, slot, step);
  }

 private:
  // Offers two neighbouring rows, and gives their logits.
  __device__ __forceinline__ __nv_bfloat162 offer_pair(Best& best, const Sum (&sum)[4], uint32_t base, float2 scale, float2 latent, int quad, int slot,
                                             int step) const {
    const int batch = batch_row + 4 * quad, row = row_in_block + slot * slot_rows;
    float low, high;
    if constexpr (C::int8x2) {
      low = __fmul_rn(scale.x, dequantised(sum[0], sum[1], latent));
      high = __fmul_rn(scale.y, dequantised(sum[2], sum[3], latent));
    } else {
      low = sum[0], high = sum[2];
    }
    if constexpr (C::rounding == Rounding::twice)
      low = __bfloat162float(__float2bfloat16_rn(low)), high = __bfloat162float(__float2bfloat16_rn(high));
    low = __fadd_rn(__uint_as_float(base << 16), low);
    high = __fadd_rn(__uint_as_float(base & 0xffff0000u), high);
    const __nv_bfloat162 y = __floats2bfloat162_rn(low, high);
    if constexpr (!C::wide) {
      uint32_t ordered = ordered_bf16x2(y);
      if constexpr (!C::int8x2 && C::head != HeadKind::markov) {  // an infinite latent makes NaN of rows that are not there
        if (row >= end) ordered &= 0xffff0000u;
        if (row + 1 >= end) ordered &= 0xffffu;
      }
      best.offer(ordered, NarrowBest::place(row));
    } else {
      if constexpr (C::rounding != Rounding::none) low = __low2float(y), high = __high2float(y);
      if constexpr (C::sampling) sample(low, high, row, batch, step);
      const uint32_t inverse = kMaxVocabulary - 1 - (first_row + row);
      if (row < end) best.offer(ordered_float(low), inverse);
      if (row + 1 < end) best.offer(ordered_float(high), inverse - 1);
    }
    return y;
  }
  __device__ __forceinline__ void sample(float& low, float& high, int row, int batch, int step) const {
    const float temperature = temperatures()[batch];
    if (temperature == 0.0f) return;
    float2 noise_pair = make_float2(0.0f, 0.0f);
    if constexpr (C::noise_ahead) {
      if (row < C::block_rows) noise_pair = *reinterpret_cast<const float2*>(noise(batch) + row);
    } else {
      noise_pair = gumbel_pair(make_uint2(p.noise_key_low, p.noise_key_high), first_row + row, batch, step, noise_offset);
    }
    low = __fadd_rn(divided(low, temperature), noise_pair.x);
    high = __fadd_rn(divided(high, temperature), noise_pair.y);
  }
  __device__ __forceinline__ void keep(__nv_bfloat162 y, int quad, int slot, int step) const {
    const int batch = batch_row + 4 * quad, row = row_in_block + slot * slot_rows;
    if (row >= end || batch >= p.batch) return;
    uint16_t* const at = p.logits_out + batch * p.logits_row_stride + step * p.logits_step_stride + first_row + row;
    const bool pairs = ((reinterpret_cast<uintptr_t>(p.logits_out) | (p.logits_row_stride * 2) | (p.logits_step_stride * 2)) & 3) == 0;
    if (pairs && row + 1 < end) {
      *reinterpret_cast<__nv_bfloat162*>(at) = y;
    } else {
      at[0] = __bfloat16_as_ushort(__low2bfloat16(y));
      if (row + 1 < end) at[1] = __bfloat16_as_ushort(__high2bfloat16(y));
    }
  }
  __device__ __forceinline__ static float dequantised(int c1, int c2, float2 scales) {
    return __fadd_rn(__fmul_rn(scales.x, static_cast<float>(c1)), __fmul_rn(scales.y, static_cast<float>(c2)));
  }
};

}  // namespace wts
