"""The twin of the gated, RNN and Domino walks in torch: what csrc/walk/{activation,latent,recurrent}.cuh compute, bit for bit.

Every fp32 operation here is one elementwise torch operation, so it is rounded on its own on a CPU as on a GPU (torch contracts
nothing), and IEEE decides the result; divisors are tensors. A step is

    gated    u = sigmoid(P + t) · e                                              [e | t] = row x of the token table
    rnn      [a; c; o] = (P + T[x]) + Wj_s s;  u = tanh(o);  s' = bf16(sigmoid(a) · s + (1 − sigmoid(a)) · tanh(c))
    domino   h = W_hh s;  r, z = sigmoid(T[x] + h);  n = tanh(T[x] + r · h);  s' = bf16((1 − z) · n + z · s)
             u = SiLU(P + F1_s s');  before position 0, whose latent is 0, s = GRU(T[anchor], 0)

with the token table ``T``, the position terms ``P`` and the state matrices of `head_terms.py`. A product with the state is summed as
a warp does it (`state_products`). The functions of this file end where a latent is fp32; `quantize.py` and `twin_torch.py` go on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from cost_model.errors import BadInput
from cost_model.workload import PRECISIONS, require_word
from wts_lab.head_terms import state_matrices, token_table
from wts_lab.quantize import quantize_latents, quantize_rows
from wts_lab.twin_torch import ExactBf16Matrix, Int8x2Matrix, TorchTwinWalk, round_to_bf16, run_walks_torch

LANES = 32
LANE_ELEMENTS = 8  # that a lane reads at a time
CHUNK_ELEMENTS = 1 << 24  # of products held at a time: 64 MiB

ACTIVATION_CONSTANTS = {
    "kPerLn2": 1.44269502,
    "kLn2High": 0.693359375,
    "kLn2Low": -2.12194442e-4,
    "kExp3": 0.166665480,
    "kExp4": 0.0416668579,
    "kExp5": 0.00836622901,
    "kExp6": 0.00138982735,
    "kSaturation": 88.0,
}
"""fp32 constants of the activations, by their names in csrc/walk/activation.cuh; a test holds the two together."""


# --- activations ---------------------------------------------------------------------------------------------------------


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """``1 / (1 + e^−x)`` of float32, at most 3 units in the last place from it; 0 where it would not be a normal number. NaN passes."""
    power, fraction = _exponential(-x.abs())
    small = power * fraction + power
    return torch.where(x < 0, small, 1.0) / (small + 1.0)


def tanh(x: torch.Tensor) -> torch.Tensor:
    """Hyperbolic tangent of float32, at most 3 units in the last place from it. NaN passes."""
    power, fraction = _exponential(x.abs() * -2.0)
    less_one = power * fraction + (power - 1.0)
    return torch.copysign(-less_one / (less_one + 2.0), x)


def silu(x: torch.Tensor) -> torch.Tensor:
    """``x · sigmoid(x)`` of float32."""
    return x * sigmoid(x)


def _exponential(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``2^n`` (0 for n = −127, the least) and ``e^r − 1`` with ``y = n ln 2 + r``, for ``y ≤ 0``."""
    k = ACTIVATION_CONSTANTS
    y = y.clamp(min=-k["kSaturation"])
    n = torch.round(y * k["kPerLn2"])
    r = (y - n * k["kLn2High"]) - n * k["kLn2Low"]
    square = r * r
    low = r * k["kExp3"] + 0.5
    high = (r * k["kExp5"] + k["kExp4"]) + square * k["kExp6"]
    return ((n.to(torch.int32) + 127) << 23).view(torch.float32), r + square * (low + square * high)


# --- steps ---------------------------------------------------------------------------------------------------------------


