"""What a gated, RNN or Domino head adds to a fused walk: latents that are computed, states that all blocks advance, candidate pools.

Every block computes the whole state of every batch row; what is divided among the blocks, and exchanged, are the products of the
state with its matrices (`csrc/walk/recurrent.cuh`). They travel beside the tokens: an RNN has one exchange on its critical path. Domino's
latent needs the new state, so its projector's products are exchanged once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_model import terms
from cost_model.elementwise import Number, larger, rate_at, rounded_up, smaller
from cost_model.figures import BandwidthCurve
from cost_model.units import us_from_cycles

if TYPE_CHECKING:
    from cost_model.fused import WalkSizes

NEAR_BYTES = 1 << 20
"""A footprint that any L2 holds: states and words."""

SMALL_KERNELS = {"gated": 2, "rnn": 2, "domino": 0}
"""Library kernels that make a call's position terms beside one product: a bias in fp32, and its sum."""

ADVANCE_BARRIERS = {"rnn": 2, "domino": 4}
"""Barriers of the block that an advance adds (`recurrent.cuh`)."""

GATES = 3


@dataclass(frozen=True)
class RecurrentCase:
    """Sizes of what a head adds.

    Attributes:
        kind: gated, rnn or domino.
        state_size: elements of a state; None for a gated head.
        matrix_bytes: state matrices, loaded once by the whole chip.
        read_bytes: what every block reads at its advance for all batch rows: words, rows of the token table, position terms.
        gathered_bytes: words of Domino's second exchange, read by every block.
        left_out_bytes: rows of state matrices that blocks do not keep and the chip reads again in each step.
        near_bytes_per_s: rate of L2.
        position_bytes: weights that make the position terms of a call.
        away: share of steps whose position terms come from HBM.
        pooled: whether candidates are gathered first; pool_bytes: base logits scanned for that in a step, of all batch rows.
    """

    kind: str
    state_size: Number | None
    matrix_bytes: Number
    read_bytes: Number
    gathered_bytes: Number
    left_out_bytes: Number
    near_bytes_per_s: Number
    position_bytes: Number
    away: Number
    pooled: bool
    pool_bytes: Number


def recurrent_case(kind: str, precision: str, sizes: WalkSizes, curve: BandwidthCurve, away: Number) -> RecurrentCase | None:
    """Size what a head adds; None for Markov. `away`: share of the steps whose position terms have left L2."""
    if kind == "markov":
        return None
    size = {"rnn": sizes.rank, "domino": sizes.gru_size}.get(kind)
    elements = 0 if size is None else size
    words = GATES * elements
    token = terms.token_row_bytes(kind, sizes.rank, sizes.gru_size, precision)
    positions = terms.BYTES_OF_FP32 * (words if kind == "rnn" else sizes.rank)
    projector = sizes.rank if kind == "domino" else 0
    left_out = larger(rounded_up(words, sizes.grid_blocks) - sizes.state_rows, 0) + larger(rounded_up(projector, sizes.grid_blocks) - sizes.projector_rows, 0)
    pooled = kind == "domino" and _any(sizes.pooled_vocab_size)
    return RecurrentCase(
        kind=kind, state_size=size, matrix_bytes=terms.state_matrix_bytes(kind, sizes.rank, sizes.gru_size) * 1.0,
        read_bytes=sizes.batch * (words * terms.WORD_BYTES + token + positions) * 1.0, gathered_bytes=sizes.batch * projector * terms.WORD_BYTES * 1.0,
        left_out_bytes=left_out * elements * terms.BYTES_OF_BF16 * sizes.grid_blocks * 1.0, near_bytes_per_s=rate_at(curve, NEAR_BYTES),
        position_bytes=terms.position_weight_bytes(kind, sizes.rank, sizes.hidden_size) * 1.0, away=away, pooled=pooled,
        pool_bytes=terms.base_logits_bytes(sizes.pooled_vocab_size, sizes.launches) * 1.0,
    )


def _any(count: Number) -> bool:
    """Whether a number, or any of an array, is not 0."""
    return bool(count if isinstance(count, (int, float)) else count.any())


def step_parameters(kind: str) -> tuple[str, ...]:
    """Parameters of a step beside a Markov head's."""
    return ("hbm_read_bytes_per_s",) if kind == "domino" else ()


def entry_parameters(kind: str) -> tuple[str, ...]:
    """Parameters of an entry beside a Markov head's."""
    if kind == "markov":
        return ()
    return ("position_product_us", "small_kernel_us", *(("pool_gather_us",) if kind == "domino" else ()))


