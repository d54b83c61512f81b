"""From settings to a walk: what is prepared, and what is refused with every difference. The walk itself is a twin."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

import wts_lab  # noqa: E402
from cost_model.decide import extra_memory_bytes  # noqa: E402
from cost_model.errors import BadInput  # noqa: E402
from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.placement import Placement  # noqa: E402
from cost_model.settings import Settings, SettingsError, SettingsMismatch, fingerprint, write_settings  # noqa: E402
from tests.twin_walk import TwinWalk  # noqa: E402
from wts_lab import deploy  # noqa: E402
from wts_lab.heads import HEAD_CLASSES, GatedHead, MarkovHead  # noqa: E402
from wts_lab.tuned import Tuned, TunedFor  # noqa: E402
from wts_lab.weights import prepare_weights  # noqa: E402

H200 = load_gpu("h200-sxm", calibrated=False)
HEAD = MarkovHead.random(300, 64, padded_vocab_size=304, target_vocab_size=320, seed=1)
PLACEMENT = Placement(8, 40, 32, 0, 0)
SETTINGS = Settings("deploy streaming", "streaming", "int8x2", PLACEMENT, None, 3, 5, 0.0, "twice", "serving", (), "measured here", 0,
                    fingerprint(H200, HEAD.shape, "int8x2", PLACEMENT, {"gpu_name": "NVIDIA H200", "driver_version": "1", "kernel_hash": "c0ffee"}))  # fmt: skip


@pytest.fixture
def machine(monkeypatch):
    """The H200 of the settings, with their kernels; tests change it."""
    about = SimpleNamespace(name="NVIDIA H200", multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: about)
    monkeypatch.setattr("wts_lab.walk.device_gpu", lambda device: H200)
    monkeypatch.setattr("wts_lab.walk.Walk", TwinWalk)
    monkeypatch.setattr(deploy, "walk_sources_hash", lambda: "c0ffee")
    return about


@pytest.fixture
def path(tmp_path):
    return write_settings(SETTINGS, tmp_path / "settings.json")


def test_the_walk_is_the_one_of_the_file(path, machine):
    walk = wts_lab.load_settings(path, HEAD, device="cuda:1")
    assert walk.head is HEAD and walk.placement == PLACEMENT and walk.device == "cuda:1"
    assert (walk.steps, walk.max_batch, walk.mode, walk.precision, walk.rounding, walk.sampling) == (5, 3, "streaming", "int8x2", "twice", False)


def test_a_temperature_asks_for_a_kernel_that_samples(tmp_path, machine):
    assert wts_lab.load_settings(write_settings(replace(SETTINGS, temperature=0.7), tmp_path / "s.json"), HEAD).sampling


def test_a_checkpoint_is_read_with_the_settings_logical_vocabulary(path, machine, tmp_path):
    torch_files = pytest.importorskip("safetensors.torch")
    torch_files.save_file({f"markov_head.{name}": weight for name, weight in HEAD.state_dict().items()}, tmp_path / "model.safetensors")
    walk = wts_lab.load_settings(path, tmp_path / "model.safetensors")
    assert walk.head.vocab_size == 300 and torch.equal(walk.head.projection, HEAD.projection)


def test_without_a_head_the_weights_are_random_and_a_warning_says_so(path, machine):
    with pytest.warns(UserWarning, match="no head was given with .*settings.json: the walk has random weights"):
        walk = wts_lab.load_settings(path)
    assert walk.head.shape.as_dict() == {**HEAD.shape.as_dict(), "name": "markov-300-r64"}


def test_another_machine_and_shape_are_refused_with_every_difference(path, machine, monkeypatch):
    machine.multi_processor_count = 66
    monkeypatch.setattr("wts_lab.walk.device_gpu", lambda device: load_gpu("h100-sxm", calibrated=False))
    monkeypatch.setattr(deploy, "walk_sources_hash", lambda: "decade")
    with pytest.raises(SettingsMismatch) as refusal:
        wts_lab.load_settings(path, HEAD)
    assert refusal.value.differences == {"gpu_id": ("h200-sxm", "h100-sxm"), "sm_count": (132, 66), "kernel_hash": ("c0ffee", "decade")}


def test_another_shape_is_refused_with_every_difference(path, machine):
    with pytest.raises(SettingsMismatch) as refusal:
        wts_lab.load_settings(path, GatedHead.random(300, 64, hidden_size=32))
    assert refusal.value.differences == {
        "head_kind": ("markov", "gated"), "target_vocab_size": (320, 300), "padded_vocab_size": (304, 300), "hidden_size": (None, 32),
    }


def test_settings_that_nobody_measured_hold_nowhere(tmp_path, machine):
    replayed = replace(SETTINGS, source="replayed", fingerprint=replace(SETTINGS.fingerprint, kernel_hash=None))
    with pytest.raises(SettingsMismatch, match="kernel_hash is None in the file and 'c0ffee' here"):
        wts_lab.load_settings(write_settings(replayed, tmp_path / "s.json"), HEAD)


def test_a_verdict_to_keep_the_engines_path_gives_no_walk(tmp_path, machine):
    kept = replace(SETTINGS, verdict="no material gain", mode="stepwise", precision=None, placement=None, reasons=("the gain is 0.1 %",),
                   fingerprint=fingerprint(H200, HEAD.shape, None, None))  # fmt: skip
    with pytest.raises(BadInput, match="'no material gain', so there is no walk to prepare: the gain is 0.1 %"):
        wts_lab.load_settings(write_settings(kept, tmp_path / "s.json"), HEAD)
    with pytest.raises(SettingsError, match="cannot be read"):
        wts_lab.load_settings(tmp_path / "nowhere.json", HEAD)


@pytest.mark.parametrize(("kind", "precision"), [*((kind, "int8x2") for kind in ("markov", "gated", "rnn", "domino")), ("markov", "bf16")])
def test_the_memory_stated_is_what_preparing_a_walk_takes(kind, precision):
    sizes = {} if kind == "markov" else {"hidden_size": 96} | ({"gru_size": 64} if kind == "domino" else {})
    head = HEAD_CLASSES[kind].random(300, 64, target_vocab_size=320, padded_vocab_size=304, seed=1, **sizes)
    weights = prepare_weights(head, precision, torch.device("cpu"))
    own = {weight.untyped_storage().data_ptr() for weight in head.parameters()}
    made = [tensor for tensor in vars(weights).values() if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in own]
    assert extra_memory_bytes(head.shape, "resident", precision) == sum(tensor.nbytes for tensor in made)


TUNED = Tuned(TunedFor.of("NVIDIA H200", 132, "c0ffee", HEAD.shape, mode="resident", precision="int8x2", rounding="twice", batch=4, sampling=True),
              PLACEMENT, "spread-lines", "the planner's choice stays", 3.0, 3.0, "warm", "a-record")  # fmt: skip


def test_a_tuned_walk_can_be_deployed_by_hand(tmp_path, machine):
    settings = deploy.settings_of_tuned(TUNED, H200, HEAD.shape, steps=7, temperature=0.8)
    walk = wts_lab.load_settings(write_settings(settings, tmp_path / "s.json"), HEAD)
    assert (walk.steps, walk.max_batch, walk.mode, walk.rounding, walk.sampling, walk.placement) == (7, 4, "resident", "twice", True, PLACEMENT)
    assert settings.verdict == "deploy resident" and settings.reasons[-1].endswith("no engine's path was compared") and settings.extra_memory_bytes > 0


def test_a_tuned_walk_of_something_else_is_not(machine):
    with pytest.raises(BadInput, match="vocab_size is 300 in the tuned file and 299 here; sampling is True in the tuned file and False here"):
        deploy.settings_of_tuned(TUNED, H200, replace(HEAD.shape, vocab_size=299), steps=7)
    with pytest.raises(BadInput, match="exchange dense-lines; settings stand for spread-lines"):
        deploy.settings_of_tuned(replace(TUNED, exchange="dense-lines"), H200, HEAD.shape, steps=7, temperature=1.0)
