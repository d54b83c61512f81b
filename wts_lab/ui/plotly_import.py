"""Plotly's classes, imported without what takes two seconds and is not needed.

Plotly imports nbformat, which imports jsonschema, which imports rfc3987_syntax where JupyterLab's server brought it: a grammar of
internationalised addresses, built anew in each kernel.  jsonschema does without it where it cannot be imported, and then lets such an address
pass unchecked; no notebook has one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

SLOW_AND_OPTIONAL = "rfc3987_syntax"


@functools.cache
def graph_objects() -> ModuleType:
    """`plotly.graph_objects`.  Raises ImportError where plotly is missing."""
    with _passed_over(SLOW_AND_OPTIONAL):
        import plotly.graph_objects as go
        import plotly.io

        plotly.io.renderers.default  # plotly imports its parts when they are first named, this one and nbformat with it
    return go


@contextmanager
def _passed_over(name: str) -> Iterator[None]:
    """Let an import of this module fail meanwhile, unless it was imported before."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
