"""The terms of a walk's latency: one bare function a term, whose docstring is its formula.

Times are in microseconds, sizes in bytes, rates in bytes or operations a second and belong to what the name says (the
whole chip, or `_per_sm` one multiprocessor). Nothing here knows a GPU or a head; `fused.py`, `recurrence.py` and `stepwise.py`
supply the numbers and decide what overlaps. `docs/cost-model.md` derives each formula.

Counts, sizes and times may be numbers or NumPy arrays of them: `predict` gives one, `sweep` gives the other.
"""

from __future__ import annotations

from cost_model.elementwise import Number, choose, larger, rounded_up, smaller
from cost_model.units import us_from_cycles, us_from_operations, us_from_transfer

TILE_ROWS = 16
"""Rows of W2 in a tile: the rows of one `mma.sync` fragment."""

MMA_COLUMNS = 8
"""Columns of one `mma.sync`; a batch row takes a pair of them: its two vectors in int8x2, one vector twice in bf16."""

QUAD_ROWS = MMA_COLUMNS // 2
"""Batch rows of one `mma.sync`, a *quad*: each quad of a batch multiplies, and reads, every tile again."""

GROUP_COLUMNS = 32
"""Columns that a `wgmma` is taken to cost at least: m64nNk32 takes 16 clocks of Hopper's tensor cores whatever N up to 32, and N / 2 beyond."""

VECTORS_OF_PRECISION = {"int8x2": 2, "bf16": 1}
"""Vectors of one batch row that a product needs: int8x2 represents the latent by two int8 vectors."""

BYTES_OF_PRECISION = {"int8x2": 1, "bf16": 2}
"""Bytes of one element of W2."""

BYTES_OF_BF16 = 2
BYTES_OF_FP32 = 4


# --- sizes -------------------------------------------------------------------------------------------------------------


def tile_bytes(rank: int, precision: str) -> int:
    """Bytes of one tile of W2: 16 rows × rank × bytes an element."""
    return TILE_ROWS * rank * BYTES_OF_PRECISION[precision]


