// State advance of the RNN and Domino heads: from the tokens of a position to the latents of the next one, in every block.
//
// Every block keeps the whole state of every batch row and computes all of it, redundantly, so that no state travels. What is
// divided among the blocks, and exchanged, are the products of the state with its matrices:
//
//   buffer                                     written by                        read by
//   state_slots [epoch & 1][rows][words]       publish_products: dot of a row    advance, a position later, by every block, with
//                                              of the state matrix and a state   the token's row of the table: one round trip
//   ... behind both, domino only:              advance: dot of a row of F1_s     the same advance, by every block
//   [epoch & 1][rows][rank]                    and the new state
//
// words = 3 rank (rnn: rows a, c, o of Wj_s) or 3 gru (domino: rows r, z, n of W_hh). Block b owns rows [b n / grid,
// (b + 1) n / grid) of each matrix. A word is float bits << 32 | epoch; it carries its own epoch, so relaxed accesses are
// enough. Two buffers suffice: a block writes words of e + 2 after it has read all of e + 1, each written by a block that had
// read all of e.
//
// Shared memory of a block, in order: state bf16 [rows][size]; u fp32 [rows][rank]; largest |u| of every 64 elements, float
// bits [rows][chunks]; the first state_rows rows of its share of the state matrix and projector_rows of the projector, bf16.
// Rows beyond those are read from global memory each time.
//
// A dot product: lane l adds elements 8 (l + 32 c) + j in the order of c, then j (products of bf16 are exact in fp32, so fma
// and a product with its own rounding are the same), then lanes add up across distances 16, 8, 4, 2, 1.
#pragma once
#include <cstdint>
#include "exchange.cuh"
#include "latent.cuh"

namespace wts {

// A float to publish, and the same float back.
__device__ __forceinline__ uint64_t word_of(float value, uint32_t epoch) {
  return (static_cast<uint64_t>(__float_as_uint(value)) << 32) | epoch;
}
__device__ __forceinline__ float value_of(uint64_t word) { return __uint_as_float(static_cast<uint32_t>(word >> 32)); }

// N pairs of words at a fixed distance, asked for together and awaited together.
template <int N>
struct WordPairs {
  const uint64_t* first;
  int distance;
  uint64_t word[N][2];

  __device__ __forceinline__ void ask(const uint64_t* first_, int distance_) {
    first = first_, distance = distance_;
#pragma unroll
    for (int i = 0; i < N; ++i) load_word_pair(first + i * distance, word[i][0], word[i][1]);
  }
  // Zeros in place of words.
  __device__ __forceinline__ void clear(uint32_t epoch) {
#pragma unroll
    for (int i = 0; i < N; ++i) word[i][0] = word[i][1] = word_of(0.0f, epoch);
  }
  // Asks again for those of another epoch; false when max_polls looks have not found them all.
  __device__ __forceinline__ bool wait(uint32_t epoch, uint32_t max_polls) {
    for (uint32_t looks = 0;; ++looks) {
      bool missing = false;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (static_cast<uint32_t>(word[i][0]) == epoch && static_cast<uint32_t>(word[i][1]) == epoch) continue;
        load_word_pair(first + i * distance, word[i][0], word[i][1]);
        missing = true;
      }
      if (!missing) return true;
      if (looks >= max_polls) return false;
    }
  }
  __device__ __forceinline__ float2 value(int i) const { return make_float2(value_of(word[i][0]), value_of(word[i][1])); }
};

// Adds up N values a lane across the warp, in the order of the file's head; lane l ends with the sum of value l / (32 / N).
// Each exchange halves the values that a lane still carries, so N sums cost few more shuffles than one.
template <int N>
__device__ __forceinline__ float fold(float (&value)[N], int lane) {
  static_assert((N & (N - 1)) == 0 && N <= 32, "a power of two");
  int distance = 16;
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2, distance /= 2)
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const bool upper = lane & distance;
      const float sent = upper ? value[i] : value[i + half], kept = upper ? value[i + half] : value[i];
      value[i] = __fadd_rn(kept, __shfl_xor_sync(~0u, sent, distance));
    }
#pragma unroll
  for (; distance > 0; distance /= 2) value[0] = __fadd_rn(value[0], __shfl_xor_sync(~0u, value[0], distance));
  return value[0];
}

