"""Memory of a draft head: what it is made of, what a step reads again, and what a fused walk adds. All sizes in bytes.

Two walks read the same head in different ways. A stepwise one reads all of W2 and the head's own weights in every step. A fused one turns what depends on
a token alone into a table, reads one row of it, and reads of its own weights only those that multiply the state.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cost_model import terms
from cost_model.decide import extra_memory_bytes
from cost_model.gpu import Gpu
from cost_model.head import Head, walked_shape
from cost_model.placement import PlanError, plan
from cost_model.stepwise import PRECISION

TABLED_KINDS = ("markov", "gated", "rnn")
"""Heads with a token table W1 of their own; Domino's GRU reads the target's embedding."""

FUSED_PRECISION = "int8x2"


@dataclass(frozen=True)
class HeadMemory:
    """Sizes of one head.

    Attributes:
        head: the shape.
        matrix_bytes: W2 in bf16, as stored; table_bytes: W1 in bf16, 0 where the target's embedding serves; own_bytes: gate, joint projection, or GRU
            and projector, in bf16.
        step_read_bytes: what a stepwise step reads: W2, or the candidates' rows of it, and own weights.
        resident_bytes: what a fused int8x2 step multiplies: W2 in int8, or the candidates' rows, and the state matrices. What of it stays on chip is read once a call.
        fused_bytes: device memory that a fused walk takes beside the head: packed W2 with its scales, or one row's candidates, and the table of tokens.
    """

    head: Head
    matrix_bytes: int
    table_bytes: int
    own_bytes: int
    step_read_bytes: int
    resident_bytes: int
    fused_bytes: int

    @property
    def head_bytes(self) -> int:
        """All that the head itself is."""
        return self.matrix_bytes + self.table_bytes + self.own_bytes

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return {**asdict(self), "head": self.head.as_dict(), "head_bytes": self.head_bytes}


def head_memory(head: Head) -> HeadMemory:
    """Return the sizes of a head at batch 1.

    W2 V × r × 2, W1 V_target × r × 2; own weights as `terms.head_weight_bytes`, state matrices as `terms.state_matrix_bytes`, and what a fused walk adds as
    `decide.extra_memory_bytes`.
    """
    hidden, gru = head.hidden_size or 0, head.gru_size or 0
    matrix = terms.matrix_bytes(head.padded_vocab_size, head.rank, PRECISION)
    table = terms.matrix_bytes(head.target_vocab_size, head.rank, PRECISION) if head.kind in TABLED_KINDS else 0
    own, walked = terms.head_weight_bytes(head.kind, head.rank, hidden, gru), walked_shape(head)
    rows = head.padded_vocab_size if head.candidate_pool is None else min(head.candidate_pool, head.vocab_size)
    resident = terms.matrix_bytes(walked.padded_vocab_size, head.rank, FUSED_PRECISION) + terms.state_matrix_bytes(head.kind, head.rank, gru)
    read = terms.matrix_bytes(rows, head.rank, PRECISION) + own
    return HeadMemory(head, matrix, table, own, read, resident, extra_memory_bytes(head, "resident", FUSED_PRECISION))


def on_chip_bytes(gpu: Gpu) -> float:
    """Registers and shared memory of the whole chip, of which a kernel can use a part."""
    return gpu.sm_count * (gpu.value("register_file_bytes_per_sm") + gpu.value("smem_bytes_per_sm"))


def residency_share(gpu: Gpu, head: Head, precision: str = FUSED_PRECISION) -> float | None:
    """Share of a block's tiles that the planner keeps on chip at batch 1, greedy, from 0 to 1; None where it finds no placement."""
    try:
        placement = plan(gpu, walked_shape(head), precision, "resident")
    except PlanError:
        return None
    return 1.0 - placement.streamed_tiles / placement.tiles
