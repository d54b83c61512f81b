// From products to the best row of a lane: scales, base logits, rounding, noise, and the key that the blocks compare.
#pragma once
#include "base_logits.cuh"
#include "contest.cuh"
#include "shard.cuh"
#include "word.cuh"

namespace wts {

template <class C>
struct Selection {
  using Best = std::conditional_t<C::wide, WideBest, NarrowBest>;
  using Sum = typename Shard<C>::Sum;
  static constexpr int slot_rows = C::warps * kTileRows;
  static constexpr int groups = C::groups > 0 ? C::groups : 1;
  const WalkParams& p;
  char* shared;
  int warp, lane;
  int first_row;     // of the block, in the vocabulary
  int end;           // rows of the block, or of the vocabulary from first_row on
  int row_in_block;  // of this lane's pair in the first slot of its column; the next slot's is slot_rows further
  int batch_row;     // of quad 0
  const char* scales;  // of that pair
  BaseLogits<C> base_logits;
  uint32_t noise_offset = 0;
  static constexpr bool draws_ahead = C::sampling && C::quads == 1 && C::groups <= 3;
  uint2 next_words[draws_ahead ? (groups + 1) / 2 : 1][2];  // drawn while the blocks agree
  // Logits that the caller wants are stored while the blocks agree, or behind their quad, or, where fp32 values take the registers, at once.
  static constexpr bool keeps_late = C::quads == 1 && C::groups <= 3 && C::groups > 0, keeps_at_once = C::wide && !keeps_late;
  __nv_bfloat162 kept_logits[keeps_late ? groups : 1];
  static constexpr bool keeps_scales = C::int8x2 && C::quads == 1 && C::groups <= 3 && !C::recurrent && !C::wide;  // else the registers are needed
  float2 kept_scales[keeps_scales ? groups : 1];

