"""Gpu: one SKU with every figure's unit, kind and source, and the catalogue in `data/gpus/`.

Facts (`data/gpus/<id>.toml`: datasheet and published) and parameters fitted from a machine's probes
(`data/gpus/calibrated/<id>.toml`) never share a file; `load_gpu` lays the second over the first. `calibration_toml` writes
the form of the second kind, `read_calibration` reads it. All rates are dense.

Names of parameters (`CALIBRATED_PARAMETERS`) are fixed here; their meaning belongs to `cost_model.terms`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

from cost_model.catalogue import CatalogueError, check_keys, check_version, read_facts
from cost_model.errors import BadInput
from cost_model.figures import (
    KINDS, BandwidthCurve, Figure, curve_from_table, curve_lines, expected_unit, figure_from_table, figure_lines, toml_text,
)
from cost_model.paths import data_root
from cost_model.units import BYTES_PER_GB

__all__ = [
    "CALIBRATED_PARAMETERS", "KINDS", "READ_CURVE", "AmbiguousGpu", "BandwidthCurve", "BandwidthMismatch", "Figure", "Gpu",
    "MissingFact", "UnknownGpu", "calibration_toml", "list_gpus", "load_gpu", "read_calibration", "recognise_gpu",
    "require_plausible_bandwidth",
]

GPU_SCHEMA_VERSION = 1

CALIBRATED_PARAMETERS = MappingProxyType({
    "exchange_us": "one word a block over the full grid, batch 1",
    "l2_latency_us": "dependent load that hits L2",
    "hbm_latency_us": "dependent load that misses L2",
    "shared_read_bytes_per_s_per_sm": "shared memory read by one multiprocessor",
    "mma_s8_ops_per_s_per_sm": "int8 mma.sync of one multiprocessor, two operations a multiply-add",
    "mma_bf16_flops_per_s_per_sm": "bf16 mma.sync of one multiprocessor, two operations a multiply-add",
    "graph_launch_us": "an empty kernel as a complete call, timed as the protocol times calls",
    "cooperative_launch_us": "the same, launched cooperatively on the full grid",
    "graph_node_us": "one more kernel node in a graph",
    "hbm_read_bytes_per_s": "reading far more than L2 holds",
    "exchange_growth": "each further row that warps exchange side by side, of the time of one word",
    "exchange_crowding": "the same beyond the fourth, from which on two warps share a scheduler, on top",
    "exchange_wide_ratio": "exchange of 64-bit words over that of 32-bit ones",
    "ring_latency_us": "a turn of a ring of copies beyond its bytes, from L2",
    "ring_latency_hbm_us": "the same from HBM",
    "group_slot_cycles": "a slot of warpgroups, beside the quads that they select",
    "group_quad_cycles": "each quad that warpgroups select from a slot",
    "noise_bound_instructions": "bounds of a sampled pair's noise and their contest, in instructions that wait for the one before",
    "epilogue_cycles_per_accumulator": "issue cycles of a warp that selects from an accumulator",
    "instruction_cycles": "an instruction that waits for the one before",
    "led_row_us": "a further batch row of a warp that exchanges words",
    **{f"tile_rest_{rows}_us": f"products and selection of {rows} row{'s' * (rows > 1)}, beyond their terms" for rows in (1, 2, 4, 8, 16, 32)},
    "position_product_us": "the library product that makes position terms",
    "small_kernel_us": "a small library kernel beside it",
})
READ_CURVE = "read"
"""Name of the curve of whole-chip read bandwidth over footprint, from L2 into HBM."""

MEASURED_BANDWIDTH_RANGE = (0.6, 1.02)
"""A measured HBM bandwidth outside this share of the datasheet's means that one of the two is wrong."""

_VISIBLE_TOLERANCE = 0.02
_VISIBLE_SHARE_OF_NOMINAL = (0.97, 1.09)
"""What drivers show of a nominal size in 10^9 bytes: 0.99 (A100 PCIe) to 1.073 (RTX 4090) over the catalogue."""

