"""How often int8x2 drafts another token than bf16, on a user's own head and the hidden vectors of their own traffic.

Both see the history that the bf16 walk made, so a step is equal or not by itself (`accuracy_run` says how). The share of equal steps is
stated with an interval for blocks that come from prompts: those of a prompt are alike, so there are fewer independent steps than steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import torch

from cost_model.errors import BadInput
from cost_model.workload import ROUNDINGS, require_word
from wts_lab.accuracy_run import WalkInputs, rounded_logits, run_reference, walk_chunks
from wts_lab.checkpoints import Checkpoint, open_tensors
from wts_lab.projection_formats import FORMATS, corrections

if TYPE_CHECKING:
    from wts_lab.heads import DraftHead

PROJECTION = "lm_head.weight"
SHARE_INSIDE = 0.95
BLOCK_TENSORS = "anchor int64 [blocks]; hidden bfloat16 [blocks, positions, hidden size]; base_logits bfloat16 [blocks, positions, V]; prompt int64 [blocks]"
"""Tensors of a file of blocks. Of hidden and base_logits one is enough where the head and the projection allow; prompt may be left out."""


@dataclass(frozen=True)
class DraftBlocks:
    """Drafted blocks of one's own traffic, as `BLOCK_TENSORS`.

    Attributes:
        anchor: the token before each block, a target id.
        hidden: the backbone's vectors; None where the file has base logits and the head reads none.
        base_logits: None where they are computed from `hidden` and `projection`.
        prompt: which prompt each block is of; every block a prompt of its own where the file does not say.
        projection: bfloat16 ``[at least V, hidden size]``, the target's output matrix.
    """

    anchor: torch.Tensor
    hidden: torch.Tensor | None
    base_logits: torch.Tensor | None
    prompt: torch.Tensor
    projection: torch.Tensor | None = None

    def inputs(self, blocks: slice, head: DraftHead) -> WalkInputs:
        """Inputs of some blocks on the head's device; base logits as an engine computes them, in bf16."""
        device = head.projection.device
        hidden = None if self.hidden is None else self.hidden[blocks].to(device)
        if self.base_logits is not None:
            base = self.base_logits[blocks].to(device)
        else:
            base = torch.nn.functional.linear(hidden, self.projection[: head.vocab_size].to(device))
        return WalkInputs(base, self.anchor[blocks].to(device), None if head.hidden_size is None else hidden)


@dataclass(frozen=True)
class Agreement:
    """Equal steps of a number format, given the bf16 walk's history.

    Attributes:
        head_kind, format, rounding: what was compared.
        blocks, steps, prompts: how many; `steps` of all blocks.
        equal_step_share: of steps with the same token; low and high: its 95 % interval.
        equal_block_share: of blocks that are equal from end to end.
        prefix_length_mean: equal steps before a block's first difference.
        design_effect: variance of the share over that of independent steps; None where all or no steps are equal.
    """

    head_kind: str
    format: str
    rounding: str
    blocks: int
    steps: int
    prompts: int
    equal_step_share: float
    equal_step_share_low: float
    equal_step_share_high: float
    equal_block_share: float
    prefix_length_mean: float
    design_effect: float | None


def read_blocks(path: Path | str, head: DraftHead, target: Path | str | None = None) -> DraftBlocks:
    """Read blocks for a head.

    Args:
        path: a .safetensors file with `BLOCK_TENSORS`.
        target: checkpoint of the target model, for its output matrix (``lm_head.weight``, or the embedding where both are one); needed
            where the file has no base logits.

    Raises:
        BadInput: a tensor is missing, or has another dtype or shape; all faults are listed, with what is wanted.
    """
    with open_tensors(Path(path)) as file:
        found = {name: file.get_tensor(name) for name in ("anchor", "hidden", "base_logits", "prompt") if name in file.keys()}  # noqa: SIM118 - no dict
    projection = None
    if "base_logits" not in found:
        if target is None:
            raise BadInput(f"{path}: has no base_logits; give the target's checkpoint, whose {PROJECTION} makes them of the hidden vectors")
        source = Checkpoint(target)
        projection = (source.read([PROJECTION])[PROJECTION] if source.holds(PROJECTION) else source.read_embedding()).to(torch.bfloat16)
    faults = _faults(found, head, projection)
    if faults:
        raise BadInput(f"{path}: {'; '.join(faults)}. A file of blocks holds {BLOCK_TENSORS}")
    prompt = found.get("prompt", torch.arange(len(found["anchor"])))
    return DraftBlocks(found["anchor"], found.get("hidden"), found.get("base_logits"), prompt, projection)


