"""The published schema of settings, and the loader: what one refuses the other does, but for what a schema cannot say."""

import copy
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema, which nbformat brings")

from cost_model.paths import data_root  # noqa: E402
from cost_model.settings import SettingsError, read_settings  # noqa: E402
from cost_model.settings_schema import settings_schema  # noqa: E402
from tests.cost_model.test_settings import SETTINGS  # noqa: E402

VALID = jsonschema.Draft202012Validator(settings_schema())
PLAIN = SETTINGS.as_dict()
PATHS = [(name,) for name in PLAIN] + [("fingerprint", name) for name in PLAIN["fingerprint"]] + [("placement", name) for name in PLAIN["placement"]]
OPTIONAL = {("fingerprint", name) for name in ("gpu_name", "driver_version", "cuda_version", "kernel_hash")} | {("placement", "tensor_tiles")}
BEYOND_A_SCHEMA = ("they must be equal", "must be a multiple of warps", "holds no tile", "staging", "below vocab_size", "head needs", "must be a whole number")
"""Words of refusals that rest on two fields at once; and a number such as 8.0, which JSON Schema counts as whole."""

odd_values = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 10**7), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5), st.just([]), st.just({}),
    st.sampled_from(["resident", "streaming", "stepwise", "bf16", "once", "warm", "markov", "gated", "predicted", "no material gain"]),
)  # fmt: skip


def refusal(plain: dict, folder) -> str | None:
    """What the loader says of these values; None where it takes them."""
    path = folder / "settings.json"
    path.write_text(json.dumps(plain))
    try:
        read_settings(path)
    except SettingsError as error:
        return str(error)
    return None


def test_the_shipped_schema_is_the_one_of_this_code():
    shipped = (data_root() / "schemas" / "settings.schema.json").read_text("utf-8")
    assert json.loads(shipped) == settings_schema(), "print it anew: python -m cost_model.settings_schema > data/schemas/settings.schema.json"
    jsonschema.Draft202012Validator.check_schema(settings_schema())


def test_settings_that_are_written_are_valid():
    VALID.validate(json.loads(json.dumps(PLAIN)))


@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_a_missing_field_is_refused_by_both(path, tmp_path):
    plain = copy.deepcopy(PLAIN)
    del (plain[path[0]] if len(path) == 2 else plain)[path[-1]]
    assert (refusal(plain, tmp_path) is None) == VALID.is_valid(plain) or path == ("placement", "tensor_tiles")
    assert (refusal(plain, tmp_path) is None) == (path in OPTIONAL)


@pytest.mark.parametrize(("temperature", "rounding", "fine"), [(0, "none", True), (0.5, "twice", True), (0.5, "none", False)])
def test_a_sampled_walk_rounds_its_logits(temperature, rounding, fine, tmp_path):
    plain = PLAIN | {"temperature": temperature, "rounding": rounding}
    assert (refusal(plain, tmp_path) is None) == VALID.is_valid(plain) == fine


@given(st.sampled_from(PATHS), odd_values)
def test_a_changed_field_is_refused_by_both_or_by_neither(tmp_path_factory, path, value):
    plain = copy.deepcopy(PLAIN)
    (plain[path[0]] if len(path) == 2 else plain)[path[-1]] = value
    said = refusal(plain, tmp_path_factory.mktemp("settings"))
    assume(said is None or not any(words in said for words in BEYOND_A_SCHEMA))
    assert (said is None) == VALID.is_valid(plain), said or list(VALID.iter_errors(plain))
