"""What a recurrent draft head keeps in a block's shared memory beside the tiles: states, latents before they are quantised, and the
block's share of the state matrices.

Every block holds every batch row's state; the rows of the state matrix (3 n of n bf16 elements: n is the rank of an RNN head, the GRU
size of Domino) and of Domino's projector (rank rows of n) are divided among the blocks. Rows that a block does not keep it reads from
global memory in each step. The layout is `csrc/walk/recurrent.cuh`'s.
"""

from __future__ import annotations

from cost_model.errors import BadInput
from cost_model.head import Head
from cost_model.terms import BYTES_OF_BF16, BYTES_OF_FP32

RECURRENT_KINDS = ("rnn", "domino")
STATE_GATES = 3
"""Matrix rows for each element of a state: a, c, o (RNN); r, z, n (GRU)."""

STATE_MULTIPLE = 8
"""A lane reads eight elements of a state at a time."""

LATENT_CHUNK = 64
"""Elements of a latent that a warp handles at a time."""


def gru_elements(head: Head) -> int:
    """Return the GRU size of a domino head, 0 of others.

    Raises:
        BadInput: the size is not a multiple of 8.
    """
    if head.kind != "domino":
        return 0
    if head.gru_size % STATE_MULTIPLE:
        raise BadInput(f"gru_size is {head.gru_size}; the kernel reads states by {STATE_MULTIPLE} elements, so it must be a multiple of that")
    return head.gru_size


def state_placement(head: Head, grid_blocks: int, room_bytes: int | None = None) -> tuple[int, int]:
    """Return how many rows of the state matrix and of the projector a block keeps: its share of both, or what fits `room_bytes`.

    The projector's rows come first: their products stand between two exchanges, the state matrix's run beside one.
    """
    size = {"rnn": head.rank, "domino": gru_elements(head)}.get(head.kind, 0)
    if not size:
        return 0, 0
    shares = [-(-rows // grid_blocks) for rows in (STATE_GATES * size, head.rank if head.kind == "domino" else 0)]
    if room_bytes is None:
        return shares[0], shares[1]
    room = max(0, room_bytes) // (size * BYTES_OF_BF16)
    projector = min(shares[1], room)
    return min(shares[0], room - projector), projector


def state_bytes(kind: str, rows: int, rank: int, gru: int, state_rows: int, projector_rows: int) -> int:
    """Shared memory of a recurrent head for `rows` batch rows: states bf16, latents fp32, the largest magnitude of every 64 of their
    elements (4 bytes each, rounded up to 16), and the kept matrix rows bf16. 0 of heads without a state."""
    if kind not in RECURRENT_KINDS:
        return 0
    row_bytes = (gru if kind == "domino" else rank) * BYTES_OF_BF16
    largest = rows * -(-rank // LATENT_CHUNK) * BYTES_OF_FP32
    return rows * (row_bytes + rank * BYTES_OF_FP32) + -(-largest // 16) * 16 + (state_rows + projector_rows) * row_bytes
