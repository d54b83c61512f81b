"""Draft heads as torch modules, random or from safetensors checkpoints.

A Markov head has two tensors: ``W1`` ``[V_target, r]``, whose row for the previous token is the latent, and ``W2`` ``[V, r]``, the
vocabulary projection. ``W2`` may hold more rows than the vocabulary (padding); those are never chosen.
"""

from __future__ import annotations

from pathlib import Path

import torch

from cost_model.errors import BadInput
from cost_model.head import Head, require_rank

TENSOR_NAMES = ("markov_w1.weight", "markov_w2.weight")
CHECKPOINT_PREFIXES = ("", "markov_head.", "model.markov_head.")


class MarkovHead(torch.nn.Module):
    """``logits_k = base_k + W2 · W1[previous token]``.

    ``markov_w1`` is an Embedding with ``weight [target_vocab_size, rank]``, ``markov_w2`` a Linear without bias with ``weight
    [padded_vocab_size, rank]``: the names of released checkpoints. Rows of ``W2`` from ``vocab_size`` on are padding.

    :raises BadInput: tensors that are not matrices of one rank, a rank that is not a multiple of 32 up to 512, or a vocabulary
        beyond the rows of ``W2``.
    """

    def __init__(self, w1: torch.Tensor, w2: torch.Tensor, *, vocab_size: int | None = None, name: str | None = None) -> None:
        super().__init__()
        if w1.dim() != 2 or w2.dim() != 2 or w1.shape[1] != w2.shape[1]:
            raise BadInput(f"W1 and W2 must be matrices [rows, rank] of one rank; got {tuple(w1.shape)} and {tuple(w2.shape)}")
        require_rank(w2.shape[1])
        self.vocab_size = w2.shape[0] if vocab_size is None else vocab_size
        if not 1 <= self.vocab_size <= w2.shape[0]:
            raise BadInput(f"vocab_size must be 1 to {w2.shape[0]}, the rows of W2; got {vocab_size}")
        self._name = name
        self.markov_w1 = torch.nn.Embedding.from_pretrained(w1, freeze=True)
        self.markov_w2 = torch.nn.Linear(1, 1, bias=False, device="meta")
        self.markov_w2.weight = torch.nn.Parameter(w2, requires_grad=False)
        self.markov_w2.in_features, self.markov_w2.out_features = w2.shape[1], w2.shape[0]

    @classmethod
    def random(
        cls,
        vocab_size: int,
        rank: int,
        *,
        target_vocab_size: int | None = None,
        padded_vocab_size: int | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> MarkovHead:
        """A head of normal random weights, scaled so that corrections have a standard deviation of 1.

        The numbers are drawn on the CPU: one seed gives the same head on every device.
        """
        require_rank(rank)
        generator = torch.Generator().manual_seed(seed)
        sizes = (target_vocab_size or vocab_size, padded_vocab_size or vocab_size)
        if min(sizes) < 1:
            raise BadInput(f"vocabulary sizes must be at least 1; got target {sizes[0]} and draft {sizes[1]}")
        w1, w2 = (torch.randn(size, rank, generator=generator).mul_(rank**-0.25).to(device=device, dtype=dtype) for size in sizes)
        return cls(w1, w2, vocab_size=vocab_size)

    @classmethod
    def from_safetensors(
        cls,
        path: str | Path,
        *,
        vocab_size: int | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.bfloat16,
    ) -> MarkovHead:
        """Load ``markov_w1.weight`` and ``markov_w2.weight``, with or without the prefix ``markov_head.``.

        :param path: a ``.safetensors`` file, or a folder that holds some.
        :param vocab_size: logical draft vocabulary where ``W2`` is padded; default: all its rows.
        :raises BadInput: no such file, not a safetensors file, a tensor missing (the names found are listed) or of the wrong shape.
        """
        tensors = _read_tensors(Path(path), TENSOR_NAMES)
        w1, w2 = (tensors[name].to(device=device, dtype=dtype) for name in TENSOR_NAMES)
        try:
            return cls(w1, w2, vocab_size=vocab_size, name=Path(path).stem)
        except BadInput as error:
            raise BadInput(f"{path}: {error}") from error

    @property
    def rank(self) -> int:
        """Elements of the latent."""
        return self.markov_w2.weight.shape[1]

    @property
    def target_vocab_size(self) -> int:
        """Rows of ``W1``: the ids that a walk starts from and returns."""
        return self.markov_w1.weight.shape[0]

    @property
    def padded_vocab_size(self) -> int:
        """Rows of ``W2`` as stored, padding included."""
        return self.markov_w2.weight.shape[0]

    @property
    def shape(self) -> Head:
        """The sizes alone, as the cost model takes them."""
        name = self._name or f"markov-{self.vocab_size}-r{self.rank}"
        return Head(name, "markov", self.vocab_size, self.target_vocab_size, self.padded_vocab_size, self.rank)

    def forward(self, previous: torch.Tensor) -> torch.Tensor:
        """Corrections ``[B, padded_vocab_size]`` of the logits after tokens ``previous`` int64 ``[B]``."""
        return self.markov_w2(self.markov_w1(previous))


def _read_tensors(path: Path, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The named tensors from one file or from the files of a folder, under any of the known prefixes."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise BadInput("reading a checkpoint needs the safetensors package: pip install safetensors") from error
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise BadInput(f"no safetensors file at {path}; give a .safetensors file or a folder that holds some")
    accepted = {prefix + name: name for name in names for prefix in CHECKPOINT_PREFIXES}
    found, seen = {}, []
    for file in files:
        try:
            with safe_open(file, framework="pt") as checkpoint:
                for key in checkpoint.keys():
                    seen.append(key)
                    if key in accepted:
                        found[accepted[key]] = checkpoint.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{file} is not a readable safetensors file: {error}") from error
    missing = [name for name in names if name not in found]
    if missing:
        listing = ", ".join(sorted(seen)[:12]) + (", ..." if len(seen) > 12 else "")
        raise BadInput(f"{path} lacks {' and '.join(missing)} (also looked for with the prefix markov_head.); it holds: {listing}")
    return found