def state_products_us(values: Mapping[str, float], case: RecurrentCase, sizes: WalkSizes, rows: int, warps: Number, clock_mhz: Number) -> Number:
    """Products of the states with a block's share of the state matrix, by the warps that do not exchange words; rows that do not stay on
    chip are read from L2."""
    share = rounded_up(GATES * case.state_size, sizes.grid_blocks)
    issued = _dots_us(values, case, terms.dot_instructions(share, case.state_size, sizes.batch), terms.independent_sums(case.kind, rows), warps, clock_mhz)
    return issued + terms.stream_us(case.left_out_bytes, case.near_bytes_per_s * values["read_curve_scale"], 1.0)


def _dots_us(values: Mapping[str, float], case: RecurrentCase, instructions: Number, independent: int, warps: Number, clock_mhz: Number) -> Number:
    """Warp instructions of dot products, shared by warps that add up so many independent sums side by side."""
    return terms.chain_us(instructions / warps, warps, larger(values["instruction_cycles"] / independent, 1.0), clock_mhz)


def advance_terms(values: Mapping[str, float], case: RecurrentCase, sizes: WalkSizes, rows: int, clock_mhz: Number) -> dict[str, Number]:
    """What stands between the winners of a step and the next latents, beside the trip to L2 that a Markov head makes, too.

    gated: its leaders compute the latents. rnn: words and table rows are read by all blocks, outputs and states computed. domino: the
    same, then the projector's products, their exchange, and the latents. `rows`: of the kernel. Each turn of a warp waits for position terms that have left L2.
    """
    def chain(instructions: Number, warps: Number) -> Number:
        return terms.chain_us(instructions, warps, values["instruction_cycles"], clock_mhz)

    near = case.near_bytes_per_s * values["read_curve_scale"]
    read_us, away_us = terms.everywhere_us(case.read_bytes, sizes.grid_blocks, near), case.away * (values["hbm_latency_us"] - values["l2_latency_us"])
    if case.kind == "gated":
        leaders, led_rows = smaller(sizes.batch, sizes.warps), rounded_up(sizes.batch, sizes.warps)
        return {"state_read": read_us + led_rows * away_us, "gate": chain(terms.gate_instructions(sizes.rank, led_rows), leaders)}
    barriers_us = us_from_cycles(ADVANCE_BARRIERS[case.kind] * terms.barrier_cycles(sizes.warps), clock_mhz)
    turns = terms.state_turns(case.kind, case.state_size, sizes.batch, sizes.warps)
    updated_us = chain(terms.state_instructions(case.kind, case.state_size, sizes.batch, sizes.warps), sizes.warps)
    waits = turns if case.kind == "rnn" else terms.latent_turns(sizes.rank, sizes.batch, sizes.warps)
    read = {"state_read": read_us + waits * away_us}
    update = {"state_update": updated_us + (turns - 1) * values["l2_latency_us"] + barriers_us}
    latents = {"latent_update": chain(terms.latent_instructions(case.kind, sizes.rank, sizes.batch, sizes.warps), sizes.warps)}
    if case.kind == "rnn":
        return {**read, **update, **latents}
    share = rounded_up(sizes.rank, sizes.grid_blocks)
    in_turn = rounded_up(share * rounded_up(sizes.batch, terms.QUAD_ROWS), sizes.warps) * smaller(sizes.batch, terms.QUAD_ROWS)
    projected = terms.dot_instructions(in_turn, case.state_size, 1)
    independent = smaller(rows, terms.QUAD_ROWS)
    gathered = terms.everywhere_us(case.gathered_bytes, sizes.grid_blocks, near)
    return {
        **read, **update, "projector": terms.chain_us(projected, sizes.warps, larger(values["instruction_cycles"] / independent, 1.0), clock_mhz),
        "latent_exchange": values["exchange_us"] + gathered, **latents,
    }


def entry_terms(values: Mapping[str, float], case: RecurrentCase) -> dict[str, Number]:
    """Library kernels before the walk: position terms of the call, and the candidates of a pool. The first latents are advanced from empty states in
    place of the last step's, which nobody needs."""
    made = values["position_product_us"] + SMALL_KERNELS[case.kind] * values["small_kernel_us"]
    found = {"position_terms": made + terms.stream_us(case.position_bytes, values["hbm_read_bytes_per_s"], 1.0)}
    return {**found, "pool_gather": values["pool_gather_us"]} if case.pooled else found