  __device__ __forceinline__ Selection(const WalkParams& p_, char* shared_, int first_tile, int end_tile, int warp_, int lane_)
      : p(p_), shared(shared_), warp(warp_), lane(lane_), first_row(first_tile * kTileRows),
        end(min(p_.vocab_size, end_tile * kTileRows) - first_row),
        row_in_block(((lane & 3) / C::together * groups * C::warps + warp) * kTileRows + (lane >> 2) * 2), batch_row((lane & 3) % C::together),
        scales(shared + C::scale_offset + (lane & 3) / C::together * groups * C::scale_stride + (warp * kTileRows + (lane >> 2) * 2) * 4),
        base_logits{p_, warp_, lane_, first_row, end, row_in_block, batch_row, {}, {}} {}
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
      for (int row = threadIdx.x; row < C::rows; row += C::threads) {
        temperatures()[row] = p.temperatures != nullptr && row < p.batch ? p.temperatures[row] : 0.0f;
        if constexpr (C::bounds_bytes > 0) *reinterpret_cast<TwoBounds*>(shared + C::bounds_offset + row * sizeof(TwoBounds)) = TwoBounds::at(temperatures()[row]);
      }
      if (p.noise_offset != nullptr) noise_offset = static_cast<uint32_t>(*p.noise_offset);
    }
  }
  __device__ __forceinline__ float* temperatures() const { return reinterpret_cast<float*>(shared + C::temperature_offset); }
  __device__ __forceinline__ const TwoBounds& bounds_of(int quad) const {
    return reinterpret_cast<const TwoBounds*>(shared + C::bounds_offset)[batch_row + 4 * quad];
  }

  __device__ __forceinline__ int quads() const { return C::quads == 1 ? 1 : (p.batch + 3) / 4; }

  // Noise words of this lane's pairs of a quad, of slot `First` and the next. Neighbouring lanes (g and g ^ 1) need the halves of the same
  // Philox quads, so each computes one of the two slots.
  template <int First>
  __device__ __forceinline__ void draw(uint2 (&words)[2], int quad, int step) const {
    const int batch = batch_row + 4 * quad, id = first_row + row_in_block + First * slot_rows;
    if constexpr (First + 1 < C::groups) {
      const bool odd = lane & 4;
      const uint4 drawn = philox(noise_key(), make_uint4((odd ? id + slot_rows : id) / 4, batch, step, noise_offset));
      const uint2 low = make_uint2(drawn.x, drawn.y), high = make_uint2(drawn.z, drawn.w);
      const uint2 own = odd ? high : low, other = odd ? low : high;
      const uint2 received = make_uint2(__shfl_xor_sync(~0u, other.x, 4), __shfl_xor_sync(~0u, other.y, 4));
      words[0] = odd ? received : own, words[1] = odd ? own : received;
    } else {
      words[0] = noise_words(noise_key(), id, batch, step, noise_offset);
    }
  }

  // The same for one slot, of a quad and the next.
  template <bool Two>
  __device__ __forceinline__ void draw_quads(uint2 (&words)[2], int quad, int row, int step) const {
    const bool odd = lane & 4;
    const uint4 drawn = philox(noise_key(), make_uint4((first_row + row) / 4, batch_row + 4 * (Two && odd ? quad + 1 : quad), step, noise_offset));
    const uint2 low = make_uint2(drawn.x, drawn.y), high = make_uint2(drawn.z, drawn.w);
    const uint2 own = odd ? high : low, other = odd ? low : high;
    if constexpr (Two) {
      const uint2 received = make_uint2(__shfl_xor_sync(~0u, other.x, 4), __shfl_xor_sync(~0u, other.y, 4));
      words[0] = odd ? received : own, words[1] = odd ? own : received;
    } else {
      words[0] = own;
    }
  }

  // The scales of the latent of this lane's batch row.
  __device__ __forceinline__ float2 latent_scales(int quad) const {
    return *reinterpret_cast<const float2*>(LatentPlace<C>::header(shared + C::latent_offset, batch_row + 4 * quad));
  }
  // Scales stay in registers where these suffice; else they are read where they are used.
  __device__ __forceinline__ void keep_scales() {
    if constexpr (keeps_scales)
#pragma unroll
      for (int i = 0; i < groups; ++i) kept_scales[i] = row_scales(i);
  }
  __device__ __forceinline__ float2 row_scales(int slot) const { return *reinterpret_cast<const float2*>(scales + slot * C::scale_stride); }

  // After a step: what is left to do of it, and what the next needs of its first quad before its latents are there.
  __device__ __forceinline__ void leave(int step) {
    if constexpr (keeps_late)
      if (p.logits_out != nullptr)
#pragma unroll
        for (int i = 0; i < groups; ++i) keep(kept_logits[i], 0, i, step);
    base_logits.leave(step);
  }
  __device__ __forceinline__ void look_ahead(int step) {
    base_logits.look_ahead(step);
    if constexpr (draws_ahead) for_each_index<(C::groups + 1) / 2>([&](auto two) { draw<2 * two>(next_words[two], 0, step); });
  }
  // The warp's best of the slots of one quad that are multiplied side by side.
  __device__ __forceinline__ Best best_of(const Sum (&sums)[groups][4], float2 latent, int quad, int step) {
    const auto next_quad = quad + 1 < quads() ? base_logits.source(quad + 1, step) : typename BaseLogits<C>::Source{p.base_logits, 0};
    Best best;
    if constexpr (C::sampling) {
      sampled_best(best, sums, next_quad, latent, quad, step);
    } else {
      __nv_bfloat162 y[groups];
#pragma unroll
      for (int i = 0; i < C::groups; ++i) {
        y[i] = offer_pair(best, logits(sums[i], base_logits.take(i, next_quad), scales_of(i), latent), quad, i, step);
        if (keeps_late) kept_logits[i] = y[i];
        else if (keeps_at_once && p.logits_out != nullptr) keep(y[i], quad, i, step);
      }
      if (!keeps_late && !keeps_at_once && p.logits_out != nullptr)
#pragma unroll
        for (int i = 0; i < C::groups; ++i) keep(y[i], quad, i, step);
      best.template reduce<C::together>();
    }
    return best;
  }
  // Offers one slot that is multiplied alone: N quads from `first` on, of rows that are not there, too, since nobody looks at their best.
  template <int N>
  __device__ __forceinline__ void offer_alone(Best (&best)[C::quads], const Sum (&sums)[N][4], const uint32_t (&base)[C::quads], int first, int slot,
                                              int step) const {
    const float2 scale = row_scales(slot);
    __nv_bfloat162 y[N];
#pragma unroll
    for (int i = 0; i < N; ++i)
      y[i] = offer_pair(best[first + i], logits(sums[i], base[first + i], scale, latent_scales(first + i)), first + i, slot, step);
    if (p.logits_out == nullptr) return;
#pragma unroll
    for (int i = 0; i < N; ++i) keep(y[i], first + i, slot, step);
  }
  // The same of sampled rows: takes them into the leading rows; what only exact values tell apart is offered at once.
  template <int N, class Offer>
  __device__ __forceinline__ void contest_alone(Front (&fronts)[C::quads], const Sum (&sums)[N][4], const uint32_t (&base)[C::quads], int first, int slot,
                                                int step, const Offer& offer) const {
    const float2 scale = row_scales(slot);
    const int row = row_in_block + slot * slot_rows;
    uint16_t* kept_at = p.logits_out + (batch_row + 4 * first) * p.logits_row_stride + step * p.logits_step_stride + first_row + row;
    for_each_index<(N + 1) / 2>([&](auto two) {
      constexpr int from = 2 * two, count = N - from < 2 ? 1 : 2;
      uint2 words[2];
      draw_quads<count == 2>(words, first + from, row, step);
      float2 value[count];
      bool open[count], any_open = false;
      for_each_index<count>([&](auto i) {
        const int quad = first + from + i;
        const float2 logit = logits(sums[from + i], base[quad], scale, latent_scales(quad));
        const __nv_bfloat162 y = __floats2bfloat162_rn(logit.x, logit.y);
        Kept kept;
        keep_value(kept, logit, y);
        value[i] = value_of(kept);
        if (p.logits_out != nullptr && row < end && batch_row + 4 * quad < p.batch) keep_at(kept_at, y, row);
        kept_at += 4 * p.logits_row_stride;
        const TwoBounds& noise = bounds_of(quad);
        open[i] = fronts[quad].meets(noise.of(value[i].x, words[i].x), value[i].x, row);
        open[i] |= fronts[quad].meets(noise.of(value[i].y, words[i].y), value[i].y, row + 1);
        any_open |= open[i];
      });
      if (!__any_sync(~0u, any_open)) return;
      for_each_index<count>([&](auto i) {
        const int quad = first + from + i;
        Best best;
        if (open[i]) offer_values(best, sampled(value[i], row, quad, step), row);
        best.template reduce<C::together>();
        offer(best, quad, false);
      });
    });
  }
  // The leading row of a quad before the first.
  __device__ __forceinline__ void start(Front& front, int quad) const {
    front.start(row_in_block + C::resident_slots * slot_rows, batch_row + 4 * quad < p.batch);
  }
  // The warp's best of the leading rows of one or two quads.
  template <int N>
  __device__ __forceinline__ void settle(Best (&best)[N], const Front* fronts, int quad, int step) const {
    constexpr int last = N - 1;
    const int batch = batch_row + 4 * quad;
    const float2 values = sampled_rows(make_float2(fronts[0].y, fronts[last].y), make_float2(temperatures()[batch], temperatures()[batch + 4 * last]), noise_key(),
                                       make_int2(first_row + fronts[0].row, first_row + fronts[last].row), make_int2(batch, batch + 4 * last), step, noise_offset);
    offer_value(best[0], values.x, fronts[0].row);
    if (N > 1) offer_value(best[last], values.y, fronts[last].row);
#pragma unroll
    for (int i = 0; i < N; ++i) best[i].template reduce<C::together>();
  }
  // Offers a warpgroup's slot, the quads from `first` on that were multiplied. Its base logits lie at `Place`.
  template <int Place>
  __device__ __forceinline__ void offer_group(Best (&best)[C::group_quads], const Sum (&sums)[C::group_quads][4], float2 scale,
                                              const float2 (&latent)[C::group_quads], int first, int slot, int step) {
    __nv_bfloat162 y[C::group_quads];
#pragma unroll
    for (int i = 0; i < C::group_quads; ++i)
      y[i] = offer_pair(best[i], logits(sums[i], base_logits.ahead[Place % C::slots_ahead][i], scale, latent[i]), first + i, slot, step);
    base_logits.template ask_after<Place>(slot, first + C::group_quads < quads());
    if (p.logits_out == nullptr) return;
    const int now = computed_here(step);
#pragma unroll
    for (int i = 0; i < C::group_quads; ++i) keep(y[i], first + i, slot, now);
  }

 private:
  __device__ __forceinline__ uint2 noise_key() const { return make_uint2(p.noise_key_low, p.noise_key_high); }
  __device__ __forceinline__ float2 scales_of(int slot) const { return keeps_scales ? kept_scales[slot] : row_scales(slot); }
  // Logits of two neighbouring rows, in fp32 before the last rounding.
  __device__ __forceinline__ float2 logits(const Sum (&sum)[4], uint32_t base, float2 scale, float2 latent) const {
    float low, high;
    if constexpr (C::int8x2) {
      low = __fmul_rn(scale.x, dequantised(sum[0], sum[1], latent));
      high = __fmul_rn(scale.y, dequantised(sum[2], sum[3], latent));
    } else {
      low = sum[0], high = sum[2];
    }
    if constexpr (C::rounding == Rounding::twice)
      low = __bfloat162float(__float2bfloat16_rn(low)), high = __bfloat162float(__float2bfloat16_rn(high));
    return make_float2(__fadd_rn(__uint_as_float(base << 16), low), __fadd_rn(__uint_as_float(base & 0xffff0000u), high));
  }
  // What is compared of them.
  using Kept = std::conditional_t<C::rounding == Rounding::none, float2, __nv_bfloat162>;
  __device__ __forceinline__ static void keep_value(float2& kept, float2 logit, __nv_bfloat162) { kept = logit; }
  __device__ __forceinline__ static void keep_value(__nv_bfloat162& kept, float2, __nv_bfloat162 y) { kept = y; }
  __device__ __forceinline__ static float2 value_of(float2 kept) { return kept; }
  __device__ __forceinline__ static float2 value_of(__nv_bfloat162 kept) { return make_float2(__low2float(kept), __high2float(kept)); }
  // Offers two neighbouring rows, and gives their logits in bf16.
  __device__ __forceinline__ __nv_bfloat162 offer_pair(Best& best, float2 logit, int quad, int slot, int step) const {
    const int row = row_in_block + slot * slot_rows;
    const __nv_bfloat162 y = __floats2bfloat162_rn(logit.x, logit.y);
    if constexpr (!C::wide) {
      uint32_t ordered = ordered_bf16x2(y);
      if constexpr (!C::int8x2 && C::head != HeadKind::markov) {  // an infinite latent makes NaN of rows that are not there
        if (row >= end) ordered &= 0xffff0000u;
        if (row + 1 >= end) ordered &= 0xffffu;
      }
      best.offer(ordered, NarrowBest::place(row));
    } else {
      Kept kept;
      keep_value(kept, logit, y);
      if constexpr (C::sampling) offer_values(best, sampled(value_of(kept), row, quad, step), row);
      else offer_values(best, value_of(kept), row);
    }
    return y;
  }
  __device__ __forceinline__ void offer_values(Best& best, float2 values, int row) const {
    offer_value(best, values.x, row);
    offer_value(best, values.y, row + 1);
  }
  __device__ __forceinline__ void offer_value(Best& best, float value, int row) const {
    if (row < end) best.offer(ordered_float(value), kMaxVocabulary - 1 - (first_row + row));
  }
  __device__ __forceinline__ float2 sampled(float2 y, int row, int quad, int step) const {
    const int batch = batch_row + 4 * quad;
    return sampled_pair(y, temperatures()[batch], noise_key(), first_row + row, batch, step, noise_offset);
  }
  // The same with noise (contest.cuh).
  __device__ __forceinline__ void sampled_best(Best& best, const Sum (&sums)[groups][4], const typename BaseLogits<C>::Source& next_quad, float2 latent, int quad,
                                               int step) {
    const float temperature = temperatures()[batch_row + 4 * quad];
    const Bound bound(temperature);
    Kept kept[groups];
    Contest contest;
    for_each_index<(C::groups + 1) / 2>([&](auto two) {
      uint2 words[2];
      if constexpr (draws_ahead) words[0] = next_words[two][0], words[1] = next_words[two][1];
      else draw<2 * two>(words, quad, step);
      for_each_index<C::groups - 2 * two < 2 ? 1 : 2>([&](auto one) {
        constexpr int i = 2 * two + one;
        const float2 logit = logits(sums[i], base_logits.take(i, next_quad), scales_of(i), latent);
        const __nv_bfloat162 y = __floats2bfloat162_rn(logit.x, logit.y);
        keep_value(kept[i], logit, y);
        const float2 value = value_of(kept[i]);
        contest.template offer<2 * i>(bound.of(value.x, words[one].x), value.x, words[one].x);
        contest.template offer<2 * i + 1>(bound.of(value.y, words[one].y), value.y, words[one].y);
        if (keeps_late) kept_logits[i] = y;
        else if (p.logits_out != nullptr) keep(y, quad, i, step);
      });
    });
    offer_value(best, sampled_value(contest.value, temperature, contest.word), row_in_block + contest.number / 2 * slot_rows + contest.number % 2);
    best.template reduce<C::together>();
    // Of equal rows without noise the first leads.
    const bool open = contest.unordered || (temperature != 0.0f && ordered_float(contest.next) >= best.value);
    if (!__any_sync(~0u, open)) return;
    if (open)
#pragma unroll
      for (int i = 0; i < C::groups; ++i) {
        const int row = row_in_block + i * slot_rows;
        offer_values(best, sampled(value_of(kept[i]), row, quad, step), row);
      }
    best.template reduce<C::together>();
  }
  __device__ __forceinline__ void keep(__nv_bfloat162 y, int quad, int slot, int step) const {
    const int batch = batch_row + 4 * quad, row = row_in_block + slot * slot_rows;
    if (row >= end || batch >= p.batch) return;
    uint16_t* const at = p.logits_out + batch * p.logits_row_stride + step * p.logits_step_stride + first_row + row;
    keep_at(at, y, row);
  }
  __device__ __forceinline__ void keep_at(uint16_t* at, __nv_bfloat162 y, int row) const {
    const bool pairs = ((reinterpret_cast<uintptr_t>(p.logits_out) | (p.logits_row_stride * 2) | (p.logits_step_stride * 2)) & 3) == 0;
    if (pairs && row + 1 < end) {
      *reinterpret_cast<__nv_bfloat162*>(at) = y;
    } else {
      at[0] = __bfloat16_as_ushort(__low2bfloat16(y));
      if (row + 1 < end) at[1] = __bfloat16_as_ushort(__high2bfloat16(y));
    }
  }
  __device__ __forceinline__ static float dequantised(int c1, int c2, float2 scales) {
    return __fadd_rn(__fmul_rn(scales.x, Shard<C>::to_float(c1)), __fmul_rn(scales.y, Shard<C>::to_float(c2)));
  }
};

}  // namespace wts
