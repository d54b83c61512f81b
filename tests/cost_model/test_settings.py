"""Settings files: written whole, read back equal, and refused elsewhere field by field."""

import json
from dataclasses import replace

import pytest

from cost_model.gpu import load_gpu
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.settings import Settings, SettingsError, SettingsMismatch, fingerprint, load_settings, read_settings, write_settings
from tests.cost_model.walk_examples import QWEN

H200, H100 = load_gpu("h200-sxm", calibrated=False), load_gpu("h100-sxm", calibrated=False)
ENVIRONMENT = {"gpu_name": "NVIDIA H200", "driver_version": "580.1", "cuda_version": "13.0", "kernel_hash": "abc123"}
PLACEMENT = Placement(8, 40, 32, 0, 0)
SETTINGS = Settings("deploy resident", "resident", "int8x2", PLACEMENT, None, 1, 16, 0.0, "once", "serving", ("it is faster",), "measured", 119_000_000,
                    fingerprint(H200, QWEN, "int8x2", PLACEMENT, ENVIRONMENT))


@pytest.fixture
def path(tmp_path):
    return write_settings(SETTINGS, tmp_path / "settings.json")


def test_settings_read_back_equal(path):
    assert read_settings(path) == SETTINGS
    assert load_settings(path, H200, QWEN, ENVIRONMENT) == SETTINGS
    assert json.loads(path.read_text())["schema_version"] == 1


def test_settings_without_placement_read_back(tmp_path):
    kept = replace(SETTINGS, verdict="keep the engine's path", mode="stepwise", placement=None, engine_path="sglang-0.5.23 (greedy)")
    assert read_settings(write_settings(kept, tmp_path / "s.json")) == kept


def test_another_gpu_is_refused_with_both_values(path):
    with pytest.raises(SettingsMismatch, match="'h200-sxm' in the file and 'h100-sxm' here") as caught:
        load_settings(path, H100)
    assert caught.value.differences == {"gpu_id": ("h200-sxm", "h100-sxm")}


def test_every_differing_field_is_listed(path):
    other = {**ENVIRONMENT, "driver_version": "999", "kernel_hash": "zzz", "gpu_sm_count": 16}
    with pytest.raises(SettingsMismatch) as caught:
        load_settings(path, H200, Head.markov(129_280, 128), other)
    assert set(caught.value.differences) == {"sm_count", "driver_version", "kernel_hash", "vocab_size", "target_vocab_size", "padded_vocab_size", "rank"}
    assert all(field in str(caught.value) for field in caught.value.differences) and "Run `wts-lab study`" in str(caught.value)


def test_what_is_not_known_here_is_not_compared(path):
    assert load_settings(path, H200, environment={"driver_version": None}) == SETTINGS


@pytest.mark.parametrize("text, word", [
    ("", "cannot be read"), ('{"form": "weights-that-stay sett', "cannot be read"), ("[]", "not a settings file"), ('{"verdict": 1}', "not a settings file"),
    ('{"form": "weights-that-stay settings", "schema_version": 7}', "version 1"), ('{"form": "weights-that-stay settings", "schema_version": 1}', "missing"),
])
def test_foreign_and_truncated_files_are_refused(tmp_path, text, word):
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=word):
        read_settings(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="nowhere"):
        read_settings(tmp_path / "nowhere.json")


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_text()
    monkeypatch.setattr("json.dumps", lambda *a, **k: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError):
        write_settings(SETTINGS, path)
    assert path.read_text() == before and list(path.parent.iterdir()) == [path]
