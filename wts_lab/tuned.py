"""Tuned files: the placement and exchange that `wts-lab tune` found fastest for one shape on one GPU.

A file holds one answer and what it is valid for. It is looked up only when somebody asks for it, and refused, field by field,
for anything but the GPU, kernels, shape and request that it was measured with. torch is imported only to ask the device.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.errors import BadInput
from cost_model.forms import FormError, FormMismatch, checked_fields, differing, read_form, require_number, require_texts, write_form
from cost_model.placement import Placement
from cost_model.workload import EXCHANGES, require_word

if TYPE_CHECKING:
    from cost_model.head import Head

TUNED_SCHEMA_VERSION = 1
TUNED_FORM = "weights-that-stay tuned placement"
SHAPE_FIELDS = ("vocab_size", "target_vocab_size", "padded_vocab_size", "rank", "gru_size", "candidate_pool")


class TunedError(FormError):
    """A tuned file is missing, cannot be read, or has another form."""


class TunedMismatch(FormMismatch):
    """A tuned file was made for something else."""

    about = "was tuned for something else"
    advice = "Run `wts-lab tune` here, or leave the planner its choice"


@dataclass(frozen=True)
class TunedFor:
    """What a tuned file is valid for; all of it must be equal.

    Attributes:
        gpu_name, sm_count: the device, by the driver's name and the multiprocessors that the process sees.
        kernel_hash: of the walk's sources (:func:`walk_sources_hash`).
        head_kind, vocab_size, target_vocab_size, padded_vocab_size, rank, gru_size, candidate_pool: what the kernels see of the shape
            (the hidden size is gone before a walk begins).
        mode, precision, rounding: of the walk.
        batch: rows that the walk is prepared for.
        sampling: whether the kernel can sample.
    """

    gpu_name: str
    sm_count: int
    kernel_hash: str
    head_kind: str
    vocab_size: int
    target_vocab_size: int
    padded_vocab_size: int
    rank: int
    gru_size: int | None
    candidate_pool: int | None
    mode: str
    precision: str
    rounding: str
    batch: int
    sampling: bool

    @classmethod
    def of(
        cls, gpu_name: str, sm_count: int, kernel_hash: str, head: Head, *, mode: str, precision: str, rounding: str = "once",
        batch: int = 1, sampling: bool = False,
    ) -> TunedFor:
        """What a walk of a head's shape with these options needs a file for."""
        shape = {name: getattr(head, name) for name in SHAPE_FIELDS}
        return cls(gpu_name, sm_count, kernel_hash, head.kind, **shape, mode=mode, precision=precision, rounding=rounding,
                   batch=batch, sampling=sampling)  # fmt: skip

    @property
    def file_name(self) -> str:
        """Name of the file for such a walk. The kernels are not part of it, so that a stale file is found and refused."""
        sizes = {"v": self.vocab_size, "r": self.rank, "g": self.gru_size, "pool": self.candidate_pool, "b": self.batch}
        numbers = (f"{letter}{size}" for letter, size in sizes.items() if size is not None)
        words = (self.gpu_name, self.head_kind, *numbers, self.mode, self.precision, self.rounding, "sampling" if self.sampling else "greedy")
        return re.sub(r"[^a-z0-9]+", "-", " ".join(words).lower()) + ".json"


@dataclass(frozen=True)
class Tuned:
    """One answer of `wts-lab tune`.

    Attributes:
        valid_for: what it was measured with.
        placement, exchange: what to build.
        verdict: why these, in one sentence.
        step_us, planned_step_us: fitted step cost of the answer, and of the planner's choice beside it.
        l2_state: in which these were measured.
        record: stem of the walk record with the samples.
    """

    valid_for: TunedFor
    placement: Placement
    exchange: str
    verdict: str
    step_us: float
    planned_step_us: float
    l2_state: str
    record: str

    def __post_init__(self) -> None:
        require_texts({name: getattr(self, name) for name in ("verdict", "l2_state", "record")})
        for name in ("step_us", "planned_step_us"):
            require_number(name, getattr(self, name), 0)
        require_word("exchange", self.exchange, EXCHANGES)

    def walk_options(self) -> dict[str, Any]:
        """Arguments of :class:`wts_lab.walk.Walk` that build this answer."""
        return {"placement": self.placement, "exchange": self.exchange}

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, with the form's name first."""
        return {"form": TUNED_FORM, "schema_version": TUNED_SCHEMA_VERSION, **asdict(self)}


def walk_sources_hash() -> str:
    """Hash of everything that the walk's kernels are built from, whatever the placement."""
    from wts_lab import abi
    from wts_lab.build import source_hash

    return source_hash((abi.csrc_root() / "walk",))


def tuned_folder() -> Path:
    """Where tuned files are kept unless another place is named: beside the builds, in the cache folder."""
    from wts_lab.build import cache_root

    return cache_root() / "tuned"


def write_tuned(tuned: Tuned, path: Path | str | None = None) -> Path:
    """Write a tuned file whole, replacing an earlier one; into :func:`tuned_folder` where no path is given."""
    place = tuned_folder() / tuned.valid_for.file_name if path is None else Path(path)
    return write_form(place, tuned.as_dict())


def read_tuned(path: Path | str) -> Tuned:
    """Read a tuned file without asking whether it fits; TunedError where there is none, or it is foreign or of another version."""
    path = Path(path)
    if not path.exists():
        raise TunedError(f"{path}: no such tuned file; `wts-lab tune` makes one for this shape on this GPU")
    try:
        values = checked_fields("the file", Tuned, read_form(path, TUNED_FORM, TUNED_SCHEMA_VERSION))
        parts = {"valid_for": TunedFor, "placement": Placement}
        return Tuned(**values | {name: kind(**checked_fields(name, kind, values[name])) for name, kind in parts.items()})
    except FormError as error:
        raise TunedError(str(error)) from error
    except BadInput as error:
        raise TunedError(f"{path}: {error}; run `wts-lab tune` again") from error


def load_tuned(path: Path | str, wanted: TunedFor) -> Tuned:
    """Read a tuned file for exactly this use.

    Args:
        path: a file, or a folder in which the file has the name of its use.

    Raises:
        TunedError: there is no such file, or it cannot be read.
        TunedMismatch: it was made for something else; every differing field is listed.
    """
    path = Path(path)
    path = path / wanted.file_name if path.is_dir() else path
    tuned = read_tuned(path)
    if differences := differing(asdict(tuned.valid_for), asdict(wanted)):
        raise TunedMismatch(path, differences)
    return tuned


def tuned_for_device(
    head: Head, *, mode: str, precision: str, rounding: str = "once", batch: int = 1, sampling: bool = False, path: Path | str | None = None,
    device: Any = None,
) -> Tuned:
    """The tuned answer for a walk on a CUDA device.

    Args:
        head: shape of the head.
        path: a tuned file, or a folder of them; :func:`tuned_folder` where None.
        device: a CUDA device; the current one where None.

    Raises:
        TunedError, TunedMismatch: as :func:`load_tuned`.
    """
    import torch

    about = torch.cuda.get_device_properties(device)
    wanted = TunedFor.of(about.name, about.multi_processor_count, walk_sources_hash(), head, mode=mode, precision=precision,
                         rounding=rounding, batch=batch, sampling=sampling)  # fmt: skip
    return load_tuned(tuned_folder() / wanted.file_name if path is None else path, wanted)
