"""Settings: the recommended mode and placement, with a fingerprint; refused wherever the fingerprint differs.

docs/settings.md describes the file for people, `settings_schema.py` for other programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from cost_model.errors import BadInput
from cost_model.forms import FormError, FormMismatch, checked_fields, differing, read_form, require_texts, write_form
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.workload import MODES, Workload, require_whole, require_word

SETTINGS_SCHEMA_VERSION = 2
SETTINGS_FORM = "weights-that-stay settings"

RESIDENT, STREAMING, KEEP = "deploy resident", "deploy streaming", "keep the engine's path"
SWITCH, NO_GAIN, INCONCLUSIVE = "switch the engine's path", "no material gain", "inconclusive"
VERDICTS = (RESIDENT, STREAMING, KEEP, SWITCH, NO_GAIN, INCONCLUSIVE)

MEASURED_HERE, REPLAYED, PREDICTED, NO_SOURCE = "measured here", "replayed", "predicted", "none"
SOURCES = (MEASURED_HERE, REPLAYED, PREDICTED, NO_SOURCE)
"""What a recommendation rests on; none where there was nothing to recommend."""


class SettingsError(FormError):
    """A settings file cannot be read, or has another form."""


class SettingsMismatch(FormMismatch):
    """Settings were made for something else."""

    about = "these settings were made for something else"
    advice = "Run `wts-lab study` here to make new ones"


@dataclass(frozen=True)
class Fingerprint:
    """What the settings are valid for. None: not known when they were made.

    Attributes:
        gpu_id, gpu_name, sm_count: the device, by catalogue id, driver name and visible multiprocessors.
        driver_version, cuda_version, kernel_hash: the software that was measured.
        head_kind, vocab_size, target_vocab_size, padded_vocab_size, rank, hidden_size, gru_size, candidate_pool: the shape; the last three
            are None where the kind has none.
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
    hidden_size: int | None
    gru_size: int | None
    candidate_pool: int | None
    precision: str | None
    placement: Mapping | None
    gpu_name: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None
    kernel_hash: str | None = None

    def __post_init__(self) -> None:
        require_texts({"gpu_id": self.gpu_id})
        require_texts({name: getattr(self, name) for name in ENVIRONMENT_FIELDS}, or_null=True)
        require_whole("sm_count", self.sm_count, 1, None)
        _ = self.head

    @property
    def head(self) -> Head:
        """The shape; BadInput where there can be none of these sizes."""
        return Head(f"{self.head_kind}-{self.vocab_size}-r{self.rank}", self.head_kind, **{name: getattr(self, name) for name in SIZES})


SIZES = ("vocab_size", "target_vocab_size", "padded_vocab_size", "rank", "hidden_size", "gru_size", "candidate_pool")
ENVIRONMENT_FIELDS = ("gpu_name", "driver_version", "cuda_version", "kernel_hash")