_BEYOND_L2 = 8
"""A curve point counts as HBM bandwidth once its footprint is this many times the L2."""


class UnknownGpu(BadInput):
    """The GPU is not in the catalogue; the message lists what is."""


class AmbiguousGpu(BadInput):
    """A device's description fits several SKUs; the message lists them."""


class AnotherGpu(BadInput):
    """Records were made on another GPU than the one asked about; the message names both."""


class MissingFact(BadInput):
    """The GPU lacks facts that a calculation needs; the message names them and how to supply them."""


class BandwidthMismatch(BadInput):
    """A measured bandwidth cannot belong to the datasheet's; the message names both."""


@dataclass(frozen=True)
class Gpu:
    """One SKU. The mappings are read-only.

    Attributes:
        id: catalogue id, such as `h200-sxm`.
        name: product name.
        aliases: other ids that mean this SKU.
        compute_capability: (major, minor).
        figures: fact or parameter name -> Figure; the name's ending and the unit agree.
        curves: curve name -> BandwidthCurve.
        calibration: where the parameters come from; None where there are only datasheet facts.
        unknowns: fact name -> why it is not known, for facts that were looked for.
        traits: facts that are words (`dram_type`, `mig_supported`).
        driver_names: device names as the driver reports them.
    """

    id: str
    name: str
    aliases: tuple[str, ...]
    compute_capability: tuple[int, int]
    figures: Mapping[str, Figure] = field(hash=False)
    curves: Mapping[str, BandwidthCurve] = field(default_factory=dict, hash=False)
    calibration: str | None = None
    unknowns: Mapping[str, str] = field(default_factory=dict, hash=False)
    traits: Mapping[str, str] = field(default_factory=dict, hash=False)
    driver_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, figure in self.figures.items():
            expected = expected_unit(name)
            if expected is not None and figure.unit != expected:
                raise BadInput(f"{self.id}: {name} is given in {figure.unit}; its unit is {expected}")
        for name in ("figures", "curves", "unknowns", "traits"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple:
        """Pickle and copy through the constructor, since read-only views cannot be pickled."""
        plain = (dict(self.figures), dict(self.curves), self.calibration, dict(self.unknowns), dict(self.traits))
        return Gpu, (self.id, self.name, self.aliases, self.compute_capability, *plain, self.driver_names)

    @property
    def sm_count(self) -> int:
        """Multiprocessors that are enabled."""
        return int(self.value("sm_count"))

    def has(self, name: str) -> bool:
        """Tell whether a fact or parameter is known."""
        return name in self.figures

    def value(self, name: str) -> float:
        """Return a figure's number in the unit that its name says, or raise MissingFact."""
        return float(self.figure(name).value)

    def figure(self, name: str) -> Figure:
        """Return a figure with its unit, kind and source, or raise MissingFact."""
        self.require([name])
        return self.figures[name]

    def require(self, names: Iterable[str]) -> None:
        """Raise MissingFact, naming every one of `names` that is not known, unless all are."""
        missing = [name for name in names if name not in self.figures]
        if not missing:
            return
        told = "; ".join(f"{name}: {self.unknowns[name]}" for name in missing if name in self.unknowns)
        raise MissingFact(
            f"{self.id} lacks {', '.join(missing)}{f' ({told})' if told else ''}. "
            "Supply them by running `wts-lab calibrate` on that GPU, or in Python with Gpu.with_figures"
        )

    def with_figures(
        self,
        figures: Mapping[str, Figure],
        curves: Mapping[str, BandwidthCurve] | None = None,
        calibration: str | None = None,
    ) -> Gpu:
        """Return a copy in which the given figures and curves replace or join the present ones.

        Raises:
            BandwidthMismatch: an HBM bandwidth is outside 0.6 to 1.02 of the datasheet's.
        """
        merged = Gpu(
            self.id, self.name, self.aliases, self.compute_capability, {**self.figures, **figures},
            {**self.curves, **(curves or {})}, calibration or self.calibration, self.unknowns, self.traits, self.driver_names,
        )
        require_plausible_bandwidth(merged)
        return merged

    def as_dict(self) -> dict:
        """Return everything as plain values, ready for JSON."""
        return {
            "id": self.id, "name": self.name, "aliases": list(self.aliases),
            "compute_capability": list(self.compute_capability), "calibration": self.calibration,
            "figures": {name: asdict(figure) for name, figure in self.figures.items()},
            "curves": {name: asdict(curve) for name, curve in self.curves.items()},
            "unknowns": dict(self.unknowns), "traits": dict(self.traits), "driver_names": list(self.driver_names),
        }


def require_plausible_bandwidth(gpu: Gpu) -> None:
    """Raise BandwidthMismatch if a measured HBM bandwidth lies outside 0.6 to 1.02 of the datasheet's, naming both.

    Checked are `hbm_read_bytes_per_s` and the points of the read curve far beyond L2. A GPU whose datasheet bandwidth is
    not known passes.
    """
    if not gpu.has("dram_bandwidth_bytes_per_s"):
        return
    measured = {"hbm_read_bytes_per_s": gpu.figures["hbm_read_bytes_per_s"]} if gpu.has("hbm_read_bytes_per_s") else {}
    if READ_CURVE in gpu.curves and gpu.has("l2_bytes"):
        curve = gpu.curves[READ_CURVE]
        for size, figure in zip(curve.footprints_bytes, curve.figures):
            if size >= _BEYOND_L2 * gpu.value("l2_bytes"):
                measured[f"the read curve at {size:,.0f} bytes"] = figure
    sheet = gpu.value("dram_bandwidth_bytes_per_s")
    low, high = MEASURED_BANDWIDTH_RANGE
    for name, figure in measured.items():
        if not low <= figure.value / sheet <= high:
            raise BandwidthMismatch(
                f"{gpu.id}: {name} is {figure.value:.4g} B/s, {figure.value / sheet:.2f} of the datasheet's "
                f"{sheet:.4g} B/s; {low} to {high} is credible. Check that the SKU is right and measure again"
            )


def list_gpus() -> tuple[str, ...]:
    """Return the ids of the catalogued GPUs, sorted."""
    return tuple(path.stem for path in sorted((data_root() / "gpus").glob("*.toml")))


def load_gpu(id_or_alias: str, calibrated: bool = True) -> Gpu:
    """Return a catalogued GPU, with its calibration laid over the facts where there is one and `calibrated` is true.

    Raises:
        UnknownGpu: no SKU has that id or alias; lists the ids.
        CatalogueError: a file does not have the form that `data/README.md` describes.
    """
    folder = data_root() / "gpus"
    path = folder / f"{id_or_alias}.toml"
    if id_or_alias not in list_gpus():
        path = next((other for other in sorted(folder.glob("*.toml")) if id_or_alias in read_facts(other).get("aliases", ())), None)
    if path is None:
        alike = [one for one in list_gpus() if id_or_alias and one.startswith(id_or_alias)]
        hint = f" (did you mean {' or '.join(alike)}?)" if alike else ""
        raise UnknownGpu(
            f"unknown GPU {id_or_alias!r}{hint}; known are {', '.join(list_gpus())}. "
            "For another SKU add its facts under data/gpus as data/README.md describes"
        )
    gpu = gpu_from_file(path)
    calibration = folder / "calibrated" / path.name
    return read_calibration(calibration, gpu) if calibrated and calibration.is_file() else gpu


def recognise_gpu(name: str, sm_count: int, memory_bytes: int | None = None) -> Gpu:
    """Return the catalogued GPU that a device is, from what its driver reports.

    Args:
        name: device name, such as `NVIDIA H100 PCIe`.
        sm_count: multiprocessors that the process sees.
        memory_bytes: device memory, where known; it tells apart SKUs that share a name.

    Raises:
        UnknownGpu: no SKU fits, or the name fits but the multiprocessors do not (a MIG or MPS share of a GPU).
        AmbiguousGpu: several SKUs fit; lists them and asks for an id.
    """
    named = _named_like(name)
    candidates = [gpu for gpu in named if gpu.sm_count == sm_count]
    if memory_bytes is not None:
        candidates = [gpu for gpu in candidates if _memory_fits(memory_bytes, gpu)]
    if len(candidates) == 1:
        return load_gpu(candidates[0].id)
    told = f"{name!r} with {sm_count} multiprocessors" + (f" and {memory_bytes:,} bytes" if memory_bytes is not None else "")
    if candidates:
        ids = ", ".join(gpu.id for gpu in candidates)
        raise AmbiguousGpu(f"the device {told} may be any of {ids}; say which with --gpu")
    if named:
        seen = ", ".join(f"{gpu.id} ({gpu.sm_count} multiprocessors)" for gpu in named)
        raise UnknownGpu(
            f"the device {told} is named like {seen} but differs from it: a MIG or MPS share of that GPU, or a SKU that is "
            "not in the catalogue. Measure on the whole GPU, or add the share under data/gpus"
        )
    raise UnknownGpu(f"the device {told} is not in the catalogue; known are {', '.join(list_gpus())}")


def require_same_gpu(gpu: Gpu, name: str | None, sm_count: int | None = None) -> None:
    """Raise AnotherGpu unless a device, as its driver reports it, is `gpu`; what is None is not known and not compared.

    Args:
        gpu: the GPU that is asked about.
        name: device name of the driver, as records carry it in `gpu_name`.
        sm_count: multiprocessors that the process saw, `gpu_sm_count` of records.
    """
    fits = sm_count is None or not gpu.has("sm_count") or sm_count == gpu.sm_count
    if fits and (name is None or _words(name) in [_words(known) for known in gpu.driver_names]):
        return
    candidates = [] if name is None else [one.id for one in _named_like(name) if sm_count in (None, one.sm_count)]
    if fits and gpu.id in candidates:
        return
    device = (repr(name) if name is not None else "a device") + (f" with {sm_count} multiprocessors" if sm_count is not None else "")
    known = f"{' or '.join(candidates)} in the catalogue" if candidates else "not in the catalogue as such"
    own = f"{gpu.id} is {gpu.name}" + (f" with {gpu.sm_count}" if gpu.has("sm_count") else "")
    raise AnotherGpu(f"the records were made on {device} ({known}), not on {gpu.id}: {own}. Give records of {gpu.id}, or ask about the GPU that they are of")


def _named_like(name: str) -> list[Gpu]:
    """Return the catalogue's GPUs that a device name means: those the driver calls exactly so, else those whose names hold its words."""
    whole = re.split(r"\bMIG\b", name, maxsplit=1)[0]
    named = [gpu for gpu in (load_gpu(one, calibrated=False) for one in list_gpus()) if _name_fits(whole, gpu)]
    return [gpu for gpu in named if _words(whole) in [_words(known) for known in gpu.driver_names]] or named


def calibration_toml(gpu: Gpu) -> str:
    """Return the text of a calibration file: the figures that are not facts of the catalogue, and all curves.

    This and `read_calibration` are the only definition of that form.
    """
    facts = load_gpu(gpu.id, calibrated=False).figures
    lines = [
        f"# Parameters of {gpu.name}, fitted from recorded probes. Written by `wts-lab calibrate`; not edited by hand.",
        f"schema_version = {GPU_SCHEMA_VERSION}", f"gpu = {toml_text(gpu.id)}",
        f"calibration = {toml_text(gpu.calibration or 'not stated')}", "",
    ]
    for name in sorted(gpu.figures):
        if gpu.figures[name] != facts.get(name):
            lines += figure_lines(f"[figures.{name}]", gpu.figures[name])
    for name in sorted(gpu.curves):
        lines += curve_lines(name, gpu.curves[name])
    return "\n".join(lines).rstrip("\n") + "\n"


def read_calibration(path: Path, gpu: Gpu) -> Gpu:
    """Return `gpu` with the parameters of a calibration file laid over its facts.

    Raises:
        CatalogueError: the file has another form, or belongs to another GPU (names both).
        BandwidthMismatch: its HBM bandwidth cannot be this GPU's.
    """
    facts = read_facts(path)
    check_version(path, facts, GPU_SCHEMA_VERSION)
    check_keys(path, "the calibration", facts, {"schema_version", "gpu", "calibration"}, {"figures", "curves"})
    if facts["gpu"] != gpu.id:
        raise CatalogueError(f"{path}: is a calibration of {facts['gpu']!r}, not of {gpu.id!r}; calibrate this GPU itself")
    figures = {name: figure_from_table(path, name, table, str) for name, table in facts.get("figures", {}).items()}
    curves = {name: curve_from_table(path, name, table, str) for name, table in facts.get("curves", {}).items()}
    return gpu.with_figures(figures, curves, facts["calibration"])


def gpu_from_file(path: Path) -> Gpu:
    """Build a Gpu from its fact file in `data/gpus/`."""
    facts = read_facts(path)
    check_version(path, facts, GPU_SCHEMA_VERSION)
    required = {"schema_version", "id", "name", "aliases", "driver_names", "compute_capability", "figures"}
    check_keys(path, "the GPU", facts, required, {"unknowns", "traits"})
    if facts["id"] != path.stem:
        raise CatalogueError(f"{path}: has the id {facts['id']!r}; the id must be the file's name")
    match = re.fullmatch(r"(\d+)\.(\d)", facts["compute_capability"])
    if match is None:
        raise CatalogueError(f"{path}: compute_capability is {facts['compute_capability']!r}; write it as '9.0'")
    documents = read_facts(data_root() / "published" / "sources.toml")

    def cite(keys: object) -> str:
        """Turn source keys into a citation."""
        unknown = [key for key in keys if key not in documents]
        if unknown or not keys:
            raise CatalogueError(f"{path}: source {', '.join(unknown) or 'list is empty'}: not in published/sources.toml")
        return "; ".join(documents[key]["document"] for key in keys)

    return Gpu(
        facts["id"], facts["name"], tuple(facts["aliases"]), (int(match[1]), int(match[2])),
        {name: figure_from_table(path, name, table, cite) for name, table in facts["figures"].items()},
        unknowns=facts.get("unknowns", {}),
        traits={name: table["value"] for name, table in facts.get("traits", {}).items()},
        driver_names=tuple(facts["driver_names"]),
    )


def _words(name: str) -> tuple[str, ...]:
    """Split a device name into comparable words, without the maker's."""
    return tuple(word for word in re.split(r"[^a-z0-9]+", name.lower()) if word and word not in ("nvidia", "geforce"))


def _name_fits(name: str, gpu: Gpu) -> bool:
    """Tell whether every word of a device name appears in one of the GPU's names, in any order."""
    words = set(_words(name))
    return bool(words) and any(words <= set(_words(known)) for known in (*gpu.driver_names, gpu.name, gpu.id))


def _memory_fits(memory_bytes: int, gpu: Gpu) -> bool:
    """Tell whether a memory size is what the driver shows for the SKU, or plausible for its nominal size; unknown fits."""
    if gpu.has("dram_visible_bytes") and abs(memory_bytes / gpu.value("dram_visible_bytes") - 1) <= _VISIBLE_TOLERANCE:
        return True
    low, high = _VISIBLE_SHARE_OF_NOMINAL
    return not gpu.has("dram_nominal_gb") or low <= memory_bytes / (gpu.value("dram_nominal_gb") * BYTES_PER_GB) <= high
