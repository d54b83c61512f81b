"""part_fit: constants of the walk's own code, from what its parts take alone and from the clocks between the marks of a step.

Three probes take the kernel itself apart, for Markov heads at several batches and for every other kind of head:

    walk_phase      clocks of warp 0 between marks: products, epilogue, publish, exchange, latent
    fixed_latent    complete calls of products and selection, without any exchange
    walk_exchange   complete calls of words, agreement and latents, without products

`part_figures` turns them into parameters. Each is what a part takes beyond the terms that other probes fix, over how often it happens; a
parameter whose parts are not recorded, or contradict it (a rate below nothing), is left out, and keeps its published value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cost_model import terms
from cost_model.elementwise import rounded_up
from cost_model.fit import SeriesKey, fit_frame, series_of
from cost_model.footprint import QUAD
from cost_model.fused import GROUP_PARAMETERS, FusedCase, entry_groups, step_groups
from cost_model.fused_select import accumulators_of, draws_ahead, rest_parameter
from cost_model.gpu import Figure, Gpu
from cost_model.parameters import resolve
from cost_model.parts import split
from cost_model.recorded import case_of_series
from cost_model.recurrence import SMALL_KERNELS

if TYPE_CHECKING:
    import pandas

PHASE, TILES, AGREEMENT = "walk_phase", "fixed_latent", "walk_exchange"
MOST_SPILLED_BYTES = 128
"""Bytes of a thread that a kernel with counters may spill and still stand for the walk: a few instructions of a step."""

LEAST_ERROR = 0.05
"""Relative standard error that these constants keep at least: a part alone is compiled, and runs, a little unlike the whole."""


@dataclass(frozen=True)
class Part:
    """A recorded part of a walk.

    Attributes:
        key, case: its series and sizes.
        step_us, entry_us: slope and intercept of its calls; of a phase the median over blocks, and no entry.
    """

    key: SeriesKey
    case: FusedCase
    step_us: float
    entry_us: float | None = None

    @property
    def is_markov(self) -> bool:
        """Whether it is of greedy rows of a Markov head, which the others are compared with."""
        return self.case.recurrent is None and not self.case.words.kernel.sampling

    def terms_us(self, gpu: Gpu, names: Iterable[str], of_entry: bool = False) -> float:
        """What the model says that some terms of the whole step, or entry, add."""
        return self.terms_with_us(resolve(gpu).values, names, of_entry)

    def terms_with_us(self, values: Mapping[str, float], names: Iterable[str], of_entry: bool = False) -> float:
        """The same with these values of parameters."""
        exposed = split((entry_groups if of_entry else step_groups)(values, self.case))
        return sum(exposed[name][0] for name in names if name in exposed)


def part_figures(gpu: Gpu, probes: pandas.DataFrame) -> dict[str, Figure]:
    """Return the parameters that recorded parts fix.

    Args:
        gpu: the GPU with the parameters that all other probes fix.
        probes: probe rows of its records.
    """
    phases, agreements, tiles = _phases(gpu, probes), _calls(gpu, probes, AGREEMENT), _calls(gpu, probes, TILES)
    found = {**_of_selection(phases), **_of_advance(gpu, phases), **_of_agreement(gpu, agreements), **_of_groups(phases)}
    found |= _of_tiles(gpu.with_figures(found), tiles)
    known = gpu.with_figures(found)
    return {**found, **_of_noise(known, tiles), **_of_entries(known, agreements)}


def _phases(gpu: Gpu, probes: pandas.DataFrame) -> list[Part]:
    """Phases of int8x2 walks, by `key.variant`. Where the counters cost registers that spill, the clocks are not the walk's."""
    import numpy

    rows = probes[(probes["probe"] == PHASE) & (probes["precision"] == "int8x2") & ~(probes["spill_bytes"] > MOST_SPILLED_BYTES)]
    return [Part(key, case_of_series(gpu, key), float(numpy.median([numpy.median(samples) for samples in group["samples_us"]])))
            for key, group in series_of(rows)] if len(rows) else []


def _calls(gpu: Gpu, probes: pandas.DataFrame, probe: str) -> list[Part]:
    """Fitted calls of a probe."""
    return [Part(key, case_of_series(gpu, key), fit.step_us, fit.entry_us) for key, fit in fit_frame(probes, probe) if fit.usable]


def _figure(values: Sequence[float], unit: str, what: str, parts: Sequence[Part]) -> Figure:
    """Mean of estimates; its standard error is their scatter, at least LEAST_ERROR."""
    import numpy

    value = float(numpy.mean(values))
    scatter = float(numpy.std(values, ddof=1)) if len(values) > 1 else 0.0
    records = ", ".join(sorted({str(part.key.record) for part in parts if part.key.record})) or "not named"
    return Figure(value, unit, "measured", f"{what}, records {records}", max(scatter, LEAST_ERROR * abs(value)))