def state_products(matrix: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """float32 ``[walks, rows]``: every row of a bf16 matrix ``[rows, size]`` with every state ``[walks, size]`` (float32 that are bf16).

    Summed as a warp does: lane l adds elements ``8 (l + 32 c) + j`` in the order of c, then j; then lanes across distances 16, 8, 4,
    2, 1. Products of bf16 numbers are exact.
    """
    step = max(1, CHUNK_ELEMENTS // (len(state) * LANES))
    return torch.cat([_state_products(rows, state) for rows in matrix.split(step)], dim=1)


def _state_products(matrix: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    """:func:`state_products` of a few rows."""
    width = LANES * LANE_ELEMENTS
    padding = (0, -matrix.shape[1] % width)
    w = torch.nn.functional.pad(matrix.to(torch.float32), padding).view(1, len(matrix), -1, LANES, LANE_ELEMENTS)
    s = torch.nn.functional.pad(state, padding).view(len(state), 1, -1, LANES, LANE_ELEMENTS)
    sums = torch.zeros((len(state), len(matrix), LANES), dtype=torch.float32, device=state.device)
    for chunk in range(w.shape[2]):
        for element in range(LANE_ELEMENTS):
            sums = sums + w[:, :, chunk, :, element] * s[:, :, chunk, :, element]
    while sums.shape[2] > 1:
        half = sums.shape[2] // 2
        sums = sums[:, :, :half] + sums[:, :, half:]
    return sums[:, :, 0]


def gated_latent(entry: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """float32 ``[walks, r]`` from table rows ``[walks, 2r]`` and position terms ``[walks, r]``."""
    embedding, shift = entry.to(torch.float32).chunk(2, dim=1)
    return sigmoid(place + shift) * embedding


def rnn_step(entry, place, products, state) -> tuple[torch.Tensor, torch.Tensor]:
    """Latents float32 ``[walks, r]`` and new states (float32 that are bf16) from table rows, position terms and state products, each
    ``[walks, 3r]``, and states ``[walks, r]``."""
    gate, candidate, output = ((place + entry.to(torch.float32)) + products).chunk(3, dim=1)
    keep = sigmoid(gate)
    return tanh(output), round_to_bf16(keep * state + (1.0 - keep) * tanh(candidate))


def gru_step(entry, products, state) -> torch.Tensor:
    """New states (float32 that are bf16) from table rows and state products ``[walks, 3g]`` and states ``[walks, g]``: torch's GRU cell."""
    (i_r, i_z, i_n), (h_r, h_z, h_n) = entry.to(torch.float32).chunk(3, dim=1), products.chunk(3, dim=1)
    reset, keep = sigmoid(i_r + h_r), sigmoid(i_z + h_z)
    candidate = tanh(i_n + reset * h_n)
    return round_to_bf16((1.0 - keep) * candidate + keep * state)


# --- walks ---------------------------------------------------------------------------------------------------------------


class HeadLatents:
    """The latents of many walks, one call a position: ``latents(tokens)`` in order, from the anchors on.

    :param head: a gated, RNN or Domino head.
    :param terms: float32 ``[walks, positions, ...]`` of `head_terms.position_terms`, on the device of the walks.
    :raises BadInput: another kind, or terms of another shape.
    """

    def __init__(self, head, terms: torch.Tensor) -> None:
        makers = {"gated": self._gated, "rnn": self._rnn, "domino": self._domino}
        if head.kind not in makers:
            raise BadInput(f"the latents of a {head.kind} head are rows of a table: twin_torch.expected_walks is its twin")
        width = 3 * head.rank if head.kind == "rnn" else head.rank
        if terms.dim() != 3 or terms.shape[2] != width or terms.dtype != torch.float32:
            raise BadInput(f"the position terms of this head are float32 [walks, positions, {width}]; got {terms.dtype} {tuple(terms.shape)}")
        self._next, self._terms, self._position = makers[head.kind], terms, 0
        self._table = token_table(head).to(terms.device)
        self._matrices = tuple(matrix.to(terms.device) for matrix in state_matrices(head))
        size = head.gru_size if head.kind == "domino" else head.rank
        self.state = torch.zeros((len(terms), size), dtype=torch.float32, device=terms.device)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor | None:
        """float32 ``[walks, rank]`` of the next position after the target ids ``tokens`` ``[walks]``; None where there is no correction."""
        latents = self._next(self._table[tokens], self._terms[:, self._position])
        self._position += 1
        return latents

    def _gated(self, entry, place):
        return gated_latent(entry, place)

    def _rnn(self, entry, place):
        latents, self.state = rnn_step(entry, place, state_products(self._matrices[0], self.state), self.state)
        return latents

    def _domino(self, entry, place):
        self.state = gru_step(entry, state_products(self._matrices[0], self.state), self.state)
        return None if self._position == 0 else silu(state_products(self._matrices[1], self.state) + place)


def twin_head_walks(
    head, base_logits: torch.Tensor, anchors: torch.Tensor, terms: torch.Tensor, *, precision: str = "int8x2", **options
) -> TorchTwinWalk:
    """What the kernel must return for a gated, RNN or Domino head and inputs on its device.

    :param base_logits: bfloat16 ``[walks, positions, columns]``; Domino's position 0 is the argmax of the base logits. A Domino pool of
        candidates is the caller's to mask (−inf outside it).
    :param anchors: int64 ``[walks]``, target ids.
    :param terms: float32 ``[walks, positions, ...]`` of `head_terms.position_terms`.
    :param precision: "int8x2"; "bf16" only where every correction is an fp32 number, such as for one-hot rows of the projection: the
        order in which tensor cores add is not known.
    :param options: as `twin_torch.expected_walks`: rounding, draft_to_target, temperatures, noise, rows, keep_logits.
    :raises BadInput: what does not fit, a latent that is not finite, a correction in bf16 that is not an fp32 number.
    """
    require_word("precision", precision, PRECISIONS)
    if terms.shape[:2] != base_logits.shape[:2]:
        raise BadInput(f"base_logits and terms must share walks and positions; got {tuple(base_logits.shape)} and {tuple(terms.shape)}")
    latents = HeadLatents(head, terms)
    projection = head.projection.detach().to(base_logits.device)
    if precision == "bf16":
        matrix, finish = ExactBf16Matrix(projection.to(torch.bfloat16)), round_to_bf16
    else:
        matrix, finish = Int8x2Matrix(*quantize_rows(projection)), quantize_latents

    def latents_of(tokens: torch.Tensor):
        found = latents(tokens)
        return None if found is None else finish(found)

    return run_walks_torch(matrix, latents_of, head.target_vocab_size, base_logits, anchors, vocab_size=head.vocab_size, **options)
