"""Fit the coefficients of passes to recorded rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cost_model import passes
from cost_model.errors import BadInput
from cost_model.gpu import Gpu
from cost_model.measured_round import PHASES, MeasuredPart, work_of
from cost_model.passes import COEFFICIENTS, PassRates

FIRST_GUESS = (2.0, 0.8, 0.6, 0.3)
"""Where the search begins, in the order of COEFFICIENTS."""


class NotFitted(BadInput):
    """Too few passes to fit the coefficients to."""


def fit_passes(gpu: Gpu, parts: Sequence[MeasuredPart]) -> PassRates:
    """Least squares of log(predicted / measured) over the recorded passes; heads and whole rounds among the parts are passed over.

    `relative_error` is the standard deviation that the fit leaves, with a degree of freedom less for each coefficient.

    Raises:
        NotFitted: no more passes than coefficients.
    """
    import numpy as np
    from scipy.optimize import least_squares

    recorded = [part for part in parts if part.phase in PHASES]
    if len(recorded) <= len(COEFFICIENTS):
        raise NotFitted(f"{len(recorded)} recorded passes were given; {len(COEFFICIENTS)} coefficients need more: record several concurrencies and contexts")
    works = [(work_of(part.key, part.phase), part.time_us) for part in recorded]

    def left(logs: np.ndarray) -> np.ndarray:
        rates = PassRates(*np.exp(logs))
        return np.array([math.log(passes.pass_us(gpu, work, rates) / measured) for work, measured in works])

    bounds = np.log([(0.05, 50.0), (0.1, 1.2), (0.02, 1.2), (0.02, 1.2)]).T
    found = least_squares(left, np.log(FIRST_GUESS), bounds=bounds, x_scale=0.1)
    error = math.sqrt(2 * found.cost / (len(works) - len(COEFFICIENTS)))
    return PassRates(*(float(value) for value in np.exp(found.x)), relative_error=error)