def _of_selection(phases: Sequence[Part]) -> dict[str, Figure]:
    """Cycles of an accumulator: slope of the epilogue's clocks over accumulators × warps / 4 schedulers, least squares of relative errors.

    The marks enclose the selection of a reading's last quad. Those of warpgroups may enclose products, too, and are left out. What does not grow with
    accumulators is a warp's reduction and waits, which other terms count.
    """
    import numpy

    found = [part for part in phases if part.key.variant == "epilogue" and part.is_markov and not part.case.words.kernel.grouped]
    counts, cycles = [], []
    for part in found:
        counts.append(accumulators_of(part.case) * part.case.sizes.warps / terms.SCHEDULERS_PER_SM)
        cycles.append(part.step_us * part.case.clock_mhz)
    if len(set(counts)) < 2:
        return {}
    columns = numpy.stack([numpy.ones(len(counts)), numpy.array(counts)], axis=1) / numpy.array(cycles)[:, None]
    fixed, slope = numpy.linalg.lstsq(columns, numpy.ones(len(counts)), rcond=None)[0]
    if slope <= 0:
        return {}
    each = [(one - fixed) / count for one, count in zip(cycles, counts)]
    figure = _figure(each, "cycle", "walk_phase epilogue, by accumulators", found)
    return {"epilogue_cycles_per_accumulator": Figure(float(slope), figure.unit, figure.kind, figure.source, figure.standard_error)}


def _of_groups(phases: Sequence[Part]) -> dict[str, Figure]:
    """Cycles of a slot of warpgroups, and of each quad that they select from it: least squares of relative errors over the phases of 8 rows and more, products
    and epilogue together, since products of the next slot run under the selection of one."""
    import numpy

    found, counts, cycles = [], [], []
    for both in _together(phases, ("products", "epilogue")).values():
        case = both[0].case
        slots = case.sizes.tiles / case.sizes.warps * case.matrix_reads
        counts.append((slots, slots * case.words.kernel.quads / case.matrix_reads))
        cycles.append(sum(part.step_us for part in both) * case.clock_mhz)
        found += both
    if len({selected / slots for slots, selected in counts}) < 2:
        return {}
    columns = numpy.array(counts) / numpy.array(cycles)[:, None]
    values = numpy.linalg.lstsq(columns, numpy.ones(len(cycles)), rcond=None)[0]
    left = float(numpy.sqrt(numpy.mean((columns @ values - 1) ** 2)))
    if min(values) <= 0 or left > MOST_SCATTER:
        return {}
    figures = {name: _figure([float(value)], "cycle", "walk_phase products and epilogue of warpgroups", found) for name, value in zip(GROUP_PARAMETERS, values)}
    return {name: replace(figure, standard_error=max(figure.standard_error, left * figure.value)) for name, figure in figures.items()}


MOST_SCATTER = 0.3
"""Relative scatter of parts about their terms beyond which they contradict the terms, and fix nothing."""


def _together(phases: Sequence[Part], names: Sequence[str]) -> dict[int, list[Part]]:
    """Batch -> the named phases of greedy Markov rows by warpgroups, where all of them are recorded."""
    found: dict[int, list[Part]] = {}
    for part in phases:
        if part.is_markov and part.key.variant in names and part.case.words.kernel.grouped:
            found.setdefault(part.case.sizes.batch, []).append(part)
    return {batch: parts for batch, parts in found.items() if {part.key.variant for part in parts} == set(names)}


def _of_noise(gpu: Gpu, tiles: Sequence[Part]) -> dict[str, Figure]:
    """Instructions that bound a sampled pair's noise: what products and selection of sampled rows take beyond the terms of everything else
    and the rest of four greedy rows, over pairs. A kernel that draws its words ahead, while latents travel, draws them in between here, and is left out."""
    found = [part for part in tiles if part.case.recurrent is None and part.case.words.kernel.sampling and not draws_ahead(part.case)]
    if not found:
        return {}
    cycles = resolve(gpu).values["instruction_cycles"]
    others = [name for name in (*TILE_NAMES, "tile_rest") if name != "noise"]
    bounds = []
    for part in found:
        noise_us = part.step_us - part.terms_us(gpu, others)
        instructions = noise_us * part.case.clock_mhz / max(cycles, part.case.sizes.warps / terms.SCHEDULERS_PER_SM) / part.case.quads
        bounds.append((instructions - terms.NOISE_EXACT_INSTRUCTIONS) / accumulators_of(part.case) - terms.NOISE_WORDS_INSTRUCTIONS)
    return {"noise_bound_instructions": _figure(bounds, "instruction", "fixed_latent of sampled rows", found)} if min(bounds) > 0 else {}


def _of_advance(gpu: Gpu, phases: Sequence[Part]) -> dict[str, Figure]:
    """Cycles of an instruction that waits for the one before: a gated head's latent phase less a Markov head's, over its instructions."""
    markov = {part.case.sizes.batch: part for part in phases if part.key.variant == "latent" and part.is_markov}
    found = [part for part in phases if part.key.variant == "latent" and part.key.head_kind == "gated" and part.case.sizes.batch in markov]
    cycles = []
    for part in found:
        sizes = part.case.sizes
        longer_us = part.step_us - markov[sizes.batch].step_us - part.terms_us(gpu, ["state_read"])
        cycles.append(longer_us * part.case.clock_mhz / terms.gate_instructions(sizes.rank, rounded_up(sizes.batch, sizes.warps)))
    return {"instruction_cycles": _figure(cycles, "cycle", "walk_phase latent, gated less Markov", found)} if cycles and min(cycles) > 0 else {}


