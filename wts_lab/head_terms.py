"""What the walk's kernel and its twin read of a head besides the projection: token table, position terms, state matrices.

Everything in a step that depends on the token alone is a table row, made once a head; everything that depends on the position
alone is computed once a call, before the walk. What is left for the step is the state, and sums:

    kind     token_table, a row a target id (bf16)                position_terms (fp32)          state_matrices (bf16)
    markov   W1                       [V_target, r]               none                           none
    gated    e = W1[x] | Wg_e e       [V_target, 2r]              Wg_h h + bg   [B, S, r]        none
    rnn      Wj_e e, rows a, c, o     [V_target, 3r]              Wj_h h + bj   [B, S, 3r]       Wj_s [3r, r]
    domino   W_ih E[x], rows r, z, n  [V_target, 3 gru]           F1_h h        [B, S, r]        W_hh [3 gru, gru], F1_s [r, gru]

``Wg = [Wg_h | Wg_e]``, ``Wj = [Wj_s | Wj_e | Wj_h]`` and ``F1 = [F1_h | F1_s]`` by columns, as released heads concatenate their inputs. Products
are summed in fp32; a table entry is the sum rounded once to bf16.
"""

from __future__ import annotations

import torch

from cost_model.errors import BadInput
from wts_lab.heads import DominoHead, DraftHead, GatedHead, RnnHead

CHUNK_ELEMENTS = 1 << 24
"""fp32 sums of a table held at a time: 64 MiB, where a Domino table at 152k rows would take 1.9 GB."""


@torch.no_grad()
def token_table(head: DraftHead) -> torch.Tensor:
    """The table of the module docstring, bf16, contiguous, on the head's device. Markov: ``W1`` itself where it is that already."""
    rows = head.embedding
    if isinstance(head, GatedHead):
        return torch.cat([rows.to(torch.bfloat16), _table(rows, head.gate_proj.weight[:, head.hidden_size :])], dim=1)
    if isinstance(head, RnnHead):
        return _table(rows, head.joint_proj.weight[:, head.rank : 2 * head.rank])
    if isinstance(head, DominoHead):
        return _table(rows, head.prefix_gru.weight_ih_l0)
    return rows.detach().to(torch.bfloat16).contiguous()


@torch.no_grad()
def position_terms(head: DraftHead, hidden: torch.Tensor | None) -> torch.Tensor | None:
    """The position terms of the module docstring, fp32, contiguous; None for Markov heads. On CUDA it captures into a graph.

    :param hidden: bf16 ``[B, S, hidden_size]`` on the head's device, any strides; not read for Markov heads.
    :raises BadInput: another shape or dtype.
    """
    if head.hidden_size is None:
        return None
    if hidden is None or hidden.dim() != 3 or hidden.shape[2] != head.hidden_size or hidden.dtype != torch.bfloat16:
        given = "none" if hidden is None else f"{hidden.dtype} {tuple(hidden.shape)}"
        raise BadInput(f"a {head.kind} head needs hidden, bfloat16 [batch, positions, {head.hidden_size}]; got {given}")
    bias = None
    if isinstance(head, GatedHead):
        weight, bias = head.gate_proj.weight[:, : head.hidden_size], head.gate_proj.bias
    elif isinstance(head, RnnHead):
        weight, bias = head.joint_proj.weight[:, 2 * head.rank :], head.joint_proj.bias
    else:
        weight = head.embed_proj[0].weight[:, : head.hidden_size]
    terms = _product(hidden.reshape(-1, head.hidden_size), weight)
    if bias is not None:
        terms += bias.float()
    return terms.view(*hidden.shape[:2], -1)


@torch.no_grad()
def state_matrices(head: DraftHead) -> tuple[torch.Tensor, ...]:
    """What multiplies the state in every step, bf16, contiguous: rnn ``(Wj_s,)``, domino ``(W_hh, F1_s)``, others ``()``."""
    if isinstance(head, RnnHead):
        found = (head.joint_proj.weight[:, : head.rank],)
    elif isinstance(head, DominoHead):
        found = (head.prefix_gru.weight_hh_l0, head.embed_proj[0].weight[:, head.hidden_size :])
    else:
        found = ()
    return tuple(matrix.detach().to(torch.bfloat16).contiguous() for matrix in found)


def _table(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """bf16 ``[rows, outputs]``: ``rows @ weight.T`` summed in fp32, some rows at a time."""
    table = torch.empty((rows.shape[0], weight.shape[0]), dtype=torch.bfloat16, device=rows.device)
    count = max(1, CHUNK_ELEMENTS // max(weight.shape))
    for start in range(0, len(rows), count):
        table[start : start + count] = _product(rows[start : start + count], weight)
    return table


def _product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """fp32 ``rows @ weight.T`` of bf16 factors, without rounding the sums to bf16."""
    if rows.is_cuda:
        return torch.mm(rows.to(torch.bfloat16), weight.to(torch.bfloat16).T, out_dtype=torch.float32)
    return rows.float() @ weight.float().T
