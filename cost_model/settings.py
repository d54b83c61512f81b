"""Settings: the recommended mode and placement, with a fingerprint; refused wherever the fingerprint differs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cost_model.errors import BadInput
from cost_model.files import write_text_whole
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.placement import Placement

SETTINGS_SCHEMA_VERSION = 1
SETTINGS_FORM = "weights-that-stay settings"


class SettingsError(BadInput):
    """A settings file cannot be read, or has another form."""


class SettingsMismatch(BadInput):
    """Settings were made for something else; `differences` and the message list every differing field.

    Attributes:
        differences: field -> (in the file, here).
    """

    def __init__(self, path: Path | str, differences: Mapping[str, tuple[object, object]]) -> None:
        self.differences = dict(differences)
        lines = "; ".join(f"{name} is {there!r} in the file and {here!r} here" for name, (there, here) in differences.items())
        super().__init__(f"{path}: these settings were made for something else: {lines}. Run `wts-lab study` here to make new ones")


@dataclass(frozen=True)
class Fingerprint:
    """What the settings are valid for. None: not known when they were made.

    Attributes:
        gpu_id, gpu_name, sm_count: the device, by catalogue id, driver name and visible multiprocessors.
        driver_version, cuda_version, kernel_hash: the software that was measured.
        head_kind, vocab_size, target_vocab_size, padded_vocab_size, rank: the shape.
        precision: of W2.
        placement: tiles of a block, or None without one.
    """

    gpu_id: str
    sm_count: int
    head_kind: str
    vocab_size: int
    target_vocab_size: int
    padded_vocab_size: int
    rank: int
    precision: str | None
    placement: Mapping | None
    gpu_name: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    kernel_hash: str | None = None


ENVIRONMENT_FIELDS = ("gpu_name", "driver_version", "cuda_version", "kernel_hash")


@dataclass(frozen=True)
class Settings:
    """The answer as a file.

    Attributes:
        verdict: one of `decide.VERDICTS`.
        mode, precision, placement: what to run; mode `stepwise` and no placement where the engine's path stays.
        engine_path: path of the engine to take, where it stays or switches.
        batch, steps, temperature, rounding, l2_state: what the answer was asked for.
        reasons: why, in sentences.
        source: measured here, replayed, or predicted.
        extra_memory_bytes: device memory that the recommended mode needs beside the engine's.
        fingerprint: what the settings are valid for.
    """

    verdict: str
    mode: str
    precision: str | None
    placement: Placement | None
    engine_path: str | None
    batch: int
    steps: int
    temperature: float
    rounding: str
    l2_state: str
    reasons: tuple[str, ...]
    source: str
    extra_memory_bytes: int
    fingerprint: Fingerprint
    schema_version: int = field(default=SETTINGS_SCHEMA_VERSION)

    def as_dict(self) -> dict:
        """Return plain values, ready for JSON, with the form's name first."""
        plain = asdict(self)
        plain["reasons"] = list(self.reasons)
        return {"form": SETTINGS_FORM, "schema_version": plain.pop("schema_version"), **plain}


def fingerprint(gpu: Gpu, head: Head, precision: str | None, placement: Placement | None, environment: Mapping | None = None) -> Fingerprint:
    """Return the fingerprint of a GPU, shape and placement, and of what is known of the environment."""
    known = {name: (environment or {}).get(name) for name in ENVIRONMENT_FIELDS}
    return Fingerprint(gpu.id, (environment or {}).get("gpu_sm_count") or gpu.sm_count, head.kind, head.vocab_size, head.target_vocab_size,
                       head.padded_vocab_size, head.rank, precision, asdict(placement) if placement else None, **known)


def write_settings(settings: Settings, path: Path | str) -> Path:
    """Write settings as JSON, whole or not at all."""
    return write_text_whole(path, json.dumps(settings.as_dict(), indent=2, ensure_ascii=False) + "\n")


def read_settings(path: Path | str) -> Settings:
    """Read settings without asking whether they fit.

    Raises:
        SettingsError: the file is missing, truncated, foreign, or of another version.
    """
    path = Path(path)
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as settings ({error})") from error
    if not isinstance(plain, dict) or plain.get("form") != SETTINGS_FORM:
        raise SettingsError(f"{path}: is not a settings file of this tool (it has no form {SETTINGS_FORM!r})")
    if plain.get("schema_version") != SETTINGS_SCHEMA_VERSION:
        raise SettingsError(f"{path}: schema_version is {plain.get('schema_version')!r}; this code reads version {SETTINGS_SCHEMA_VERSION}")
    try:
        plain = {key: value for key, value in plain.items() if key != "form"}
        placement = Placement(**plain.pop("placement")) if plain.get("placement") else plain.pop("placement")
        return Settings(**{**plain, "reasons": tuple(plain["reasons"]), "placement": placement, "fingerprint": Fingerprint(**plain["fingerprint"])})
    except (TypeError, KeyError, AttributeError) as error:
        raise SettingsError(f"{path}: fields are missing or unknown ({error})") from error


def load_settings(path: Path | str, gpu: Gpu, head: Head | None = None, environment: Mapping | None = None) -> Settings:
    """Read settings and refuse them unless they were made for this GPU, and for the head and environment where those are given.

    Args:
        environment: any of gpu_name, gpu_sm_count, driver_version, cuda_version, kernel_hash; a field that is None here is not
            compared, one that is known here must be equal in the file.

    Raises:
        SettingsError: the file cannot be read.
        SettingsMismatch: fields differ; all are listed.
    """
    settings = read_settings(path)
    there = settings.fingerprint
    here: dict[str, object] = {"gpu_id": gpu.id, "sm_count": (environment or {}).get("gpu_sm_count") or gpu.sm_count}
    here |= {name: value for name, value in (environment or {}).items() if name in ENVIRONMENT_FIELDS and value is not None}
    if head is not None:
        here |= {"head_kind": head.kind, "vocab_size": head.vocab_size, "target_vocab_size": head.target_vocab_size,
                 "padded_vocab_size": head.padded_vocab_size, "rank": head.rank}
    differences = {name: (getattr(there, name), value) for name, value in here.items() if getattr(there, name) != value}
    if differences:
        raise SettingsMismatch(path, differences)
    return settings
