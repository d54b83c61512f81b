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
SETTINGS = Settings("deploy resident", "resident", "int8x2", PLACEMENT, None, 1, 16, 0.0, "once", "serving", ("it is faster",), "measured here", 119_000_000,
                    fingerprint(H200, QWEN, "int8x2", PLACEMENT, ENVIRONMENT))


@pytest.fixture
def path(tmp_path):
    return write_settings(SETTINGS, tmp_path / "settings.json")


def test_settings_read_back_equal(path):
    assert read_settings(path) == SETTINGS
    assert load_settings(path, H200, QWEN, ENVIRONMENT) == SETTINGS
    assert json.loads(path.read_text())["schema_version"] == 2


def test_settings_without_placement_read_back(tmp_path):
    kept = replace(SETTINGS, verdict="keep the engine's path", mode="stepwise", precision=None, placement=None, engine_path="sglang-0.5.23 (greedy)",
                   fingerprint=fingerprint(H200, QWEN, None, None, ENVIRONMENT))
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
    ("", "cannot be read"), ('{"form": "weights-that-stay sett', "cannot be read"), ("[]", "holds no JSON object"), ('{"verdict": 1}', "no file of this tool"),
    ('{"form": "weights-that-stay settings", "schema_version": 1}', "version 2"), ('{"form": "weights-that-stay settings", "schema_version": 2}', "lacks batch"),
])
def test_foreign_and_truncated_files_are_refused(tmp_path, text, word):
    path = tmp_path / "settings.json"
    path.write_text(text)
    with pytest.raises(SettingsError, match=word):
        read_settings(path)


WRONG = [
    (dict(mode="teleport"), "mode is 'teleport'; choose one of stepwise"), (dict(verdict="buy milk"), "verdict is 'buy milk'"),
    (dict(source="measured"), "source is 'measured'; choose one of measured here, replayed"), (dict(steps="many"), "steps is 'many'; it must be a whole number"),
    (dict(batch=-1), "batch is -1"), (dict(temperature="hot"), "temperature is 'hot'"), (dict(l2_state="tepid"), "l2_state is 'tepid'"),
    (dict(rounding=3), "rounding is 3"), (dict(extra_memory_bytes=-5), "extra_memory_bytes is -5"), (dict(reasons="because"), "list of texts"),
    (dict(reasons=[1]), "reason 1 is 1; it must be a text"), (dict(engine_path=7), "engine_path is 7; it must be a text, or null"),
    (dict(temperature=0.5, rounding="none"), "rounding is none at temperature 0.5; a sampled walk draws from logits rounded to bf16"), (dict(precision="fp4"), "precision is 'fp4'"),
    (dict(precision=None), "precision None"), (dict(mode="stepwise"), "stepwise has neither"), (dict(mode="streaming"), "deploy resident.*mode streaming"),
    (dict(placement=None), "no placement"), (dict(placement="big"), "placement is 'big'; it must be a table"),
    (dict(placement=dict(warps=8)), "placement lacks register_tiles"), (dict(foo=1), "the settings has unknown fields foo"), (dict(fingerprint=[]), "must be a table"),
]


@pytest.mark.parametrize("change, words", WRONG)
def test_nonsense_is_refused_in_words_with_the_file(path, change, words):
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, **change}))
    with pytest.raises(SettingsError, match=words) as caught:
        read_settings(path)
    assert str(caught.value).startswith(f"{path}: ") and "__init__" not in str(caught.value) and "mapping" not in str(caught.value)


@pytest.mark.parametrize("change, words", [
    (dict(register_tiles=400), "placement is .*400.*in the fingerprint; they must be equal"), (dict(register_tiles=-4), "register_tiles is -4"),
    (dict(tiles=4), "placement has unknown fields tiles"),
])
def test_a_changed_placement_is_refused(path, change, words):
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "placement": {**plain["placement"], **change}}))
    with pytest.raises(SettingsError, match=words) as caught:
        read_settings(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("change, words", [
    (dict(sm_count=0), "sm_count is 0"), (dict(rank=100), "rank is 100"), (dict(gpu_id=4), "gpu_id is 4"), (dict(kernel_hash=4), "kernel_hash is 4"),
    (dict(head_kind="bald"), "head kind is 'bald'|head_kind is 'bald'"), (dict(vocab_size="big"), "vocab_size is 'big'"), (dict(precision="bf16"), "precision is 'int8x2', but 'bf16'"),
])
def test_a_wrong_fingerprint_is_refused(path, change, words):
    plain = json.loads(path.read_text())
    path.write_text(json.dumps({**plain, "fingerprint": {**plain["fingerprint"], **change}}))
    with pytest.raises(SettingsError, match=words):
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