def _faults(found: dict[str, torch.Tensor], head: DraftHead, projection: torch.Tensor | None) -> list[str]:
    """What of the tensors cannot be blocks of a head."""
    wanted = ["anchor", *(["hidden"] if head.hidden_size is not None or "base_logits" not in found else [])]
    faults = [f"{name} is missing" for name in wanted if name not in found]
    if faults:
        return faults
    blocks, like = len(found["anchor"]), found.get("base_logits", found.get("hidden"))
    positions = like.shape[1] if like.dim() == 3 else 0
    size = head.hidden_size if projection is None else projection.shape[1]
    width = found["base_logits"].shape[-1] if "base_logits" in found else head.vocab_size
    shapes = {"anchor": (blocks,), "prompt": (blocks,), "hidden": (blocks, positions, size), "base_logits": (blocks, positions, max(width, head.vocab_size))}
    dtypes = {"anchor": torch.int64, "prompt": torch.int64, "hidden": torch.bfloat16, "base_logits": torch.bfloat16}
    for name, tensor in found.items():
        if name == "hidden" and size is None:
            continue
        if tensor.dtype != dtypes[name] or tuple(tensor.shape) != shapes[name]:
            faults.append(f"{name} is {tensor.dtype} {tuple(tensor.shape)} where {dtypes[name]} {shapes[name]} is wanted")
    if projection is not None and (len(projection) < head.vocab_size or projection.shape[1] != (head.hidden_size or projection.shape[1])):
        faults.append(f"the target's output matrix is {tuple(projection.shape)}; the head has {head.vocab_size} tokens and hidden size {head.hidden_size}")
    if not faults and blocks and not 0 <= int(found["anchor"].min()) <= int(found["anchor"].max()) < head.target_vocab_size:
        faults.append(f"anchor has ids from {int(found['anchor'].min())} to {int(found['anchor'].max())}; the target's are 0 to {head.target_vocab_size - 1}")
    return faults if blocks else [*faults, "there is no block"]


@torch.no_grad()
def estimate_agreement(head: DraftHead, blocks: DraftBlocks, *, format: str = "int8x2", rounding: str = "once") -> Agreement:
    """Compare a number format with the bf16 walk on all blocks, some at a time on the head's device.

    Raises:
        BadInput: an unknown format or rounding; blocks of fewer than two prompts; inputs that do not fit the head.
    """
    require_word("rounding", rounding, ROUNDINGS)
    require_word("format", format, tuple(form.name for form in FORMATS))
    form = next(form for form in FORMATS if form.name == format)
    stored, positions = form.store(head.projection[: head.vocab_size].detach()), (blocks.hidden if blocks.base_logits is None else blocks.base_logits).shape[1]
    equal = []
    for part in walk_chunks(len(blocks.anchor), positions, head.vocab_size):
        run = run_reference(head, blocks.inputs(part, head))
        logits = rounded_logits(run.base.flatten(0, 1), corrections(stored, form.split(run.latents.flatten(0, 1))), rounding)
        equal.append((logits.argmax(dim=-1) == run.tokens.flatten()).view(run.tokens.shape).cpu())
    same = torch.cat(equal).numpy()
    share, low, high, effect = clustered_share(same, blocks.prompt.numpy())
    prefix = same.cumprod(axis=1).sum(axis=1)
    return Agreement(head.kind, format, rounding, len(same), same.size, len(numpy.unique(blocks.prompt.numpy())), share, low, high,
                     float((prefix == same.shape[1]).mean()), float(prefix.mean()), effect)  # fmt: skip


def clustered_share(same: numpy.ndarray, cluster: numpy.ndarray) -> tuple[float, float, float, float | None]:
    """Share of true values, its 95 % interval, and the design effect; Korn and Graubard's interval for clustered samples (1998).

    Clopper and Pearson's exact interval for an effective number of values: n over the design effect (not below 1), times
    (t(n − 1) / t(clusters − 1))² for the few clusters that the effect was estimated from. Where all values are equal nothing tells the
    effect, and rows count as one value each.

    Args:
        same: bool ``[rows, values of a row]``.
        cluster: int ``[rows]``.

    Raises:
        BadInput: fewer than two clusters.
    """
    from scipy.stats import beta, t

    names, members = numpy.unique(cluster, return_inverse=True)
    if len(names) < 2:
        raise BadInput(f"the blocks are of {len(names)} prompt; an interval needs two or more")
    values, tail = same.size, (1 - SHARE_INSIDE) / 2
    sizes = numpy.bincount(members) * same.shape[1]
    hits = numpy.bincount(members, weights=same.sum(axis=1))
    share = float(hits.sum() / values)
    if 0 < share < 1:
        variance = len(names) / (len(names) - 1) * float(((hits - share * sizes) ** 2).sum()) / values**2
        effect = variance / (share * (1 - share) / values)
        count = values / max(effect, 1.0) * (t.ppf(1 - tail, values - 1) / t.ppf(1 - tail, len(names) - 1)) ** 2
    else:
        effect, count = None, float(len(same))
    hit = share * count
    low = float(beta.ppf(tail, hit, count - hit + 1)) if share > 0 else 0.0
    high = float(beta.ppf(1 - tail, hit + 1, count - hit)) if share < 1 else 1.0
    return share, low, high, effect
