"""From a settings file to a prepared `Walk`, on the machine that the settings were made for."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_model.decide import extra_memory_bytes
from cost_model.errors import BadInput
from cost_model.forms import differing
from cost_model.settings import MEASURED_HERE, RESIDENT, STREAMING, Settings, fingerprint, read_settings, require_fit
from cost_model.workload import DEFAULT_EXCHANGE
from wts_lab.tuned import SHAPE_FIELDS, Tuned, walk_sources_hash

if TYPE_CHECKING:
    import torch

    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from wts_lab.heads import DraftHead
    from wts_lab.walk import Walk


def load_settings(path: Path | str, head: DraftHead | Path | str | None = None, *, device: torch.device | str | None = None, **options: Any) -> Walk:
    """A `Walk` as a settings file says: mode, precision, placement, rounding, longest walk, batch, and sampling where its temperature is
    above 0.

    :param head: the head, or a checkpoint to read one from. None: random weights of the settings' shape, to try and to time; a warning
        says so.
    :param device: a CUDA device; the current one when None.
    :param options: more arguments of `Walk`, such as ``draft_to_target``.
    :raises SettingsError, SettingsMismatch: the file cannot be read, or was made for another GPU, kernel or shape; all differences are listed.
    :raises BadInput: the settings say to keep the engine's path; a checkpoint that does not fit.
    """
    from wts_lab.heads import head_from_safetensors, random_head

    settings = read_settings(path)
    require_fused(path, settings)
    shape = settings.fingerprint.head
    require_device(path, settings, device)
    if head is None:
        warnings.warn(f"no head was given with {path}: the walk has random weights", stacklevel=3)
        head = random_head(shape)
    elif isinstance(head, (str, Path)):
        pool = {"candidate_pool": shape.candidate_pool} if shape.kind == "domino" else {}
        head = head_from_safetensors(head, shape.kind, vocab_size=shape.vocab_size, **pool)
    require_device(path, settings, device, head.shape)
    return prepare_walk(settings, head, device=device, **options)


def settings_of_tuned(tuned: Tuned, gpu: Gpu, head: Head, *, steps: int, temperature: float = 0.0) -> Settings:
    """Settings that deploy a tuned walk by somebody's own decision: its batch, rounding, sampling and placement. The reasons say that no
    engine's path was compared.

    :param gpu: the catalogue's description of the GPU that it was tuned on.
    :param head: the shape, hidden size included.
    :param temperature: that will be served, above 0 exactly where the walk was tuned with sampling.
    :raises BadInput: a shape or temperature that is not the tuned one's; an exchange that settings do not stand for.
    """
    use = tuned.valid_for
    there = {name: getattr(use, name) for name in ("head_kind", *SHAPE_FIELDS, "sampling")}
    here = {"head_kind": head.kind, **{name: getattr(head, name) for name in SHAPE_FIELDS}, "sampling": temperature > 0}
    if differences := differing(there, here):
        told = "; ".join(f"{name} is {tuned_for!r} in the tuned file and {wanted!r} here" for name, (tuned_for, wanted) in differences.items())
        raise BadInput(f"the walk was tuned for something else: {told}")
    if tuned.exchange != DEFAULT_EXCHANGE:
        raise BadInput(f"the walk was tuned with the exchange {tuned.exchange}; settings stand for {DEFAULT_EXCHANGE}: run `wts-lab tune` with it alone")
    about = {"gpu_name": use.gpu_name, "gpu_sm_count": use.sm_count, "kernel_hash": use.kernel_hash}
    verdict = {"resident": RESIDENT, "streaming": STREAMING}[use.mode]
    reasons = (tuned.verdict, "deployed by hand from a tuned placement: no engine's path was compared")
    return Settings(
        verdict, use.mode, use.precision, tuned.placement, None, use.batch, steps, temperature, use.rounding, tuned.l2_state, reasons, MEASURED_HERE,
        extra_memory_bytes(head, use.mode, use.precision), fingerprint(gpu, head, use.precision, tuned.placement, about),
    )  # fmt: skip


def require_fused(path: Path | str, settings: Settings) -> None:
    """Raise BadInput, with the verdict and its reasons, for settings that leave the engine's path in place."""
    if settings.placement is None:
        why = "; ".join(settings.reasons)
        raise BadInput(f"{path}: the verdict is {settings.verdict!r}, so there is no walk to prepare{': ' if why else ''}{why}")


def require_device(path: Path | str, settings: Settings, device: torch.device | str | None = None, head: Head | None = None) -> None:
    """Raise SettingsMismatch, with every differing field, unless the settings were made with this GPU, these kernels and this shape.

    The driver and CUDA version may differ: they move times, not results.
    """
    import torch

    from wts_lab.walk import device_gpu

    device = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    about = torch.cuda.get_device_properties(device)
    here = {"gpu_name": about.name, "gpu_sm_count": about.multi_processor_count, "kernel_hash": walk_sources_hash()}
    require_fit(path, settings, device_gpu(device), head, here)


def prepare_walk(settings: Settings, head: DraftHead, *, steps: int | None = None, device: torch.device | str | None = None, **options: Any) -> Walk:
    """The walk of settings that are known to fit; ``steps`` where another longest walk is wanted."""
    from wts_lab.walk import Walk

    return Walk(
        head, steps=settings.steps if steps is None else steps, max_batch=settings.batch, mode=settings.mode, precision=settings.precision,
        placement=settings.placement, rounding=settings.rounding, sampling=settings.temperature > 0, device=device, **options,
    )