// sigmoid(gate) * old + (1 - sigmoid(gate)) * tanh(candidate): an element of the RNN head's new state.
__device__ __forceinline__ float rnn_state(float gate, float candidate, float old) {
  const float keep = sigmoid(gate);
  return __fadd_rn(__fmul_rn(keep, old), __fmul_rn(__fsub_rn(1.0f, keep), hyperbolic_tangent(candidate)));
}

// An element of torch's GRU cell: i from the token, h from the state, gates r, z, n.
__device__ __forceinline__ float gru_state(float i_r, float i_z, float i_n, float h_r, float h_z, float h_n, float old) {
  const float reset = sigmoid(__fadd_rn(i_r, h_r)), keep = sigmoid(__fadd_rn(i_z, h_z));
  const float candidate = hyperbolic_tangent(__fadd_rn(i_n, __fmul_rn(reset, h_n)));
  return __fadd_rn(__fmul_rn(__fsub_rn(1.0f, keep), candidate), __fmul_rn(keep, old));
}

template <class C>
struct Recurrence {
  static constexpr bool domino = C::head == HeadKind::domino;
  static constexpr int size = domino ? C::gru : C::rank;  // elements of a state
  static constexpr int words = table_entries<C>;          // 3 size: products of a state; entries of a token's row of the table
  static constexpr int chunks = (C::rank + 63) / 64;      // of a latent: what a warp handles at a time, a pair of elements a lane
  static constexpr int batch_together = C::rows < 4 ? C::rows : 4;  // batch rows and state-matrix rows of one tile of products
  static constexpr int matrix_together = !domino ? 1 : C::rows == 1 ? 4 : 2;

  static constexpr int row_bytes = size * 2;  // of a state, or of a row of either matrix
  static constexpr int u_offset = C::rows * row_bytes;
  static constexpr int largest_offset = u_offset + C::rows * C::rank * 4;
  static constexpr int matrix_offset = largest_offset + (C::rows * chunks * 4 + 15) / 16 * 16;
  static constexpr int projector_offset = matrix_offset + C::state_rows * row_bytes;
  static constexpr int shared_bytes = projector_offset + (domino ? C::projector_rows * row_bytes : 0);

  static_assert(domino || C::head == HeadKind::rnn, "only these heads have a state");
  static_assert(size % 8 == 0 && size >= 8, "a lane reads eight elements of the state at a time");
  static_assert(C::rows % batch_together == 0, "batch rows are multiplied four at a time");

  const WalkParams& p;
  char* const shared;
  const int warp, lane;

  // This block's rows of a matrix of `total` rows; the first `kept` of them lie in shared memory.
  struct Share {
    const uint16_t* matrix;  // of the first row
    char* copy;
    int first, count, kept;
    __device__ __forceinline__ Share(const uint16_t* whole, int total, char* copy_, int capacity)
        : copy(copy_),
          first(static_cast<int>(blockIdx.x * static_cast<uint32_t>(total) / gridDim.x)),
          count(static_cast<int>((blockIdx.x + 1) * static_cast<uint32_t>(total) / gridDim.x) - first),
          kept(min(count, capacity)) {
      matrix = whole + static_cast<int64_t>(first) * size;
    }
  };

  __device__ __forceinline__ Recurrence(const WalkParams& p_, char* shared_region, int warp_, int lane_)
      : p(p_), shared(shared_region), warp(warp_), lane(lane_) {}

  // Once, by all threads: starts the copies of this block's rows (one group of cp.async) and clears the states. The caller waits
  // for the copies and passes a barrier before it calls anything else.
  __device__ __forceinline__ void load() const {
    keep_rows(state_share());
    if constexpr (domino) keep_rows(projector_share());
    commit_copies();
    for (int i = threadIdx.x; i < C::rows * row_bytes / 16; i += C::threads)
      reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
  }

  // Products of the state of every batch row, published for the advance that is given the same epoch. By `participants` warps, of
  // which this is number `participant`. A barrier of the caller stands before (states are complete) and after (they may change).
  __device__ __forceinline__ void publish_products(uint32_t epoch, int participant, int participants) const {
    publish_dots<matrix_together>(state_share(), state_words(epoch, 0), words, epoch, participant, participants);
  }