@dataclass(frozen=True)
class Settings:
    """The answer as a file.

    Attributes:
        verdict: one of VERDICTS.
        mode, precision, placement: what to run; mode `stepwise` and no placement where the engine's path stays.
        engine_path: path of the engine to take, where it stays or switches.
        batch, steps, temperature, rounding, l2_state: what the answer was asked for.
        reasons: why, in sentences.
        source: one of SOURCES.
        extra_memory_bytes: device memory that the recommended mode needs beside the engine's.
        fingerprint: what the settings are valid for.

    Raises:
        BadInput: a field is outside what is allowed, or contradicts another.
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

    def __post_init__(self) -> None:
        require_word("verdict", self.verdict, VERDICTS)
        require_word("mode", self.mode, MODES)
        require_word("source", self.source, SOURCES)
        Workload(self.batch, self.steps, self.temperature, "bf16" if self.precision is None else self.precision, self.rounding, self.l2_state)
        require_whole("extra_memory_bytes", self.extra_memory_bytes, 0, None)
        require_texts({f"reason {place}": reason for place, reason in enumerate(self.reasons, 1)})
        require_texts({"engine_path": self.engine_path}, or_null=True)
        if self.temperature and self.rounding == "none":
            raise BadInput(f"rounding is none at temperature {self.temperature:g}; a sampled walk draws from logits rounded to bf16: choose once or twice")
        fused = self.mode != "stepwise"
        if fused != (self.placement is not None) or fused != (self.precision is not None):
            raise BadInput(f"mode is {self.mode} with precision {self.precision!r} and {'a' if self.placement else 'no'} placement; "
                           "resident and streaming have both, stepwise has neither")
        if {RESIDENT: "resident", STREAMING: "streaming"}.get(self.verdict, "stepwise") != self.mode:
            raise BadInput(f"verdict is {self.verdict!r} with mode {self.mode}; only a verdict to deploy has the mode that it names, others have stepwise")
        placement = asdict(self.placement) if self.placement else None
        for name, own in (("precision", self.precision), ("placement", placement)):
            if getattr(self.fingerprint, name) != own:
                raise BadInput(f"{name} is {own!r}, but {getattr(self.fingerprint, name)!r} in the fingerprint; they must be equal")

    def as_dict(self) -> dict:
        """Return plain values, ready for JSON, with the form's name first."""
        plain = asdict(self)
        plain["reasons"] = list(self.reasons)
        return {"form": SETTINGS_FORM, "schema_version": SETTINGS_SCHEMA_VERSION, **plain}


def fingerprint(gpu: Gpu, head: Head, precision: str | None, placement: Placement | None, environment: Mapping | None = None) -> Fingerprint:
    """Return the fingerprint of a GPU, shape and placement, and of what is known of the environment."""
    known = {name: (environment or {}).get(name) for name in ENVIRONMENT_FIELDS}
    count = (environment or {}).get("gpu_sm_count") or gpu.sm_count
    return Fingerprint(gpu.id, count, precision=precision, placement=asdict(placement) if placement else None, **_shape(head), **known)


def _shape(head: Head) -> dict[str, object]:
    """What a fingerprint keeps of a head."""
    return {"head_kind": head.kind} | {name: getattr(head, name) for name in SIZES}


def write_settings(settings: Settings, path: Path | str) -> Path:
    """Write settings as JSON, whole or not at all."""
    return write_form(path, settings.as_dict())


def read_settings(path: Path | str) -> Settings:
    """Read settings without asking whether they fit.

    Raises:
        SettingsError: the file is missing, truncated, foreign, of another version, or has a field that cannot be.
    """
    path = Path(path)
    try:
        return _settings(read_form(path, SETTINGS_FORM, SETTINGS_SCHEMA_VERSION))
    except FormError as error:
        raise SettingsError(str(error)) from error
    except BadInput as error:
        raise SettingsError(f"{path}: {error}; make the file anew with `wts-lab study`") from error


def _settings(plain: Mapping) -> Settings:
    """Build settings from a file's values."""
    values = checked_fields("the settings", Settings, plain)
    if not isinstance(values["reasons"], list):
        raise BadInput(f"reasons are {values['reasons']!r}; they must be a list of texts")
    placement = None if values["placement"] is None else Placement(**checked_fields("placement", Placement, values["placement"]))
    there = Fingerprint(**checked_fields("fingerprint", Fingerprint, values["fingerprint"]))
    return Settings(**{**values, "reasons": tuple(values["reasons"]), "placement": placement, "fingerprint": there})


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
    require_fit(path, settings, gpu, head, environment)
    return settings


def require_fit(path: Path | str, settings: Settings, gpu: Gpu, head: Head | None = None, environment: Mapping | None = None) -> None:
    """Raise SettingsMismatch, as `load_settings` says, for settings that were read before."""
    here: dict[str, object] = {"gpu_id": gpu.id, "sm_count": (environment or {}).get("gpu_sm_count") or gpu.sm_count}
    here |= {name: value for name, value in (environment or {}).items() if name in ENVIRONMENT_FIELDS and value is not None}
    here |= _shape(head) if head is not None else {}
    if differences := differing(asdict(settings.fingerprint), here):
        raise SettingsMismatch(path, differences)
