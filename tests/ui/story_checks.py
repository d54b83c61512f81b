"""What the executed notebooks 5 and 10 to 13 must show: numbers in their outputs against the same numbers computed here from the records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cost_model.gpu import load_gpu
from cost_model.head import Head, load_head
from cost_model.head_memory import head_memory
from cost_model.units import format_bytes, format_us
from cost_model.workload import Workload

PLOTLY = "application/vnd.plotly.v1+json"
SMALL, LARGE = Head.markov(151_936, 256), Head.markov(248_320, 256)


def pictures(code: list) -> list[dict]:
    """Every figure of a notebook, in order."""
    return [output["data"][PLOTLY] for cell in code for output in cell.outputs if PLOTLY in output.get("data", {})]


def trace(picture: dict, name: str) -> dict:
    """The one trace of that name."""
    (found,) = [each for each in picture["data"] if each.get("name") == name]
    return found


def texts(code: list) -> str:
    """All text of a notebook's outputs."""
    return "".join(str(output.get("data", {}).get("text/plain", "")) for cell in code for output in cell.outputs)


def check_the_round(code: list, picture: dict, table: dict) -> None:
    """Notebook 5: the recorded rounds are drawn, each with its gain."""
    from cost_model.units import format_percent
    from wts_lab.recorded_rounds import recorded_rounds

    drawn = next(each for each in pictures(code) if "Recorded rounds" in each["layout"]["title"]["text"])
    gains = [gain for gain in recorded_rounds(load_gpu("h200-sxm")).over_taken("qwen3-4b") if gain.stands]
    assert gains and all(f"+{format_percent(gain.gain)}" in "".join(trace(drawn, "whole round")["text"]) for gain in gains)


def check_memory_and_share(code: list, picture: dict, table: dict) -> None:
    """Notebook 10: the step at V 248,320 sums to its parts, a round to 100 %, and the table has a head's bytes."""
    from wts_lab.engine_step import engine_steps

    gpu, (weights, step, _) = load_gpu("h200-sxm"), pictures(code)
    assert trace(weights, "stepwise, bf16")["y"][0] == "dspark-qwen3.5-r512", "the largest head first"
    for place, each in enumerate(engine_steps(gpu, load_head("dspark-qwen3.8-27b"), Workload())):
        drawn = [x for one in step["data"] if one["type"] == "bar" for x, y in zip(one["x"], one["y"]) if y == place]
        assert sum(drawn) == pytest.approx(each.parts_us)
        assert each.parts_us == pytest.approx(each.step_us, rel=0.25), "parts and complete calls agree as far as a profiler lets them"
    shares = picture["data"][PLOTLY]["data"]
    first = shares[0]["y"][0]
    assert sum(x for one in shares for x, y in zip(one["x"], one["y"]) if y == first) == pytest.approx(100)
    assert format_bytes(head_memory(load_head("dspark-qwen3-8b")).step_read_bytes) in table["data"]["text/html"]


def check_batch_length_vocabulary(code: list, picture: dict, table: dict) -> None:
    """Notebook 11: measured steps are the fits of the records, and the goals' verdicts those of their intervals."""
    from wts_lab.goals import reached
    from wts_lab.walked import walked

    gpu = load_gpu("h200-sxm")
    by_batch = pictures(code)[0]
    for batch, step_us in zip(trace(by_batch, "greedy, measured")["x"], trace(by_batch, "greedy, measured")["y"]):
        assert step_us == pytest.approx(walked(gpu, SMALL, Workload(batch=batch), "resident").fit.step_us)
    shown = picture["data"][PLOTLY]
    for head in (SMALL, LARGE):
        steps = dict(zip(trace(shown, "resident int8x2, measured")["x"], trace(shown, "resident int8x2, measured")["y"]))
        assert steps[head.vocab_size] == pytest.approx(walked(gpu, head, Workload(), "resident").fit.step_us)
    assert (248_320, 3.2) in zip(trace(shown, "goal")["x"], trace(shown, "goal")["y"])
    html = table["data"]["text/html"]
    for each in reached(gpu):
        assert each.goal.what in html and each.verdict in html
        assert each.measured_us is None or format_us(each.measured_us[0]) in html


def check_recurrent_heads(code: list, picture: dict, table: dict) -> None:
    """Notebook 12: predicted bars sum to predicted steps, measured ones to the clocks' phases, and the table has each step."""
    from wts_lab.goals import DOMINO, RNN
    from wts_lab.recorded_probes import dissect
    from wts_lab.walked import walked

    gpu, shown = load_gpu("h200-sxm"), picture["data"][PLOTLY]
    names = [text.strip().removeprefix("<b>").removesuffix("</b>") for text in shown["layout"]["yaxis"]["ticktext"]]
    bars = [each for each in shown["data"] if each["type"] == "bar"]
    for name, head in (("RNN", RNN), ("Domino", DOMINO), ("Markov", SMALL)):
        walk, place = walked(gpu, head, Workload(), "resident"), names.index(name)
        rows = [(x, "pattern" in each["marker"]) for each in bars for x, y in zip(each["x"], each["y"]) if round(y) == place]
        assert sum(x for x, is_predicted in rows if is_predicted) == pytest.approx(walk.prediction.step_us)
        assert sum(x for x, is_predicted in rows if not is_predicted) == pytest.approx(sum(dissect(gpu, head, Workload()).phases_us.values()))
        assert format_us(walk.fit.step_us) in table["data"]["text/html"]


def check_validation(code: list, picture: dict, table: dict) -> None:
    """Notebook 13: the picture has every held-out walk, and the table the accuracies of `cost_model.validation` over them."""
    from cost_model.units import format_percent
    from cost_model.validation import HELD_OUT_BATCH, HELD_OUT_VOCABULARY, accuracy
    from wts_lab.validated import KINDS, validated

    result = validated()
    held_out = [*result.points[HELD_OUT_VOCABULARY], *result.points[HELD_OUT_BATCH]]
    markers = [each for each in picture["data"][PLOTLY]["data"] if each["mode"] == "markers"]
    drawn = sorted((x, y) for each in markers for x, y in zip(each["x"], each["y"]))
    assert [step for pair in drawn for step in pair] == pytest.approx([step for pair in sorted((point.measured_us, point.predicted_us) for point in held_out) for step in pair])
    html = table["data"]["text/html"]
    for kind in KINDS:
        if kind in result.points:
            found = accuracy(result.points[kind])
            assert kind in html and format_percent(found.median_share) in html and format_percent(found.worst_share) in html
    assert f"{len(result.points[HELD_OUT_VOCABULARY])} rows" in "".join(str(output.get("data", {}).get("text/html", "")) for cell in code for output in cell.outputs)


STORY_CHECKS: dict[str, Callable[[list, dict, dict], None]] = {
    "05_round_and_decision": check_the_round,
    "10_memory_and_latency_share": check_memory_and_share,
    "11_batch_length_vocabulary": check_batch_length_vocabulary,
    "12_recurrent_heads": check_recurrent_heads,
    "13_validation": check_validation,
}
"""By the notebook's name: what its code cells, its last picture and its last table must hold."""