  // From the tokens of a position (target ids in shared memory, one a batch row) to the states after them and the latents of
  // `position`. At entry (`first`) from the anchors and empty states; Domino's latents are then 0, since its position 0 has no
  // correction. By all threads, between barriers of the caller. False, in every thread, when words did not arrive in time.
  __device__ __forceinline__ bool advance(const int* tokens, int position, uint32_t epoch, bool first, char* latents) const {
    bool arrived;
    if constexpr (domino) {
      arrived = __syncthreads_and(advance_gru(tokens, epoch, first));
      if (first) {
        for (int i = threadIdx.x; i < C::latents_bytes / 16; i += C::threads)
          reinterpret_cast<uint4*>(latents)[i] = make_uint4(0, 0, 0, 0);
        return arrived;
      }
      publish_dots<1>(projector_share(), latent_words(epoch, 0), C::rank, epoch, C::warps - 1 - warp, C::warps);
      arrived = __syncthreads_and(gather_latents(position, epoch)) && arrived;
    } else {
      arrived = __syncthreads_and(advance_rnn(tokens, position, epoch, first));
    }
    store_latents(latents);
    return arrived;
  }

 private:
  __device__ __forceinline__ Share state_share() const { return {p.state_matrix, words, shared + matrix_offset, C::state_rows}; }
  __device__ __forceinline__ Share projector_share() const {
    return {p.projector, C::rank, shared + projector_offset, C::projector_rows};
  }
  __device__ __forceinline__ uint64_t* state_words(uint32_t epoch, int row) const {
    return p.state_slots + ((epoch & 1u) * C::rows + row) * words;
  }
  __device__ __forceinline__ uint64_t* latent_words(uint32_t epoch, int row) const {
    return p.state_slots + 2 * C::rows * words + ((epoch & 1u) * C::rows + row) * C::rank;
  }
  __device__ __forceinline__ uint32_t& state_pair(int row, int pair) const {
    return reinterpret_cast<uint32_t*>(shared + row * row_bytes)[pair];
  }
  __device__ __forceinline__ float2& u_pair(int row, int pair) const {
    return reinterpret_cast<float2*>(shared + u_offset + row * C::rank * 4)[pair];
  }
  __device__ __forceinline__ uint32_t& largest(int row, int chunk) const {
    return reinterpret_cast<uint32_t*>(shared + largest_offset)[row * chunks + chunk];
  }
  __device__ __forceinline__ const uint16_t* entry(int token) const {
    return p.token_table + static_cast<int64_t>(token) * words;
  }
  __device__ __forceinline__ const float* terms(int row, int position) const {
    return p.positions + (static_cast<int64_t>(row) * p.steps + position) * (domino ? C::rank : words);
  }

  __device__ __forceinline__ void keep_rows(const Share& share) const {
    const uint32_t address = shared_address(share.copy);
    for (int i = threadIdx.x; i < share.kept * (row_bytes / 16); i += C::threads)
      copy_fragment(address + 16 * i, reinterpret_cast<const uint4*>(share.matrix) + i, true);
  }

  // f(row, chunk) by a whole warp, for every chunk of the latent of every batch row.
  template <class F>
  __device__ __forceinline__ void for_each_chunk(const F& f) const {
#pragma unroll 1
    for (int item = warp; item < p.batch * chunks; item += C::warps) f(item / chunks, item % chunks);
  }
  __device__ __forceinline__ void keep_u(int row, int chunk, bool present, float2 u) const {
    if (present) u_pair(row, 32 * chunk + lane) = u;
    const uint32_t bits = __reduce_max_sync(~0u, present ? magnitude_bits(u) : 0u);
    if (lane == 0) largest(row, chunk) = bits;
  }
  __device__ __forceinline__ void store_latents(char* latents) const {
    for_each_chunk([&](int row, int chunk) {
      const int pair = 32 * chunk + lane;
      if (pair >= C::rank / 2) return;
      uint32_t bits = 0;
#pragma unroll
      for (int i = 0; i < chunks; ++i) bits = max(bits, largest(row, i));
      const LatentScales scales(bits);
      store_pair<C>(latents, row, 2 * pair, u_pair(row, pair), scales);
      if (pair == 0) store_header<C>(latents, row, scales);
    });
  }

