"""Declared benchmarks: `python -m benchmarks.run NAME` records one, `python -m benchmarks.compare BEFORE AFTER` judges two."""
