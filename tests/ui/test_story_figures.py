"""Figures and tables of the notebooks 10 to 13: the numbers in them are those of the results."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("pandas", reason="tables need pandas")
pytest.importorskip("pyarrow", reason="records need pyarrow")

from cost_model.errors import BadInput  # noqa: E402
from cost_model.gpu import load_gpu  # noqa: E402
from cost_model.head import Head, load_head  # noqa: E402
from cost_model.head_memory import head_memory, on_chip_bytes  # noqa: E402
from cost_model.units import BYTES_PER_MIB  # noqa: E402
from cost_model.workload import Workload  # noqa: E402
from tests.synthetic_probes import write_probes  # noqa: E402
from tests.synthetic_records import LINES_US, write_synthetic  # noqa: E402
from wts_lab.engine_step import engine_steps  # noqa: E402
from wts_lab.goals import GOALS, reached  # noqa: E402
from wts_lab.head_shares import drafters_with_heads, head_shares  # noqa: E402
from wts_lab.head_steps import head_step  # noqa: E402
from wts_lab.ui.footprint_figures import engine_step_spec, head_memory_spec, head_shares_spec  # noqa: E402
from wts_lab.ui.footprint_tables import engine_steps_table, head_memory_table, head_shares_table  # noqa: E402
from wts_lab.ui.head_steps_figure import head_steps_spec  # noqa: E402
from wts_lab.ui.walked_figure import ORDER, walked_figure, walked_spec  # noqa: E402
from wts_lab.ui.walked_tables import goals_table, head_steps_table, parts_table, walked_table  # noqa: E402
from wts_lab.walked import walked  # noqa: E402

GPU = load_gpu("h200-sxm")
SMALL, LARGE = Head.markov(151_936, 256), Head.markov(248_320, 256)
RNN = Head("rnn-test", "rnn", 151_936, 151_936, 151_936, 256, 2560)
ENTRY_US, STEP_US = LINES_US["wts", "resident", "resident", "int8x2"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Synthetic walks of one greedy row, V 151,936."""
    return write_synthetic(tmp_path_factory.mktemp("stories"))


@pytest.fixture(scope="module")
def series(records):
    """Resident walks of three batches and the engine's, of which batch 1 was recorded of ours and published of the engine."""
    return {
        "resident": [walked(GPU, SMALL, Workload(batch=batch), "resident", records=records) for batch in (4, 1, 16)],
        "engine": [walked(GPU, SMALL, Workload(batch=batch, precision="bf16"), "stepwise", records=records) for batch in (1, 4, 16)],
    }


def named(spec: dict, name: str) -> dict:
    """The one trace of that name."""
    (found,) = [trace for trace in spec["data"] if trace["name"] == name]
    return found


# --- walks along an axis -------------------------------------------------------------------------------------------------


def test_steps_over_the_batch_are_the_walks_own(series) -> None:
    spec = walked_spec(series, along="batch", goals=GOALS)
    predicted, measured, band = (named(spec, f"resident, {part}") for part in ("predicted", "measured", "predicted band"))
    ordered = sorted(series["resident"], key=lambda walk: walk.workload.batch)
    assert predicted["x"] == [1, 4, 16] and predicted["y"] == [walk.prediction.step_us for walk in ordered]
    assert band["y"] == [walk.prediction.step_us_high for walk in ordered] + [walk.prediction.step_us_low for walk in ordered][::-1]
    assert measured["x"] == [1] and measured["y"] == [pytest.approx(STEP_US, rel=0.01)]
    published = named(spec, "engine, published")
    assert published["x"] == [1, 4, 16] and published["y"][0] == pytest.approx((658.66 - 49.14) / 15, rel=0.01)
    goals = named(spec, "goal")
    assert list(zip(goals["x"], goals["y"])) == [(4, 2.5), (16, 5.2)], "only goals of walks that are shown, and of a step"
    texts = " ".join(label["text"] for label in spec["layout"]["annotations"])
    assert "resident" in texts and "predicted" in texts and "published" in texts


def test_calls_over_the_batch_and_over_their_length(series) -> None:
    spec = walked_spec(series, along="batch", call_steps=16, goals=GOALS)
    assert named(spec, "resident, measured")["y"] == [pytest.approx(ENTRY_US + 16 * STEP_US, rel=0.01)]
    assert named(spec, "engine, published")["y"][0] == 658.66 and named(spec, "goal")["y"] == [41.0]
    one = [walk for walk in series["resident"] if walk.workload.batch == 1]
    spec = walked_spec({"resident": one, "engine": series["engine"][:1]}, along="steps", goals=GOALS)
    assert named(spec, "resident, measured")["x"] == [1, 2, 4, 7, 11, 15, 16] and named(spec, "engine, published")["x"] == [1, 7, 16]
    assert named(spec, "goal")["x"] == [16]
    assert "complete call" in spec["layout"]["yaxis"]["title"]["text"]


def test_the_axis_holds_all_that_is_drawn_and_vocabularies_stand_where_they_are(series, records) -> None:
    heads = [SMALL, LARGE, Head.markov(154_880, 256)]
    spec = walked_spec({"resident": [walked(GPU, head, Workload(), "resident", records=records) for head in heads]}, along="vocabulary", goals=GOALS)
    assert named(spec, "resident, predicted")["x"] == [151_936, 154_880, 248_320] and named(spec, "goal")["x"] == [248_320]
    assert spec["layout"]["xaxis"]["tickvals"] == [151_936, 248_320], "ticks that would write over one another are left out"
    low, high = spec["layout"]["yaxis"]["range"]
    assert all(low < math.log10(y) < high for trace in spec["data"] for y in trace["y"])