  // Latents and states are different warps' work, where there are enough.
  __device__ __forceinline__ bool advance_rnn(const int* tokens, int position, uint32_t epoch, bool first) const {
    const int items = p.batch * chunks;
    bool arrived = true;
#pragma unroll 1
    for (int job = warp; job < 2 * items; job += C::warps) {
      const bool output = job < items;
      const int item = output ? job : job - items, row = item / chunks, chunk = item % chunks, pair = 32 * chunk + lane;
      const bool present = pair < C::rank / 2;
      if (output) {
        float2 z[1] = {};
        if (present) arrived &= rnn_sums(z, tokens[row], row, position, 2 * C::rank + 2 * pair, epoch, first);
        keep_u(row, chunk, present, make_float2(hyperbolic_tangent(z[0].x), hyperbolic_tangent(z[0].y)));
      } else if (present) {
        float2 z[2];
        arrived &= rnn_sums(z, tokens[row], row, position, 2 * pair, epoch, first);
        const float2 old = bf16_pair(state_pair(row, pair));
        state_pair(row, pair) = round_to_bf16(make_float2(rnn_state(z[0].x, z[1].x, old.x), rnn_state(z[0].y, z[1].y, old.y)));
      }
    }
    return arrived;
  }
  // Token, position and state together, for N elements and their neighbours at distances of a rank.
  template <int N>
  __device__ __forceinline__ bool rnn_sums(float2 (&z)[N], int token, int row, int position, int element, uint32_t epoch,
                                           bool first) const {
    const uint16_t* const from_token = entry(token) + element;
    const float* const from_position = terms(row, position) + element;
    WordPairs<N> product;
    uint32_t t[N];
#pragma unroll
    for (int i = 0; i < N; ++i) t[i] = load_bf16_pair(from_token + i * C::rank);
#pragma unroll
    for (int i = 0; i < N; ++i) z[i] = load_float_pair(from_position + i * C::rank);
    if (first) product.clear(epoch);
    else product.ask(state_words(epoch, row) + element, C::rank);
    const bool arrived = product.wait(epoch, p.max_polls);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float2 from_t = bf16_pair(t[i]), from_s = product.value(i);
      z[i].x = __fadd_rn(__fadd_rn(z[i].x, from_t.x), from_s.x);
      z[i].y = __fadd_rn(__fadd_rn(z[i].y, from_t.y), from_s.y);
    }
    return arrived;
  }

  // Two pairs of elements a thread at a time: their loads are in flight together.
  __device__ __forceinline__ bool advance_gru(const int* tokens, uint32_t epoch, bool first) const {
    constexpr int pairs = size / 2, together = 2;
    const int total = p.batch * pairs;
    bool arrived = true;
#pragma unroll 1
    for (int start = threadIdx.x; start < total; start += together * C::threads) {
      WordPairs<3> product[together];
      uint32_t from_token[together][3];
      const auto item_of = [&](int k) { return min(start + k * C::threads, total - 1); };
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const uint16_t* const from = entry(tokens[item_of(k) / pairs]) + 2 * (item_of(k) % pairs);
#pragma unroll
        for (int i = 0; i < 3; ++i) from_token[k][i] = load_bf16_pair(from + i * size);
      }
#pragma unroll
      for (int k = 0; k < together; ++k) {
        if (first) product[k].clear(epoch);
        else product[k].ask(state_words(epoch, item_of(k) / pairs) + 2 * (item_of(k) % pairs), size);
      }
#pragma unroll
      for (int k = 0; k < together; ++k) {
        const int item = start + k * C::threads;
        if (item >= total) break;
        arrived &= product[k].wait(epoch, p.max_polls);
        const float2 r = bf16_pair(from_token[k][0]), z = bf16_pair(from_token[k][1]), n = bf16_pair(from_token[k][2]);
        const float2 from_r = product[k].value(0), from_z = product[k].value(1), from_n = product[k].value(2);
        uint32_t& state = state_pair(item / pairs, item % pairs);
        const float2 old = bf16_pair(state);
        state = round_to_bf16(make_float2(gru_state(r.x, z.x, n.x, from_r.x, from_z.x, from_n.x, old.x),
                                          gru_state(r.y, z.y, n.y, from_r.y, from_z.y, from_n.y, old.y)));
      }
    }
    return arrived;
  }

  // u = SiLU(P + F1_s s'), each block reading all of it.
  __device__ __forceinline__ bool gather_latents(int position, uint32_t epoch) const {
    bool arrived = true;
    const uint32_t ready = short_clock();
    for_each_chunk([&](int row, int chunk) {
      const int pair = 32 * chunk + lane;
      const bool present = pair < C::rank / 2;
      float2 u = make_float2(0.0f, 0.0f);
      if (present) {
        const float2 from_position = load_float_pair(terms(row, position) + 2 * pair);
        while (short_clock() - ready < kFirstPollClocks) {  // as in exchange_wait
        }
        WordPairs<1> product;
        product.ask(latent_words(epoch, row) + 2 * pair, 0);
        arrived &= product.wait(epoch, p.max_polls);
        const float2 f = product.value(0);
        u = make_float2(silu(__fadd_rn(f.x, from_position.x)), silu(__fadd_rn(f.y, from_position.y)));
      }
      keep_u(row, chunk, present, u);
    });
    return arrived;
  }

  // Publishes the products of every batch row's state with the rows of a share, Matrix rows and batch_together batch rows at a
  // time, as words[batch row * stride + matrix row].
  template <int Matrix>
  __device__ __forceinline__ void publish_dots(const Share& share, uint64_t* to, int stride, uint32_t epoch, int participant,
                                               int participants) const {
    constexpr int Batch = batch_together, lanes = 32 / (Matrix * Batch);
    const int batch_groups = C::rows == 1 ? 1 : (p.batch + Batch - 1) / Batch;
    const int tiles = (share.count + Matrix - 1) / Matrix * batch_groups;
#pragma unroll 1
    for (int tile = participant; tile < tiles; tile += participants) {
      const int first = tile / batch_groups * Matrix, first_row = tile % batch_groups * Batch;
      const int last = min(first + Matrix, share.count) - 1;
      float sum[Matrix * Batch] = {};
      if (last < share.kept)
        add_products<Matrix, Batch>(sum, reinterpret_cast<const uint16_t*>(share.copy), first, last, first_row);
      else
        add_products<Matrix, Batch>(sum, share.matrix, first, last, first_row);
      const float value = fold(sum, lane);
      const int row = first + lane / lanes / Batch, batch_row = first_row + lane / lanes % Batch;
      if (lane % lanes == 0 && row <= last && batch_row < p.batch)
        store_word(to + batch_row * stride + share.first + row, word_of(value, epoch));
    }
  }
  // This lane's part of the sums; rows past the last are the last one's again.
  template <int Matrix, int Batch>
  __device__ __forceinline__ void add_products(float (&sum)[Matrix * Batch], const uint16_t* matrix, int first, int last,
                                               int first_row) const {
#pragma unroll(Matrix * Batch == 1 ? 4 : 1)  // a single sum waits for nothing but its loads
    for (int chunk = 0; chunk < (size + 255) / 256; ++chunk) {
      const int element = 8 * lane + 256 * chunk;
      if (element >= size) break;
      uint4 w[Matrix];
#pragma unroll
      for (int i = 0; i < Matrix; ++i) w[i] = *reinterpret_cast<const uint4*>(matrix + min(first + i, last) * size + element);
#pragma unroll
      for (int b = 0; b < Batch; ++b) {
        const uint4 s = *reinterpret_cast<const uint4*>(shared + (first_row + b) * row_bytes + 2 * element);
#pragma unroll
        for (int i = 0; i < Matrix; ++i) add_eight(sum[i * Batch + b], w[i], s);
      }
    }
  }
  __device__ __forceinline__ static void add_eight(float& sum, const uint4& w, const uint4& s) {
    add_two(sum, w.x, s.x);
    add_two(sum, w.y, s.y);
    add_two(sum, w.z, s.z);
    add_two(sum, w.w, s.w);
  }
  __device__ __forceinline__ static void add_two(float& sum, uint32_t w, uint32_t s) {
    const float2 a = bf16_pair(w), b = bf16_pair(s);
    sum = __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum));
  }
};

}  // namespace wts
