"""Published times and claims: complete, consistent with their sidecars, and with the figures that the design quotes."""

import pytest

from cost_model.gpu import list_gpus
from cost_model.published import (
    UnknownPublication, list_published_times, load_claims, load_microbenchmarks, load_published_times,
)


def slope_us(times, **where):
    """Step cost between the longest and the shortest walk of one series."""
    series = {row["steps"]: row["median_us"] for row in times.rows if all(row[key] == value for key, value in where.items())}
    low, high = min(series), max(series)
    return (series[high] - series[low]) / (high - low)


def test_every_table_has_its_sidecar():
    assert list_published_times() == ("sglang-0.5.23-h200-markov", "sglang-0.5.23-h200-recurrent")
    for name in list_published_times():
        times = load_published_times(name)
        for key in ("source", "kind", "gpu", "driver_version", "statistic", "protocol", "implementation"):
            assert times.provenance[key], key
        assert times.provenance["gpu"] in list_gpus()
        assert {row.get("path", row.get("head")) for row in times.rows} == set(times.provenance["paths"])
        keys = [tuple(value for key, value in row.items() if key != "median_us") for row in times.rows]
        assert len(set(keys)) == len(keys)


def test_markov_times():
    times = load_published_times("sglang-0.5.23-h200-markov")
    assert len(times.rows) == 30
    fastest = slope_us(times, vocab_size=151_936, batch=1, temperature=0, path="MarkovSampleStep")
    assert fastest == pytest.approx(29.4, abs=0.05)
    assert slope_us(times, vocab_size=151_936, batch=1, temperature=0, path="MarkovGreedyStep") == pytest.approx(40.6, abs=0.1)
    assert [row["median_us"] for row in times.rows if row["steps"] == 16 and row["path"] == "MarkovSampleStep"
            and (row["vocab_size"], row["batch"], row["temperature"]) == (151_936, 1, 0)] == [476.1]


@pytest.mark.parametrize("name", list_published_times())
def test_longer_walks_take_longer_by_about_the_same_a_step(name):
    series = {}
    for row in load_published_times(name).rows:
        key = tuple(value for column, value in row.items() if column not in ("steps", "median_us"))
        series.setdefault(key, {})[row["steps"]] = row["median_us"]
    for key, points in series.items():
        (a, low), (b, middle), (c, high) = sorted(points.items())
        assert low < middle < high, key
        assert (middle - low) / (b - a) == pytest.approx((high - middle) / (c - b), rel=0.05), key


def test_recurrent_times():
    times = load_published_times("sglang-0.5.23-h200-recurrent")
    assert len(times.rows) == 9
    assert {row["steps"] for row in times.rows if row["head"] == "domino-pool2048"} == {2, 7, 15}


def test_an_unknown_table_lists_the_known():
    with pytest.raises(UnknownPublication, match="known are sglang-0.5.23-h200-markov"):
        load_published_times("vllm")


def test_claims_carry_value_unit_and_place():
    claims = {claim.id: claim for claim in load_claims()}
    assert len(claims) == len(load_claims()) == 20
    assert (claims["throughput_gain_max"].value, claims["throughput_gain_max"].unit) == (12.3, "%")
    assert claims["head_speedup_max"].value == 11.6
    assert all(claim.source.startswith("Weights That Stay, ") for claim in claims.values())


def test_microbenchmarks_are_single_numbers_or_ranges():
    figures = load_microbenchmarks()
    assert len(figures) == 198
    for figure in figures:
        assert figure["kind"] == "microbenchmark" and figure["source"]
        assert figure.get("low", 0) <= figure.get("high", 0)
        assert figure.get("gpu", "h200-sxm") in list_gpus()
    barrier = [figure["value"] for figure in figures if figure.get("gpu") == "h200-sxm" and figure["metric"].startswith("atomic-counter")]
    assert barrier == [1.04, 1.67]