def test_what_cannot_be_drawn_is_refused(series) -> None:
    with pytest.raises(BadInput, match="along is 'rank'; choose one of batch, vocabulary, steps"):
        walked_spec(series, along="rank")
    with pytest.raises(BadInput, match=f"a figure tells {len(ORDER)} apart"):
        walked_spec({str(number): () for number in range(len(ORDER) + 1)}, along="batch")


def test_tables_of_walks_and_goals_say_what_is_not_known(series, records) -> None:
    table = walked_table(series)
    assert list(table.loc["resident"]["step, measured"])[0] == "n/a" and table.loc["resident"]["step, measured"].iloc[1].startswith("2.5")
    assert list(table.loc["engine"]["held"]) == ["n/a"] * 3
    goals = goals_table(reached(GPU, records=records))
    assert len(goals) == len(GOALS) and set(goals["verdict"]) <= {"reached", "missed", "at the goal", "not recorded"}
    assert goals.loc["greedy, batch 1, call of 16 steps"]["verdict"].iloc[0] == "missed"


# --- heads ---------------------------------------------------------------------------------------------------------------


def test_parts_of_a_step_are_stacked_as_measured_and_as_predicted(tmp_path) -> None:
    write_probes(tmp_path, RNN, {"products": 0.7, "epilogue": 0.2, "publish": 0.3, "exchange": 0.6, "latent": 0.9}, {"walk_state": 1.5})
    steps = [head_step(GPU, "Markov", SMALL, Workload(), records=tmp_path), head_step(GPU, "RNN", RNN, Workload(), records=tmp_path)]
    spec = head_steps_spec(steps)
    bars = [trace for trace in spec["data"] if trace["type"] == "bar"]
    full, hatched = ([trace for trace in bars if ("pattern" in trace["marker"]) == is_hatched] for is_hatched in (False, True))
    assert sum(x for trace in full for x in trace["x"]) == pytest.approx(2.7)
    assert sum(x for trace in hatched for x in trace["x"]) == pytest.approx(sum(each.walk.prediction.step_us for each in steps))
    assert spec["layout"]["yaxis"]["ticktext"] == ["<b>Markov</b> ", "<b>RNN</b> "]
    table = parts_table(steps)
    assert table.loc["RNN", "agreement"].startswith("0.900 µs / ") and table.loc["RNN", "step without either"] == "1.50 µs"
    assert table.loc["Markov", "products"].startswith("n/a / ")
    assert list(head_steps_table(steps)["basis"]) == ["published", "published"]


def test_bars_of_memory_are_the_heads_bytes_beside_what_the_chip_holds() -> None:
    memories = [head_memory(load_head(name)) for name in ("dspark-qwen3-8b", "domino-qwen3-8b", "dspark-qwen3.5-r512")]
    spec = head_memory_spec(memories, GPU)
    stepwise, fused = (named(spec, name) for name in ("stepwise, bf16", "fused, int8x2"))
    assert stepwise["y"] == ["dspark-qwen3.5-r512", "dspark-qwen3-8b", "domino-qwen3-8b"], "largest first"
    assert stepwise["x"][1] == 2 * 151_936 * 256 / BYTES_PER_MIB and fused["x"][1] == 151_936 * 256 / BYTES_PER_MIB
    lines = sorted(shape["x0"] for shape in spec["layout"]["shapes"])
    assert lines == sorted([GPU.value("l2_bytes") / BYTES_PER_MIB, on_chip_bytes(GPU) / BYTES_PER_MIB])
    table = head_memory_table(memories, GPU)
    assert table.loc["dspark-qwen3-8b", "weights, bf16"] == "148 MiB" and table.loc["dspark-qwen3-8b", "of the tiles on chip"] == "100 %"
    assert "of the tiles on chip" not in head_memory_table(memories)


def test_an_engines_step_is_drawn_in_its_parts_beside_complete_calls(records) -> None:
    steps = engine_steps(GPU, LARGE, Workload(), records=records)
    spec = engine_step_spec(steps)
    for place, step in enumerate(steps):
        drawn = [x for trace in spec["data"] if trace["type"] == "bar" for x, y in zip(trace["x"], trace["y"]) if y == place]
        assert sum(drawn) == pytest.approx(step.parts_us)
    whole = named(spec, "a step of complete calls")
    assert whole["x"] == [step.step_us for step in steps] and set(whole["marker"]["symbol"]) == {"diamond-open"}
    table = engine_steps_table(steps)
    assert table.loc[("MarkovGreedyStep, greedy", "a step of complete calls"), "basis"] == "published"


def test_shares_of_a_round_sum_to_the_whole(records) -> None:
    shares = head_shares(GPU, drafters_with_heads(), records=records)
    spec = head_shares_spec(shares)
    rows: dict[str, float] = {}
    for trace in spec["data"]:
        for label, share in zip(trace["y"], trace["x"]):
            rows[label] = rows.get(label, 0.0) + share
    assert len(rows) == len(shares) and all(total == pytest.approx(100.0) for total in rows.values())
    assert shares[0].phases["verify"].basis in spec["layout"]["title"]["text"]
    table = head_shares_table(shares)
    assert len(table) == len(shares) and set(table["basis"]) <= {"measured", "predicted"}


def test_specs_are_figures_that_plotly_takes(series) -> None:
    pytest.importorskip("plotly")
    assert len(walked_figure(series, along="batch").data) == 4 * len(series) + 1
