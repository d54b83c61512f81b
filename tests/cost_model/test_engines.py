"""Engine descriptions: what ships, and what is refused."""

import pytest

from cost_model.catalogue import CatalogueError
from cost_model.engines import COLD_ENTRY, FIGURES, UnknownImplementation, list_engines, load_engine
from cost_model.errors import BadInput
from cost_model.workload import Workload


def test_shipped_engines_are_whole():
    assert {"sglang-0.5.23", "torch-stepwise"} <= set(list_engines())
    for name in list_engines():
        engine = load_engine(name)
        assert engine.name == name and engine.paths
        for path in engine.paths:
            assert set(path.figures) - {COLD_ENTRY} == set(FIGURES) and path.nodes > 0
            assert 0 < path.figures["read_efficiency"].value <= 1


@pytest.mark.parametrize("batch, temperature, variant", [(1, 0.0, "greedy"), (1, 0.7, "sample"), (4, 0.0, "sample"), (16, 1.0, "sample")])
def test_sglang_takes_the_path_that_its_source_takes(batch, temperature, variant):
    assert load_engine("sglang-0.5.23").path(Workload(batch=batch, temperature=temperature)).variant == variant


def test_unknown_names_list_what_is_known():
    with pytest.raises(UnknownImplementation, match="'vllm'.*sglang-0.5.23, torch-stepwise"):
        load_engine("vllm")
    with pytest.raises(BadInput, match="known are"):
        load_engine("../engines/sglang-0.5.23")


def test_a_broken_description_is_named(tmp_path, monkeypatch):
    (tmp_path / "engines").mkdir()
    (tmp_path / "engines" / "odd.toml").write_text('schema_version = 1\nname = "odd"\nspeed = 3\n')
    monkeypatch.setattr("cost_model.engines.data_root", lambda: tmp_path)
    with pytest.raises(CatalogueError, match="odd.toml"):
        load_engine("odd")
