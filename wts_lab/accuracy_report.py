"""The accuracy record as tables: one set of cells for the terminal, for Markdown files and for docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cost_model.errors import BadInput
from cost_model.files import write_text_whole
from cost_model.units import UNKNOWN, format_count, format_percent
from wts_lab.accuracy import BINS_BELOW_FOURTEENTH, MAGNITUDE_BINS, below_fourteenth

EQUALITY_TITLES = ("head", "format", "equal steps", "equal prefix", "equal walks", "preferred by at most")
ERROR_TITLES = ("head", "format", "weight error", "correction error", "its 99.9 %", "its largest", "logit error, median", "99 %", "largest")

LEGEND = (
    "The reference is the bf16 walk of engines. Equal steps: share of steps with its token, given its history, ± the standard error. Equal prefix: mean number of "
    "steps before the first difference. Equal walks: share without a difference. Preferred by at most: how far the reference's logits "
    "prefer its token to the one chosen instead, 0 where only ties fell otherwise. Weight error (root mean square) is over the weights' "
    "standard deviation; correction error (root mean square, 99.9 % quantile, largest) over that of the corrections; logit errors and "
    "preferences are in logits."
)
FP32_NOISE = 1e-5
BEGIN, END = "<!-- record: begin -->", "<!-- record: end -->"
"""What stands around the tables of a record in a document."""

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, column titles, and cells."""


def accuracy_tables(rows: Sequence[dict]) -> list[Table]:
    """The tables of a record's rows: equality of tokens, sizes of errors, magnitudes of weights."""
    equality = [
        (row["head_name"], row["format"], _share(row["equal_step_share"], row["walks"] * row["steps"]), f"{row['prefix_length_mean']:.2f} of {row['steps']}",
         _share(row["equal_walk_share"], row["walks"]), _number(row["preference_max"]))
        for row in rows
    ]  # fmt: skip
    errors = [
        (row["head_name"], row["format"], _relative(row["weight_error_rms"]), _relative(row["correction_error_rms"]),
         _relative(row["correction_error_p999"]), _relative(row["correction_error_max"]), _number(row["logit_error_p50"]),
         _number(row["logit_error_p99"]), _number(row["logit_error_max"]))
        for row in rows
    ]  # fmt: skip
    return [("Tokens equal to the reference's", EQUALITY_TITLES, equality), ("Errors", ERROR_TITLES, errors), _magnitude_table(rows)]


def _magnitude_table(rows: Sequence[dict]) -> Table:
    """Where weights lie between 0 and their row's maximum, and where the formats' levels do, in steps of 1/14."""
    heads = {row["head_name"]: row["magnitude_shares"] for row in rows}
    columns = {f"weights of {name}": shares for name, shares in heads.items()}
    columns |= {f"levels of {name}": shares for name, shares in _levels(rows).items()}
    cells = [
        (f"{start // BINS_BELOW_FOURTEENTH}/14 to {start // BINS_BELOW_FOURTEENTH + 1}/14",
         *(format_percent(sum(shares[start : start + BINS_BELOW_FOURTEENTH])) for shares in columns.values()))
        for start in range(0, MAGNITUDE_BINS, BINS_BELOW_FOURTEENTH)
    ]  # fmt: skip
    return "Magnitudes: shares of weights by |w| / max|w| of their row, and of a format's positive levels by level / highest level", \
        ("of the maximum", *columns), cells


def accuracy_markdown(rows: Sequence[dict]) -> str:
    """The tables with their legend, and what they were made from."""
    parts = [_origin(rows)]
    for title, columns, cells in accuracy_tables(rows):
        lines = [columns, ["---"] * len(columns), *cells]
        parts.append(f"**{title}**\n\n" + "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines))
    return "\n\n".join([*parts, LEGEND]) + "\n"


def summary(rows: Sequence[dict]) -> list[str]:
    """What the magnitudes mean, one sentence for each set of levels."""
    weights = sorted(below_fourteenth(row["magnitude_shares"]) for row in rows)
    span = " to ".join(dict.fromkeys(map(format_percent, (weights[0], weights[-1]))))
    return [
        f"{name}: {format_percent(below_fourteenth(shares))} of the positive levels serve the {span} of weights below 1/14 of their row's maximum"
        for name, shares in _levels(rows).items()
    ]


def _levels(rows: Sequence[dict]) -> dict[str, list[float]]:
    """`level_shares` by the format's name; formats of the same levels share an entry."""
    names: dict[tuple[float, ...], list[str]] = {}
    for row in rows:
        if row["level_shares"] is not None and row["format"] not in names.setdefault(tuple(row["level_shares"]), []):
            names[tuple(row["level_shares"])].append(row["format"])
    return {" and ".join(formats): list(shares) for shares, formats in names.items()}


def write_markdown(path: Path | str, rows: Sequence[dict]) -> Path:
    """Write the tables to a file of their own."""
    return write_text_whole(path, f"# Accuracy of number formats\n\n{accuracy_markdown(rows)}")


def require_marks(path: Path | str) -> str:
    """The text of a document that tables can be put into.

    Raises:
        BadInput: it lacks one of the marks, or has one twice.
        OSError: it cannot be read.
    """
    text = Path(path).read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise BadInput(f"{path} must have the lines {BEGIN} and {END} once each; the tables go between them")
    return text


def update_document(path: Path | str, rows: Sequence[dict]) -> Path:
    """Replace what stands between BEGIN and END in a document by the tables; raises as `require_marks`."""
    before, rest = require_marks(path).split(BEGIN)
    return write_text_whole(path, f"{before}{BEGIN}\n\n{accuracy_markdown(rows)}\n{END}{rest.split(END)[1]}")


def _origin(rows: Sequence[dict]) -> str:
    """Where, when and on what inputs the rows were made."""
    first = rows[0]
    place = first["gpu_name"] if first["device"] == "cuda" and first["gpu_name"] else first["device"].upper()
    counts = {f"{format_count(row['walks'])} walks of {row['steps']} steps" for row in rows}
    shapes = {f"V {format_count(row['vocab_size'])}, rank {row['rank']}" for row in rows}
    sources = sorted({row["head_source"] for row in rows})
    return (
        f"{'; '.join(sorted(counts))} each, at {'; '.join(sorted(shapes))}; weights: {', '.join(sources)}; "
        f"{place}, {first['recorded_at_utc'][:10]}, commit {(first['git_commit'] or UNKNOWN)[:10]}."
    )


def _share(share: float, count: int) -> str:
    """A share of `count` independent cases with its standard error, sqrt(p (1 - p) / n), in percent."""
    error = (share * (1 - share) / count) ** 0.5
    return f"{100 * share:.2f} ± {100 * error:.2f} %" if error else format_percent(share)


def _relative(error: float | None) -> str:
    """A relative error in percent; below a hundred-thousandth only that it is: there fp32 sums differ in their order."""
    return f"< {format_percent(FP32_NOISE)}" if error is not None and 0 < error < FP32_NOISE else format_percent(error)


def _number(value: float | None) -> str:
    """A number in logits with three significant digits."""
    return UNKNOWN if value is None else f"{value:.3g}"
