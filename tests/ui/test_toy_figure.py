"""Picture and tables of the toy walk hold its numbers."""

from __future__ import annotations

import pytest

from wts_lab.toy import reference, toy_codes, toy_head, toy_walk, twin
from wts_lab.ui.toy_figure import toy_spec
from wts_lab.ui.toy_tables import codes_table, head_table, latent_table, step_table, walk_table


def test_bars_begin_at_the_base_and_end_at_y_and_the_star_marks_the_winner() -> None:
    steps = toy_walk(toy_head())
    spec = toy_spec(steps)
    assert len(spec["data"]) == 9
    for step, (base, correction, y) in zip(steps, zip(*[iter(spec["data"])] * 3), strict=True):
        assert base["y"] == step.base.tolist() == correction["base"] and y["y"] == step.y.tolist()
        assert [start + length for start, length in zip(correction["base"], correction["y"])] == pytest.approx(step.y.tolist())
        assert [token for token, symbol in enumerate(y["marker"]["symbol"]) if symbol == "star"] == [step.token]
    domains = [spec["layout"][name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][1] == 1 and all(0 <= low < high <= 1 for low, high in domains) and domains[2][1] < domains[1][0] < domains[1][1] < domains[0][0]
    assert "token 5</b> gives" in spec["layout"]["annotations"][0]["text"]


def test_tables_hold_every_number() -> None:
    head = toy_head()
    steps, codes = toy_walk(head), toy_codes(head)
    assert head_table(head).loc[5, "row of W1 (latent)"] == "0.25  0.875  0.75  -1"
    assert codes_table(codes).loc[5, "q1"] == "32  111  95  -127" and float(codes_table(codes).loc[5, "s1"]) == pytest.approx(1 / 127, rel=1e-3)
    latent = latent_table(steps[0])
    assert latent["q1"].tolist() == steps[0].q1.tolist() and all(abs(float(left)) <= steps[0].s2 / 2 * 1.001 for left in latent["left over"])
    table = step_table(steps[0])
    assert table["c1"].tolist() == steps[0].c1.tolist() and table[""].tolist().index("wins") == steps[0].token
    assert [float(value) for value in table["correction"]] == pytest.approx(steps[0].correction.tolist(), rel=1e-3)
    assert [float(value) for value in table["exact W2·u"]] == pytest.approx(steps[0].exact.tolist(), rel=1e-3)


def test_the_walk_table_counts_what_agrees() -> None:
    head = toy_head()
    steps, engines = toy_walk(head), reference(head)
    table = walk_table(steps, [("twin", twin(head)), ("engines", engines)])
    assert table["token before"].tolist() == [5, *(step.token for step in steps[:-1])] and table["token"].tolist() == [step.token for step in steps]
    assert all(cell.endswith("12 of 12 logits equal") for cell in table["twin"])
    assert all(cell.startswith(f"token {step.token}, ") and " of 12 logits" in cell for step, cell in zip(steps, table["engines"], strict=True))
    assert not all(cell.endswith("12 of 12 logits equal") for cell in table["engines"])
