"""Tables of the toy walk: one function a result of `wts_lab.toy`, every number in full or to four digits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wts_lab.reference import round_to_bf16

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas

    from wts_lab.reference import TwinWalk
    from wts_lab.toy import ToyCodes, ToyHead, ToyStep


def head_table(head: ToyHead) -> pandas.DataFrame:
    """Both matrices, a row a token, and the base logits of every step."""
    import pandas

    rows = [
        (_vector(head.w1[token]), _vector(head.w2[token]), *(f"{value:g}" for value in head.base[:, token]))
        for token in range(len(head.w2))
    ]
    titles = ["row of W1 (latent)", "row of W2", *(f"base logit, step {step + 1}" for step in range(len(head.base)))]
    return _named("token", pandas.DataFrame(rows, columns=titles))


def codes_table(codes: ToyCodes) -> pandas.DataFrame:
    """What int8x2 stores for each token: a row of W2 as codes and a scale, a latent as two vectors with a scale each."""
    import pandas

    rows = [
        (_vector(codes.w_q[token]), _number(codes.w_scale[token]), _vector(codes.q1[token]), _number(codes.s1[token]), _vector(codes.q2[token]), _number(codes.s2[token]))
        for token in range(len(codes.w_q))
    ]
    return _named("token", pandas.DataFrame(rows, columns=["codes of W2", "scale", "q1", "s1", "q2", "s2 = s1 / 254"]))


def latent_table(step: ToyStep) -> pandas.DataFrame:
    """A step's latent, element by element: what the first vector says of it, what the second adds, and what is left."""
    import pandas

    first, both = step.s1 * step.q1, step.s1 * step.q1 + step.s2 * step.q2
    rows = [
        (f"{value:g}", int(q1), _number(one), int(q2), _number(two), f"{value - two:.1e}")
        for value, q1, one, q2, two in zip(step.latent, step.q1, first, step.q2, both, strict=True)
    ]
    return _named("element", pandas.DataFrame(rows, columns=["latent", "q1", "s1 × q1", "q2", "s1 × q1 + s2 × q2", "left over"]))


def step_table(step: ToyStep) -> pandas.DataFrame:
    """A step, token by token: integer products, correction beside the exact one, base logit, sum, and the winner."""
    import pandas

    rows = [
        (
            int(step.c1[token]),
            int(step.c2[token]),
            _number(step.correction[token]),
            _number(step.exact[token]),
            f"{step.base[token]:g}",
            f"{step.y[token]:g}",
            "wins" if token == step.token else "",
        )
        for token in range(len(step.y))
    ]
    titles = ["c1", "c2", "correction", "exact W2·u", "base logit", "y, rounded to bf16", ""]
    return _named("token", pandas.DataFrame(rows, columns=titles))


def walk_table(steps: Sequence[ToyStep], walks: Iterable[tuple[str, TwinWalk]]) -> pandas.DataFrame:
    """The walk, a row a step: latent in, token out, and the tokens and bits of logits that other walks have there."""
    import pandas

    others = list(walks)
    rows = [
        (
            step.previous,
            _vector(step.latent),
            f"{step.y[step.token]:g}",
            step.token,
            *(_agreement(step, walk) for _, walk in others),
        )
        for step in steps
    ]
    frame = pandas.DataFrame(rows, columns=["token before", "latent", "largest y", "token", *(name for name, _ in others)])
    frame.index = range(1, len(steps) + 1)
    return frame.rename_axis("step")


def _agreement(step: ToyStep, walk: TwinWalk) -> str:
    """A walk's token of a step, and how many of its logits are the step's, bit for bit."""
    equal = np.count_nonzero(round_to_bf16(step.y) == walk.logits[step.number])
    return f"token {walk.tokens[step.number]}, {equal} of {len(step.y)} logits equal"


def _named(name: str, frame: pandas.DataFrame) -> pandas.DataFrame:
    return frame.rename_axis(name)


def _vector(values: np.ndarray) -> str:
    return "  ".join(f"{value:g}" for value in values)


def _number(value: float) -> str:
    return f"{value:.4g}"
