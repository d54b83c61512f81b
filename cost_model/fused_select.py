"""Selection from a fused walk's tiles: scaling, base logits, comparison, the noise of sampled rows, and what all that takes beyond its terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cost_model import terms
from cost_model.elementwise import Number, choose, rounded_up
from cost_model.footprint import QUAD, QUADS_TOGETHER, Kernel
from cost_model.parts import Group

if TYPE_CHECKING:
    from cost_model.fused import FusedCase


def rest_parameter(kernel: Kernel) -> str:
    """Name of what products and selection of a kernel take beyond their terms: by its batch rows, of warps, which take a quad at a time, by up to four."""
    return f"tile_rest_{kernel.rows if kernel.grouped else min(kernel.rows, QUAD)}_us"


def tile_rest_us(values: Mapping[str, float], case: FusedCase) -> Number:
    """That rest, for every reading of the resident tiles by warps; between readings of sampled rows noise hides it. Where warpgroups select from streamed tiles of
    more than four quads at once nothing of it shows."""
    kernel = case.words.kernel
    readings = 1 if kernel.sampling else case.passes
    if kernel.grouped and kernel.quads > QUADS_TOGETHER:
        readings = choose(case.sizes.streamed_tiles > 0, 0, readings)
    return terms.tile_rest_us(readings, values[rest_parameter(kernel)])


def group_selection(values: Mapping[str, float], case: FusedCase, tiles: Number) -> Group:
    """Selection of warpgroups from so many of a block's tiles: slot by slot, up to four quads together where nothing streams, else all."""
    kernel, sizes = case.words.kernel, case.sizes
    slots, together = tiles / sizes.warps * case.matrix_reads, kernel.quads / case.matrix_reads
    of_quad = values["group_quad_cycles"] + _further_cycles(case) * sizes.warps / terms.SCHEDULERS_PER_SM
    return {"epilogue": terms.group_selection_us(slots, together, values["group_slot_cycles"], of_quad, case.clock_mhz)}


def selections(values: Mapping[str, float], case: FusedCase, tiles: Number, alone: bool) -> list[Group]:
    """Selection from so many of a block's tiles, their share of the accumulators, for every quad; and the noise of a sampled one.

    Rows bound their noise, and one of a lane and quad is evaluated. Slots that are multiplied side by side have one bound (`second_look_us` is what more they
    cost); those that are multiplied `alone` have two, and then the rows of two quads are evaluated together.
    """
    kernel, sizes = case.words.kernel, case.sizes
    accumulators = accumulators_of(case) * tiles / sizes.tiles
    cycles = values["epilogue_cycles_per_accumulator"] + _further_cycles(case)
    found: list[Group] = [{"epilogue": terms.epilogue_us(accumulators, sizes.warps, case.quads, cycles, case.clock_mhz)}]
    if not kernel.sampling:
        return found
    of_pair = values["noise_bound_instructions"] + terms.NOISE_WORDS_INSTRUCTIONS * choose(draws_ahead(case), 0, 1) + terms.NOISE_SECOND_BOUND_INSTRUCTIONS * alone
    exact = terms.NOISE_EXACT_INSTRUCTIONS / (2 if alone else 1)
    noise_us = chain_us(values, case, case.quads * (accumulators * of_pair + choose(tiles > 0, exact, 0)))
    return [*found, {"noise": noise_us}]


def second_look_us(values: Mapping[str, float], case: FusedCase) -> Number:
    """What all blocks wait for one whose bounds leave a winner open: the noise of all slots that are multiplied side by side, times its chance."""
    kernel, sizes = case.words.kernel, case.sizes
    tiles = sizes.tiles if kernel.quads == 1 else sizes.tiles - sizes.streamed_tiles
    lanes = terms.WARP_LANES // min(kernel.rows, terms.QUAD_ROWS)
    share = terms.second_look_share(sizes.batch * sizes.warps * sizes.grid_blocks, tiles / sizes.warps * terms.TILE_ROWS, lanes)
    return chain_us(values, case, share * accumulators_of(case) * tiles / sizes.tiles * terms.NOISE_AGAIN_INSTRUCTIONS)


def _further_cycles(case: FusedCase) -> Number:
    """Issue cycles of an accumulator beyond those of a narrow greedy one that nobody keeps."""
    return terms.further_cycles(rounding=case.words.kernel.rounding, wide=case.wide, kept=case.words.logits_kept)


def chain_us(values: Mapping[str, float], case: FusedCase, instructions: Number) -> Number:
    """Instructions of every warp that wait for one another."""
    return terms.chain_us(instructions, case.sizes.warps, values["instruction_cycles"], case.clock_mhz)


def accumulators_of(case: FusedCase) -> Number:
    """Accumulators of a thread for all slots of a warp."""
    kernel, slots = case.words.kernel, case.sizes.tiles / case.sizes.warps
    return slots if kernel.grouped or kernel.quads > 1 else terms.accumulators_of(slots, kernel.packed)


MOST_AHEAD = 3
"""Accumulators of a thread whose noise words wait in registers, drawn while latents travel (`select.cuh`)."""


def draws_ahead(case: FusedCase) -> object:
    """Whether noise words are drawn a step ahead."""
    return accumulators_of(case) <= MOST_AHEAD if case.words.kernel.quads == 1 else False


def drawn_ahead(values: Mapping[str, float], case: FusedCase) -> Group:
    """Noise words that the leader draws while its latents travel; others draw theirs while they wait for it."""
    if not (case.words.kernel.sampling and case.words.kernel.quads == 1):
        return {}
    drawn = choose(draws_ahead(case), rounded_up(accumulators_of(case), 2) * terms.NOISE_QUAD_INSTRUCTIONS, 0)
    return {"noise": chain_us(values, case, drawn)}
