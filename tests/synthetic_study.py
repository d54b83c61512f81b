"""A study of made-up records, as fixtures that a test module takes by importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.synthetic_records import write_two_vocabularies
from wts_lab.study import StudyRequest, StudyResult, run_study


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Synthetic records of two vocabularies."""
    return write_two_vocabularies(tmp_path_factory.mktemp("records"))


@pytest.fixture(scope="module")
def result(records: Path) -> StudyResult:
    """The replayed study of those records."""
    return run_study(StudyRequest(records=records, live=False))
