"""Operand paths: where matrix instructions read a matrix that should stay, and how much of it each GPU has room for there.

A walk multiplies all of ``W2`` in every step, as operand A. It can stay wherever an instruction reads A directly. What lies elsewhere on chip
can be copied to such a place in each step, which costs that tier's bandwidth. Facts of instructions are in `data/published/instructions.toml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cost_model.catalogue import CatalogueError, check_keys, check_version, read_facts
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.paths import data_root
from cost_model.placement import Placement, PlanError, kernel_beside, plan
from cost_model.terms import matrix_bytes
from cost_model.workload import PRECISIONS, require_word

INSTRUCTIONS_SCHEMA_VERSION = 1
TIER_FACTS = {
    "registers": "register_file_bytes_per_sm", "shared memory": "smem_bytes_per_block_optin", "tensor memory": "tmem_bytes_per_sm",
}  # fmt: skip
"""Tiers that an operand can come from -> the fact that says how large one is on a multiprocessor; of shared memory what one block may have."""

PRODUCTS = {"warp": "mma.sync", "warpgroup": "wgmma"}
"""The instruction that the kernel multiplies with, by the planner's word."""


@dataclass(frozen=True)
class Instruction:
    """One matrix instruction.

    Attributes:
        name: as PTX calls it.
        issued_by: who issues one.
        a, b: tiers that its operands are read from; A has the many rows.
        a_copied_from: tiers whose contents can be copied to where A is read from.
        sums: the tier of the accumulators.
        capabilities: precision of the matrix -> compute capabilities that have the instruction for it.
        note, source: what else is known, and from where.
    """

    name: str
    issued_by: str
    a: tuple[str, ...]
    a_copied_from: tuple[str, ...]
    b: tuple[str, ...]
    sums: str
    capabilities: Mapping[str, tuple[str, ...]]
    note: str
    source: str

    def runs_on(self, gpu: Gpu, precision: str) -> bool:
        """Whether a GPU has it for a matrix of that precision, one of `PRECISIONS`; raises BadInput for another word."""
        require_word("precision", precision, PRECISIONS)
        return ".".join(map(str, gpu.compute_capability)) in self.capabilities[precision]

    def room_bytes(self, gpu: Gpu, copied: bool = False) -> dict[str, float]:
        """Size of each tier that A is read from, on the whole chip; with `copied` of those that it can be copied from, too.

        An upper end: sums, operand B and everything else that a kernel keeps come off it. Raises MissingFact.
        """
        tiers = (*self.a, *self.a_copied_from) if copied else self.a
        return {tier: size for tier, size in tier_bytes(gpu).items() if tier in tiers}


def load_instructions() -> tuple[Instruction, ...]:
    """Return the instructions of the catalogue, oldest first.

    Raises:
        CatalogueError: the file has another form, names an unknown tier, or cites an unknown source.
    """
    path = data_root() / "published" / "instructions.toml"
    facts, documents = read_facts(path), read_facts(path.with_name("sources.toml"))
    check_version(path, facts, INSTRUCTIONS_SCHEMA_VERSION)
    keys = {"name", "issued_by", "a", "a_copied_from", "b", "sums", "bf16", "int8", "source", "note"}
    found = []
    for table in facts["instructions"]:
        check_keys(path, "an instruction", table, keys)
        strange = {*table["a"], *table["a_copied_from"], *table["b"], table["sums"]} - set(TIER_FACTS) | set(table["source"]) - set(documents)
        if strange:
            raise CatalogueError(f"{path}: {table['name']} names {', '.join(sorted(strange))}; tiers are {', '.join(TIER_FACTS)}, sources those of sources.toml")
        capabilities = {"bf16": tuple(table["bf16"]), "int8x2": tuple(table["int8"])}
        found.append(Instruction(table["name"], table["issued_by"], tuple(table["a"]), tuple(table["a_copied_from"]), tuple(table["b"]), table["sums"], capabilities,
                                 table["note"], "; ".join(documents[key]["document"] for key in table["source"])))
    return tuple(found)


def tier_bytes(gpu: Gpu) -> dict[str, float]:
    """Size of each on-chip tier of the whole chip in bytes, one block on each multiprocessor; tiers that are not there are left out.

    Raises:
        MissingFact: a size, or the number of multiprocessors, is not known.
    """
    sizes = {tier: gpu.sm_count * gpu.value(fact) for tier, fact in TIER_FACTS.items()}
    return {tier: size for tier, size in sizes.items() if size}


@dataclass(frozen=True)
class OperandPath:
    """What one instruction offers to a head on one GPU.

    Attributes:
        gpu_id, instruction, precision: which.
        direct_bytes: room where A is read from, on the whole chip; 0 where the GPU lacks the instruction.
        copied_bytes: the same, and what can be copied from.
        matrix_bytes: the matrix in that precision.
    """

    gpu_id: str
    instruction: Instruction
    precision: str
    direct_bytes: float
    copied_bytes: float
    matrix_bytes: float

    @property
    def exists(self) -> bool:
        """Whether the GPU has the instruction for that precision."""
        return self.direct_bytes > 0

    @property
    def direct_share(self) -> float:
        """Most of the matrix that could stay where A is read from; 1 is all."""
        return min(1.0, self.direct_bytes / self.matrix_bytes)

    @property
    def copied_share(self) -> float:
        """The same, with tiers that it is copied from in every step."""
        return min(1.0, self.copied_bytes / self.matrix_bytes)


def operand_paths(gpu: Gpu, head: Head) -> tuple[OperandPath, ...]:
    """Every instruction in every precision on a GPU, those that it lacks with no room; raises MissingFact."""
    return tuple(
        OperandPath(gpu.id, one, precision, *(sum(one.room_bytes(gpu, copied).values()) if one.runs_on(gpu, precision) else 0.0 for copied in (False, True)),
             float(matrix_bytes(head.vocab_size, head.rank, precision)))
        for one in load_instructions() for precision in PRECISIONS
    )  # fmt: skip


@dataclass(frozen=True)
class KernelPath:
    """What the walk kernel does: the instruction that it multiplies with, and where its tiles lie.

    Attributes:
        gpu_id, precision, rows: GPU, precision of the matrix, and batch rows of the kernel.
        instruction, placement: its name, and the planner's resident placement; None for both where nothing fits.
    """

    gpu_id: str
    precision: str
    rows: int
    instruction: str | None
    placement: Placement | None


def kernel_path(gpu: Gpu, head: Head, precision: str, rows: int) -> KernelPath:
    """Return what the kernel of that many batch rows (1, 2, 4, 8, 16, 32) does on a GPU; raises BadInput as `plan`."""
    try:
        placement = plan(gpu, head, precision, "resident", rows=rows)
    except PlanError:
        return KernelPath(gpu.id, precision, rows, None, None)
    return KernelPath(gpu.id, precision, rows, PRODUCTS[kernel_beside(placement, gpu, head, precision, rows=rows).products], placement)