def tiles_of(vocab_size: int) -> int:
    """Tiles of the vocabulary: ceil(V / 16)."""
    return -(-vocab_size // TILE_ROWS)


def matrix_bytes(vocab_size: int, rank: int, precision: str) -> int:
    """Bytes of W2 that one step needs: V × rank × bytes an element (scales stay on chip and are not counted)."""
    return vocab_size * rank * BYTES_OF_PRECISION[precision]


def base_logits_bytes(vocab_size: int, batch: int) -> int:
    """Bytes of base logits read in one step, or of step logits written where they are kept: batch × V × 2 (bf16)."""
    return batch * vocab_size * BYTES_OF_BF16


def latent_row_bytes(rank: int, precision: str) -> int:
    """Bytes of one row of the latent table: two int8 vectors and 16 bytes of scales, or bf16 elements."""
    return 2 * rank + 16 if precision == "int8x2" else BYTES_OF_BF16 * rank


def quads_of(batch: Number) -> Number:
    """Times that a warp multiplies each tile in a step: ceil(batch / 4)."""
    return rounded_up(batch, QUAD_ROWS)


def product_operations(tiles: int, rank: int, precision: str, batch: int) -> float:
    """Operations that `mma.sync` runs for `tiles` tiles: 2 × 16 rows × rank × 8 columns × ceil(batch / 4), in either precision.

    All 8 columns are computed whether used or not: batch 1 to 4 cost the same.
    """
    return 2.0 * TILE_ROWS * rank * MMA_COLUMNS * quads_of(batch) * tiles


def group_operations(tiles: int, rank: int, rows: int) -> float:
    """Operations that `wgmma` is worth for `tiles` tiles and all `rows` of the kernel: 2 × 16 × rank × max(2 × rows, 32). A kernel of 8 or 16 rows costs the same."""
    return 2.0 * TILE_ROWS * rank * larger(2 * rows, GROUP_COLUMNS) * tiles


GROUP_TILES = 4
"""Tiles that a warpgroup multiplies at once, one a warp."""


def group_operand_bytes(tiles: Number, rank: Number, rows: int) -> Number:
    """Bytes of latents that warpgroups read from shared memory for `tiles` tiles: two int8 vectors of all `rows`, for every four tiles."""
    return tiles / GROUP_TILES * 2 * rows * rank


def operand_bytes(rank: Number, rows: int) -> Number:
    """Bytes of a quad's latents that a warp reads from shared memory: two vectors (int8x2), or two bytes an element (bf16), of up to four rows."""
    return 2 * rank * smaller(rows, QUAD_ROWS)


def accumulators_of(slots: Number, packed: Number) -> Number:
    """Accumulators of a thread: `packed` slots share one (4 at one batch row, 2 at two), but three keep the tensor cores busy.

    max(ceil(slots / packed), min(slots, 3)), as `footprint.accumulator_groups` counts them.
    """
    return larger(rounded_up(slots, packed), smaller(slots, 3))


def state_matrix_bytes(kind: str, rank: int, gru: int) -> int:
    """Bytes of what multiplies a head's state in a fused step (bf16): Wj_s [3 r, r] of an RNN, W_hh [3 g, g] and F1_s [r, g] of Domino."""
    elements = {"rnn": 3 * rank * rank, "domino": (3 * gru + rank) * gru}.get(kind, 0)
    return elements * BYTES_OF_BF16


def token_row_bytes(kind: str, rank: int, gru: int, precision: str) -> int:
    """Bytes of a token's row of the table: a packed latent (Markov), [e, Wg_e e] (gated), [a, c, o] (RNN), [r, z, n] (Domino)."""
    if kind == "markov":
        return latent_row_bytes(rank, precision)
    return {"gated": 2 * rank, "rnn": 3 * rank, "domino": 3 * gru}[kind] * BYTES_OF_BF16


def head_weight_bytes(kind: str, rank: int, hidden: int, gru: int) -> int:
    """Bytes of the weights beside W2 that a stepwise step reads (bf16): Wg [r, hidden + r], Wj [3 r, 2 r + hidden], or the GRU over
    embeddings W_ih [3 g, hidden] and W_hh [3 g, g] with F1 [r, hidden + g]."""
    elements = {"gated": rank * (hidden + rank), "rnn": 3 * rank * (2 * rank + hidden), "domino": 3 * gru * (hidden + gru) + rank * (hidden + gru)}
    return elements.get(kind, 0) * BYTES_OF_BF16


def position_weight_bytes(kind: str, rank: int, hidden: int) -> int:
    """Bytes of the weights that turn hidden vectors into position terms, once a call: [r, hidden], three times that of an RNN."""
    return {"gated": 1, "rnn": 3, "domino": 1}.get(kind, 0) * rank * hidden * BYTES_OF_BF16


# --- one step of the fused walk -------------------------------------------------------------------------------------------


def cold_latent_us(l2_latency_us: Number, pull_us: Number, hidden_us: Number) -> Number:
    """Fetch of the winner's latent row from a table that L2 does not hold: l2_latency + max(0, pull − what hides it).

    Each block pulls its own winner's row into L2 as soon as it has published it, and the global winner is one of those rows. What hides the pull is
    what lies between publishing and reading in the block that publishes last. From a warm table it is l2_latency alone.
    """
    return l2_latency_us + larger(0.0, pull_us - hidden_us)


def slowest_of_us(least_us: Number, mean_us: Number, count: Number) -> Number:
    """The slowest of so many loads whose times spread evenly about a mean, from a least one on: mean + (mean − least) × (count − 1) / (count + 1)."""
    return mean_us + (mean_us - least_us) * (count - 1) / (count + 1)


def products_us(operations_per_sm: float, operations_per_s_per_sm: float) -> float:
    """Tensor products of the busiest block: its operations / rate of one multiprocessor."""
    return us_from_operations(operations_per_sm, operations_per_s_per_sm)


def shared_read_us(shared_bytes_per_sm: float, bytes_per_s_per_sm: float) -> float:
    """Tiles read from shared memory by one block (resident there, or landed in the staging ring): bytes / rate."""
    return us_from_transfer(shared_bytes_per_sm, bytes_per_s_per_sm)


def stream_us(streamed_bytes: float, bytes_per_s: float, efficiency: float) -> float:
    """Bytes fetched by the whole chip in a step / (bandwidth(footprint) × efficiency of the walk's access pattern)."""
    return us_from_transfer(streamed_bytes, bytes_per_s * efficiency)


def ring_us(streamed_bytes: Number, ring_bytes: Number, bytes_per_s: Number, latency_us: Number) -> Number:
    """Streamed bytes through rings of `ring_bytes` on the whole chip: latency + max(bytes / bandwidth, bytes / ring × latency).

    A part of the ring is asked for again as soon as it has been multiplied, so the ring's bytes are under way all the time: they come at the rate of
    the memory, or in turns of a latency each where the ring holds less than a latency's worth (Little's law). Blocks start a step together and ask
    all at once, which costs a latency more. The latency is that of a loaded memory.
    """
    return latency_us + larger(us_from_transfer(streamed_bytes, bytes_per_s), streamed_bytes / larger(ring_bytes, 1) * latency_us)


def slot_in_turn_us(transfer_us: Number, work_us: Number, readings: Number = 1) -> Number:
    """A streamed slot of a warp that takes its turn: work of all readings but the last + max(transfer, work of the last).

    Its base logits are asked for at its start and come while the tile does. A tile that is read again stays in the ring whole until its last reading.
    """
    last_us = work_us / readings
    return (work_us - last_us) + larger(transfer_us, last_us)


def after_work_us(stream_us: Number, work_us: Number, beyond_l2: Number) -> Number:
    """What a stream adds to work that stands between its parts: stream - beyond_l2 × min(stream, work).

    Blocks start a step together: all ask, all wait, all work. What L2 holds comes in less than a warp's turn and is waited for; what comes from beyond it is
    under way for longer, and runs on beside the work. In-sample: walks at rank 512 tell it, parts of streaming walks are not recorded.
    """
    return stream_us - beyond_l2 * smaller(stream_us, work_us)


PART_K_STEPS = 4
"""k-steps of an entry of the ring (`config.cuh`), where that divides them."""

PART_CYCLES = 70
"""A warpgroup's part of a tile: fragments from shared memory (30), and products that are waited for before the next part (40). Derived."""

WARP_PART_CYCLES = 160
"""A part of a streamed tile that a warp of sampled rows multiplies with up to four quads: fragments from shared memory (30), four products that wait for one
another (24 each: Luo et al. 2024), the wait for the part's copies (34). Derived."""


def tile_parts(rank: Number, precision: str) -> Number:
    """Entries of the ring that a tile takes: its k-steps (32 elements of int8, 16 of bf16) / 4, or one."""
    k_steps = rank * BYTES_OF_PRECISION[precision] // 32
    return choose(k_steps % PART_K_STEPS == 0, k_steps // PART_K_STEPS, 1)


def group_selection_us(slots: Number, together: Number, slot_cycles: Number, quad_cycles: Number, clock_mhz: Number) -> Number:
    """Slots of a block's warpgroups, each in every reading: slots × (slot_cycles + quads that are multiplied together × quad_cycles).

    A slot is selected from while the next is multiplied, so products of it that take less than that are hidden.
    """
    return us_from_cycles(slots * (slot_cycles + together * quad_cycles), clock_mhz)


def chain_us(instructions: Number, warps: Number, instruction_cycles: Number, clock_mhz: Number) -> Number:
    """`warps` warps side by side, each with that many instructions of which every one waits for the last:
    instructions × max(instruction_cycles, warps / 4 schedulers)."""
    return us_from_cycles(instructions * larger(instruction_cycles, warps / SCHEDULERS_PER_SM), clock_mhz)


def epilogue_us(accumulators: Number, warps: Number, quads: Number, cycles: Number, clock_mhz: Number) -> Number:
    """Scaling, base logits, rounding and comparison: accumulators of a thread × warps × quads × issue cycles an accumulator / 4 schedulers."""
    return us_from_cycles(accumulators * warps * quads * cycles / SCHEDULERS_PER_SM, clock_mhz)


def further_cycles(*, rounding: str, wide: Number, kept: bool) -> Number:
    """Issue cycles of a warp's accumulator beyond a narrow greedy one: the instructions that other kernels add.

    rounding `twice` 4; 64-bit keys 20; storing a pair of logits 12. Counted in the source and in SASS of sm_90.
    """
    return 4 * (rounding == "twice") + 12 * kept + 20 * wide


NOISE_WORDS_INSTRUCTIONS = 40
"""A sampled pair's share of Philox4x32-10, whose words two lanes share. Temperatures, bounds of its noise and their contest are the parameter
`noise_bound_instructions`: SASS of sm_90 has 55 of them, each function compiled alone, but logarithms and shuffles answer later than arithmetic."""

NOISE_EXACT_INSTRUCTIONS = 80
"""Gumbel noise and division by the temperature of the one row of a lane that leads its contest (`contest.cuh`)."""

NOISE_SECOND_BOUND_INSTRUCTIONS = 16
"""What bounds of a pair's noise take beyond `noise_bound_instructions` where they are two (`contest.cuh`): a logarithm more and a minimum a row, counted in the source."""

NOISE_AGAIN_INSTRUCTIONS = 115
"""Philox4x32-10, Gumbel values of a pair and divisions by the temperature, where a lane evaluates all its rows again: 230 in SASS of sm_90, and pairs follow one
another without a branch, two at a time."""

SECOND_LOOKS = 0.22
"""Chance that bounds leave the winner of a warp and batch row open (`contest.cuh`), times the rows of the warp and the lanes of a batch row: simulated for
logits of variance 2, which recorded walks have, with 64 to 256 rows and 8 to 32 lanes. With variance 1 it is a third of that at most."""


def second_look_share(warps_and_rows: Number, warp_rows: Number, lanes: Number) -> Number:
    """Chance that any warp of the grid looks again in a step, which all blocks then wait for: min(1, warps × batch rows × 0.22 / (rows of a warp × lanes))."""
    return smaller(warps_and_rows * SECOND_LOOKS / larger(warp_rows * lanes, 1), 1.0)


NOISE_QUAD_INSTRUCTIONS = 80
"""Philox4x32-10 of two slots, drawn while latents travel."""


WARP_LANES = 32

SCHEDULERS_PER_SM = 4
"""Warp schedulers of a multiprocessor on every architecture from sm_80 on."""


def block_reduction_us(warps: Number, quads: Number, led_rows: Number, wide: Number, clock_mhz: Number) -> Number:
    """Best of a block: for each quad two warp reductions (30 cycles each; twice with 64-bit keys), for each batch row that a warp leads a
    trip through shared memory (30), and two barriers."""
    cycles = quads * (1 + wide) * 2 * WARP_REDUCTION_CYCLES + led_rows * SHARED_LATENCY_CYCLES + 2 * barrier_cycles(warps)
    return us_from_cycles(cycles, clock_mhz)


def barrier_cycles(warps: Number) -> Number:
    """A barrier of the block: 22 + 2 × warps cycles (QuickRunCUDA's `__syncthreads`)."""
    return 22 + 2 * warps


WARP_REDUCTION_CYCLES = 30
"""`redux.sync` issue-to-use on sm_80 and newer, rounded; derived from the spike's phase clocks."""

SHARED_LATENCY_CYCLES = 30
"""Load from shared memory: 28 to 30 cycles (Luo et al. 2024, table of load latencies)."""


def exchange_us(one_word_us: Number, rows_together: Number, growth: Number, crowding: Number) -> Number:
    """All blocks agree on the winners of rows that warps exchange side by side, one each:
    one_word × (1 + growth × (rows − 1) + crowding × max(0, rows − 4 schedulers)), since from the fifth row on two of these warps share a scheduler."""
    return one_word_us * (1.0 + growth * (rows_together - 1) + crowding * larger(rows_together - SCHEDULERS_PER_SM, 0))


def led_rows_us(led_rows: Number, row_us: Number) -> Number:
    """Further batch rows of a warp that exchanges words: (rows a leader - 1) × time of one. Words, winners and latents go one after the other."""
    return (led_rows - 1) * row_us


def tile_rest_us(readings: Number, rest_us: Number) -> Number:
    """What products and selection take beyond their terms, such as waits for first fragments and for logits: readings × time of one."""
    return readings * rest_us


# --- what other heads than Markov add to a fused step ---------------------------------------------------------------------------


GATE_INSTRUCTIONS, OUTPUT_INSTRUCTIONS, STATE_INSTRUCTIONS = 46, 41, {"rnn": 78, "domino": 117}
"""SASS of sm_90, each function compiled alone (`activation.cuh`, `latent.cuh`, `recurrent.cuh`): an element of a latent by sigmoid or
tanh (30 or 31) and split into two int8 vectors (16), an output by tanh or SiLU, an element of a new state."""

SPLIT_INSTRUCTIONS = 30
"""An element of a latent from fp32 into two int8 vectors, its share of the row's scales included."""

DOT_CHUNK_INSTRUCTIONS, DOT_FOLD_INSTRUCTIONS, DOT_CHUNK = 26, 20, 256
"""A warp's part of a dot product with a state: 24 to unpack and add eight pairs a lane and 2 loads for every 256 elements; the sum across lanes."""


def gate_instructions(rank: Number, led_rows: Number) -> Number:
    """Instructions of a leader's gated latents, u = sigmoid(P + t) × e: rows that it leads × rank / 32 × 46."""
    return led_rows * rank / WARP_LANES * GATE_INSTRUCTIONS


def dot_instructions(matrix_rows: Number, elements: Number, batch: Number) -> Number:
    """Warp instructions of the products of `batch` states with `matrix_rows` rows of a matrix: rows × batch × (elements / 256 × 26 + 20)."""
    return matrix_rows * batch * (elements / DOT_CHUNK * DOT_CHUNK_INSTRUCTIONS + DOT_FOLD_INSTRUCTIONS)


def independent_sums(kind: str, rows: int) -> int:
    """Sums of products that a warp adds up side by side (`recurrent.cuh`): up to four batch rows, and of Domino's matrix four rows for one
    batch row, else two."""
    return smaller(rows, QUAD_ROWS) * ((4 if rows == 1 else 2) if kind == "domino" else 1)


def state_turns(kind: str, size: Number, batch: Number, warps: Number) -> Number:
    """Turns in which the warps of a block advance all states: 4 elements a lane (Domino), or 2 of a state or an output (RNN). Each asks L2 for its words."""
    if kind == "domino":
        return rounded_up(batch * size, 4 * WARP_LANES * warps)
    return rounded_up(2 * batch * rounded_up(size, 2 * WARP_LANES), warps)


def state_instructions(kind: str, size: Number, batch: Number, warps: Number) -> Number:
    """Instructions of a warp that advances its part of all states, which every block computes whole: turns × elements of a lane × 78 (RNN) or 117."""
    return state_turns(kind, size, batch, warps) * (4 if kind == "domino" else 2) * STATE_INSTRUCTIONS[kind]


def latent_turns(rank: Number, batch: Number, warps: Number) -> Number:
    """Turns in which the warps of a block make all latents, 2 elements a lane."""
    return rounded_up(batch * rounded_up(rank, 2 * WARP_LANES), warps)


def latent_instructions(kind: str, rank: Number, batch: Number, warps: Number) -> Number:
    """Instructions of a warp that makes its part of the latents, 2 elements a lane and turn: split into two int8 vectors (30), and of Domino
    SiLU before that (41); an RNN's outputs are made beside its states."""
    return latent_turns(rank, batch, warps) * 2 * (SPLIT_INSTRUCTIONS + (OUTPUT_INSTRUCTIONS if kind == "domino" else 0))


def away_share(loaded_bytes: Number, passing_bytes: Number, held_bytes: Number) -> Number:
    """Share of a call's steps whose position terms have left L2 before they are read: max(0, min(1, (loaded + passing − held) / passing)).

    They were made just before the call; then it loads the matrix, and base logits of step after step pass.
    """
    return smaller(1.0, larger(0.0, (loaded_bytes + passing_bytes - held_bytes) / passing_bytes))


def everywhere_us(bytes_per_block: Number, grid_blocks: Number, bytes_per_s: Number) -> Number:
    """The same bytes read from L2 by every block: bytes × blocks / L2's rate. Words of 8 bytes a product, rows of the token table."""
    return us_from_transfer(bytes_per_block * grid_blocks, bytes_per_s)


WORD_BYTES = 8
"""A product of a state on its way: its float and an epoch."""


# --- the physical floor ---------------------------------------------------------------------------------------------------


def exchange_floor_us(l2_latency_us: float) -> float:
    """Agreement of blocks that share nothing nearer than L2: one trip to L2 to publish, one to read = 2 × l2_latency.

    The design study measured 0.29 µs for two to eight blocks of an H200, whose L2 latency is 0.146 µs.
    """
    return 2.0 * l2_latency_us


def step_floor_us(stream_floor_us: float, latent_floor_us: float, products_floor_us: float, shared_floor_us: float,
                  agreement_floor_us: float) -> float:
    """max(stream, latent + max(products, shared) + agreement).

    Reading W2 does not depend on the token and may overlap everything; the products need the latent, the agreement needs
    the products.
    """
    return larger(stream_floor_us, latent_floor_us + larger(products_floor_us, shared_floor_us) + agreement_floor_us)


def read_floor_us(bytes_: float, bytes_per_s: float) -> float:
    """Bytes that must move / the best rate at which they can."""
    return us_from_transfer(bytes_, bytes_per_s)


# --- entry of the fused walk ----------------------------------------------------------------------------------------------


def shard_load_us(resident_bytes: float, bytes_per_s: float) -> float:
    """Resident part of W2 loaded once: bytes / bandwidth of where they lie (L2 when warm, HBM when not)."""
    return us_from_transfer(resident_bytes, bytes_per_s)


def first_pass_us(bytes_: float, cold_bytes_per_s: float, warm_bytes_per_s: float) -> float:
    """What the first streaming of cold bytes costs above a later one: max(0, bytes / cold rate − bytes / warm rate)."""
    return larger(0.0, us_from_transfer(bytes_, cold_bytes_per_s) - us_from_transfer(bytes_, warm_bytes_per_s))


# --- one step of a stepwise path ------------------------------------------------------------------------------------------


def launch_us(nodes: int, graph_node_us: float) -> float:
    """Gaps between the kernels of a step in a replayed graph: nodes × graph_node."""
    return nodes * graph_node_us


def first_launch_us(graph_launch_us: float, graph_node_us: float) -> float:
    """Launch that a stepwise entry pays: a graph of one kernel, less one gap, since the steps count a gap for every kernel."""
    return larger(0.0, graph_launch_us - graph_node_us)


def projection_excess_us(byte_floor_us: float, efficiency: float) -> float:
    """What a kernel of that read efficiency adds to its byte floor: floor × (1 / efficiency − 1)."""
    return byte_floor_us * (1.0 / efficiency - 1.0)


def selection_us(fixed_us: float, us_per_million: float, elements: float) -> float:
    """Kernels that add, sample and select: their floor, and a rate over the batch × V elements."""
    return fixed_us + us_per_million * elements / ELEMENTS_PER_MILLION


ELEMENTS_PER_MILLION = 1e6
