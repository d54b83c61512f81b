"""How the command line speaks: JSON or tables on standard output, one line on standard error, and the exit status of `endings`."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cost_model.errors import BadInput
from cost_model.files import require_writable, write_text_whole
from wts_lab.endings import ending_of, error_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 240
"""Widest table that does not go to a terminal: room enough that no cell is broken over lines."""

UNBOUND_WIDTH = 10_000


@contextmanager
def user_errors(kept: str = "nothing was written", out: Path | None = None) -> Iterator[None]:
    """Turn what the user can mend into one line on standard error and an exit status.

    Args:
        kept: after an interrupt, what is kept and how to go on.
        out: where the command writes, named where the system refuses a write without saying to which file.

    Raises:
        typer.Exit: with the status that `endings` gives the error. What has no ending there is raised as it is; a reader of the output
            that has left (BrokenPipeError) typer ends quietly.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        ending = ending_of(error, kept, out)
        if ending is None:
            raise
        say(ending.told)
        raise typer.Exit(ending.status) from None


def say_error(message: str) -> None:
    """Write what is wrong to standard error, as one line whatever the message holds."""
    say(error_line(message))


def say(message: str) -> None:
    """Write one line to standard error, where it does not mix with results."""
    typer.echo(f"wts-lab: {message}", err=True)


def print_json(value: object) -> None:
    """Print a result as JSON. Non-finite numbers are refused: JSON has none, and unknown is null here."""
    typer.echo(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: object) -> object:
    """Return the value as dicts, lists, strings, numbers and None; dataclasses use `as_dict` where they have it."""
    if hasattr(value, "as_dict"):
        return plain(value.as_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def require_page(out: Path | None) -> None:
    """Refuse a file for an answer whose name does not say its form, or that cannot be written; None is no file."""
    if out is not None and out.suffix not in (".md", ".json"):
        raise BadInput(f"--out is {out}; end the name in .md or .json")
    require_writable(out)


def write_page(out: Path, answer: object, markdown: str) -> None:
    """Write an answer as JSON or Markdown, as the file's name says, and tell where."""
    text = json.dumps(plain(answer), indent=2, allow_nan=False) + "\n" if out.suffix == ".json" else markdown
    say(f"wrote {write_text_whole(out, text)}")


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], text_columns: int = 1) -> None:
    """Print rows under a title; the first `text_columns` are aligned to the left, the others to the right.

    Where the terminal is too narrow the names in the first column fold first, between words, and then the other cells.

    A machine without rich (a bare source tree) gets the same cells separated by tabs.
    """
    cells = [[str(cell) for cell in row] for row in rows]
    if importlib.util.find_spec("rich") is None:
        lines = ["\t".join(row) for row in ([column.replace("\n", " ") for column in columns], *cells)]
        typer.echo("\n".join([title, "", *lines, ""]))
        return
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < text_columns else "right")
    for row in cells:
        table.add_row(*map(escape, row))
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    _narrow_names(table, [row[0] for row in cells], console)
    console.print(title, markup=False, highlight=False, soft_wrap=True)
    console.print(table)


def _narrow_names(table: Table, names: Sequence[str], console: Console) -> None:
    """Give the first column what the others leave of the terminal, at least its longest word."""
    wanted = console.measure(table, options=console.options.update(max_width=UNBOUND_WIDTH)).maximum
    if names and wanted > console.width:
        longest_word = max(len(word) for name in names for word in name.split() or [""])
        table.columns[0].width = max(longest_word, max(map(len, names)) - (wanted - console.width))
