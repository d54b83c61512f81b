"""Figures in the cost model's documentation are those of the shipped records."""

from pathlib import Path

import pytest

from benchmarks.model_tables import DOCUMENT, REGIONS, filled, tables
from cost_model.errors import BadInput


def test_the_documentation_has_the_figures_of_the_shipped_records():
    text = (Path(__file__).resolve().parents[1] / DOCUMENT).read_text("utf-8")
    found = tables()
    assert tuple(found) == REGIONS and filled(text, found) == text, "run python -m benchmarks.model_tables"


def test_a_region_is_replaced_and_nothing_else():
    text = "a\n<!-- one -->\nold\n<!-- end of one -->\nb"
    assert filled(text, {"one": "new"}) == "a\n<!-- one -->\nnew\n<!-- end of one -->\nb" == filled(filled(text, {"one": "new"}), {"one": "new"})


def test_a_document_without_the_marks_is_refused():
    with pytest.raises(BadInput, match="<!-- end of one --> once each"):
        filled("<!-- one -->", {"one": "new"})
