"""SGLang's own draft steps, to compare with and to measure beside the fused walk. Nothing here is copied from SGLang.

SGLang drafts a DSpark block step by step: the embedding row of the previous token, then one of two paths.

* ``greedy`` (MarkovGreedyStep): product, base logits and argmax in two kernels, compared in fp32 (rounding "none"). The engine takes
  it at batch 1 where no row samples and no logits are kept.
* ``sample`` (MarkovSampleStep): ``F.linear``, then two kernels that add, round, sample and choose (rounding "twice"). The engine
  takes it otherwise.

The kernels come from three files of an installed sglang distribution or of an unpacked wheel (`sglang_files.py`). Where triton is missing
only SGLang's CPU references run.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as functional

from cost_model.errors import BadInput
from cost_model.workload import MAX_BATCH, require_word
from wts_lab.engines.sglang_files import importable, locate

PACKAGE = "sglang.kernels.ops.speculative.dspark"
PATHS = {"greedy": "none", "sample": "twice"}
"""Each path with its rounding."""


@dataclass(frozen=True)
class StepKernels:
    """The version found, and SGLang's classes MarkovGreedyStep and MarkovSampleStep."""

    version: str
    greedy: type
    sample: type


@cache
def load_step_kernels(root: Path | None = None) -> StepKernels:
    """Load SGLang's steps.

    :param root: folder of an unpacked wheel; None: the installed distribution.
    :raises BadInput: as `sglang_files.locate` and `sglang_files.importable`.
    """
    version, folder = locate(root)
    names = [f"{PACKAGE}.{name}" for name in ("dispatch", "markov_sample", "dspark_draft_model")]
    with importable(folder, frozenset(names)):
        _, sample, greedy = map(importlib.import_module, names)
    return StepKernels(version, greedy.MarkovGreedyStep, sample.MarkovSampleStep)


class SglangWalk:
    """SGLang's walk over a Markov head: its kernels in the engine's order, called like a `StepwiseWalk`.

    A CUDA call can be captured in a CUDA graph once it has run before (Triton compiles on the first call).

    :param head: a `MarkovHead` of bf16 weights whose draft ids are target ids.
    :param path: "greedy" or "sample".
    :param root: as :func:`load_step_kernels`.
    :raises BadInput: another path, weights that are not bf16, a vocabulary beyond the rows of ``W1``; what loading raises.
    """

    def __init__(self, head, path: str = "greedy", root: Path | None = None) -> None:
        require_word("path", path, tuple(PATHS))
        self._table, matrix = head.markov_w1.weight.detach(), head.markov_w2.weight.detach()
        if self._table.dtype != torch.bfloat16 or matrix.dtype != torch.bfloat16:
            raise BadInput(f"SGLang's steps are compared in bf16; the head holds {self._table.dtype} and {matrix.dtype}")
        if head.vocab_size > len(self._table):
            raise BadInput(f"SGLang's Markov head maps no ids: {head.vocab_size} draft ids need as many rows of W1, which has {len(self._table)}")
        self.path, self.rounding, self.vocab_size = path, PATHS[path], head.vocab_size
        self.kernels = load_step_kernels(root)
        self._matrix = matrix[: head.vocab_size]
        self._no_temperatures = torch.zeros(MAX_BATCH, dtype=torch.float32, device=matrix.device)
        self._no_noise = (0, torch.zeros(1, dtype=torch.int64, device=matrix.device))

    @torch.no_grad()
    def __call__(
        self,
        base_logits: torch.Tensor,
        anchor: torch.Tensor,
        *,
        temperatures: torch.Tensor | None = None,
        noise: tuple[int, torch.Tensor] | None = None,
        logits_out: torch.Tensor | None = None,
        tokens_out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Walk ``base_logits`` bf16 ``[B, steps, at least V]`` from ``anchor`` int64 ``[B]``; returns int64 ``[B, steps]``.

        :param temperatures: float32 ``[B]``, 0 where a row is greedy; with ``noise``, on the path "sample" alone.
        :param noise: ``(key, offset)``, offset int64 ``[1]``, which is advanced by one.
        :param logits_out: bf16 ``[B, steps, V]``, receives the step logits; on the path "sample" alone.
        :raises BadInput: tensors that do not fit, a batch above 32, or what the path cannot do.
        """
        self._check(base_logits, anchor, temperatures, noise, logits_out)
        key, offset = self._no_noise if temperatures is None else noise
        sampling = {
            "temperatures": self._no_temperatures[: len(anchor)] if temperatures is None else temperatures,
            "key": key, "offset": offset, "has_sampled_rows": False if temperatures is None else None,
        }  # fmt: skip
        previous, drafted = anchor, []
        for step in range(base_logits.shape[1]):
            latent = functional.embedding(previous, self._table)
            base = base_logits[:, step, : self.vocab_size]
            if self.path == "greedy":
                previous = self.kernels.greedy.execute(base_logits=base, prev_embeds=latent, w2_weight=self._matrix)
            else:
                kept = None if logits_out is None else logits_out[:, step]
                previous = self.kernels.sample.execute(
                    base_logits=base, bias=functional.linear(latent, self._matrix), step=step, step_dtype=torch.bfloat16, logits_out=kept, **sampling
                )
            drafted.append(previous)
        if temperatures is not None:
            offset.add_(1)
        return torch.stack(drafted, dim=1, out=tokens_out)

    def _check(self, base_logits, anchor, temperatures, noise, logits_out) -> None:
        """Shapes and dtypes, checked on the host without synchronising."""
        if base_logits.dim() != 3 or base_logits.dtype != torch.bfloat16 or base_logits.shape[2] < self.vocab_size:
            raise BadInput(
                f"base_logits must be bfloat16 [batch, steps, at least {self.vocab_size}]; got {base_logits.dtype} {tuple(base_logits.shape)}"
            )
        batch, steps, _ = base_logits.shape
        if anchor.shape != (batch,) or anchor.dtype != torch.int64 or not 1 <= batch <= MAX_BATCH:
            raise BadInput(f"anchor must be int64 [batch], batch 1 to {MAX_BATCH} as of base_logits, {batch}; got {anchor.dtype} {tuple(anchor.shape)}")
        if self.path == "greedy" and (temperatures is not None or logits_out is not None):
            raise BadInput("the path 'greedy' neither samples nor keeps logits; take 'sample'")
        if (temperatures is None) != (noise is None):
            raise BadInput("temperatures and noise go together; got one without the other")
        if temperatures is not None and (temperatures.shape != (batch,) or temperatures.dtype != torch.float32):
            raise BadInput(f"temperatures must be float32 [{batch}]; got {temperatures.dtype} {tuple(temperatures.shape)}")
        if logits_out is not None and (logits_out.shape != (batch, steps, self.vocab_size) or logits_out.dtype != torch.bfloat16):
            raise BadInput(f"logits_out must be bfloat16 [{batch}, {steps}, {self.vocab_size}]; got {logits_out.dtype} {tuple(logits_out.shape)}")