def _of_agreement(gpu: Gpu, parts: Sequence[Part]) -> dict[str, Figure]:
    """Further rows that warps exchange side by side, of the time of one word, up to a warp a scheduler and beyond; and further rows of a leader. The bare
    exchange grows otherwise: nothing but looks stands between its words."""
    of = {(part.case.sizes.batch, rounded_up(part.case.sizes.batch, part.case.sizes.warps)): part for part in parts if part.is_markov}
    single = {batch: part for (batch, led), part in of.items() if led == 1}
    if 1 not in single or len(single) < 2:
        return {}
    one_us, most = resolve(gpu).values["exchange_us"], max(single)
    further = {batch: (part.step_us - single[1].step_us) / one_us for batch, part in single.items() if batch > 1}
    growths = [longer / (batch - 1) for batch, longer in further.items() if batch <= terms.SCHEDULERS_PER_SM] or [longer / (batch - 1) for batch, longer in further.items()]
    found = {"exchange_growth": _figure([max(one, 0.0) for one in growths], "ratio", "walk_exchange, by rows side by side", list(single.values()))}
    growth = found["exchange_growth"].value
    crowded = [(longer - growth * (batch - 1)) / (batch - terms.SCHEDULERS_PER_SM) for batch, longer in further.items() if batch > terms.SCHEDULERS_PER_SM]
    if crowded:
        found["exchange_crowding"] = _figure([max(one, 0.0) for one in crowded], "ratio", "walk_exchange, by rows beyond a warp a scheduler", list(single.values()))
    several = [(part, (part.step_us - single[most].step_us) / (led - 1)) for (_, led), part in of.items() if led > 1]
    if several:
        found["led_row_us"] = _figure([max(one, 0.0) for _, one in several], "us", "walk_exchange, by rows of a leader", [part for part, _ in several])
    return found


TILE_NAMES = ("products", "shared_read", "stream", "epilogue", "noise", "block_reduction")
"""Terms of products and selection."""


def _of_tiles(gpu: Gpu, parts: Sequence[Part]) -> dict[str, Figure]:
    """What products and selection of greedy rows take beyond their terms, by batch rows of the kernel. Two rows, where they are not recorded, lie
    between one and a quad, in proportion."""
    left: dict[str, list[tuple[Part, float]]] = {}
    for part in parts:
        if part.is_markov:
            left.setdefault(rest_parameter(part.case.words.kernel), []).append((part, (part.step_us - part.terms_us(gpu, TILE_NAMES)) / part.case.passes))
    found = {name: _figure([max(rest, 0.0) for _, rest in some], "us", "fixed_latent beyond its terms", [part for part, _ in some]) for name, some in left.items()}
    one, two, quad = (f"tile_rest_{rows}_us" for rows in (1, 2, QUAD))
    if one in found and quad in found and two not in found:
        least, most = found[one], found[quad]
        value = least.value + (most.value - least.value) / (QUAD - 1)
        found[two] = Figure(value, "us", "derived", f"between {one} and {quad}", abs(most.value - least.value) / 12**0.5)
    return found


def _of_entries(gpu: Gpu, parts: Sequence[Part]) -> dict[str, Figure]:
    """Library kernels that make position terms: entries of other heads less a Markov head's, less what these load; least squares
    over one product and the small kernels beside it."""
    import numpy

    markov = {part.case.sizes.batch: part for part in parts if part.is_markov}
    found = [part for part in parts if not part.is_markov and part.case.sizes.batch in markov]
    if len({SMALL_KERNELS[part.key.head_kind] for part in found}) < 2:
        return {}
    silent = gpu.with_figures({name: Figure(0.0, "us", "measured", "left out") for name in ("position_product_us", "small_kernel_us")})
    names = ("position_terms", "shard_load")
    longer = [part.entry_us - markov[part.case.sizes.batch].entry_us - part.terms_us(silent, names, of_entry=True)
              + markov[part.case.sizes.batch].terms_us(silent, names, of_entry=True) for part in found]
    counts = numpy.array([[1.0, SMALL_KERNELS[part.key.head_kind]] for part in found])
    product, small = numpy.linalg.lstsq(counts, numpy.array(longer), rcond=None)[0]
    left = float(numpy.sqrt(numpy.mean((counts @ [product, small] - longer) ** 2)))

    def figure(value: float) -> Figure:
        of = _figure([max(float(value), 0.0)], "us", "walk_exchange entries, by library kernels", found)
        return Figure(of.value, of.unit, of.kind, of.source, max(of.standard_error, left))

    return {"position_product_us": figure(product), "small_kernel_us": figure(small)}
