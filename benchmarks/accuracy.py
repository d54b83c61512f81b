"""Record what number formats change, for all four kinds of heads: ``python -m benchmarks.accuracy --out DIR``.

Random heads at the Qwen3-4B shape (V 151,936, rank 256, hidden 2,560, GRU 1,024). Writes ``DIR/accuracy/<date>-heads.parquet`` and
the same tables as ``.md``; ``--document docs/accuracy.md`` puts them into a document too, and with ``--record`` those of a record that is
there already. Takes some 20 seconds on a GPU; on a CPU compare fewer walks.

Exit status: as `benchmarks.status` has them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.status import ending_with_status
from cost_model.files import require_writable
from cost_model.head import HEAD_KINDS, Head
from cost_model.measurement import record_path, require_new
from wts_lab.accuracy import read_accuracy, write_accuracy
from wts_lab.accuracy_report import accuracy_markdown, require_marks, update_document, write_markdown

VOCAB_SIZE, RANK, HIDDEN_SIZE, GRU_SIZE = 151_936, 256, 2560, 1024
FOLDER, CASE = "accuracy", "heads"


def shapes(vocab_size: int = VOCAB_SIZE) -> tuple[Head, ...]:
    """One head of each kind at the Qwen3-4B shape."""
    return tuple(
        Head(kind, kind, vocab_size, vocab_size, vocab_size, RANK, None if kind == "markov" else HIDDEN_SIZE, GRU_SIZE if kind == "domino" else None)
        for kind in HEAD_KINDS
    )


def parser() -> argparse.ArgumentParser:
    """Command line of this module."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="Record what number formats of the projection change.")
    command.add_argument("--out", type=Path, default=Path("out"), help=f"folder; the record lies in its {FOLDER}/ (default: %(default)s)")
    command.add_argument("--walks", type=int, default=256, help="walks of each head (default: %(default)s)")
    command.add_argument("--steps", type=int, default=16, help="steps of a walk (default: %(default)s)")
    command.add_argument("--vocab", type=int, default=VOCAB_SIZE, help="vocabulary, smaller for a trial (default: %(default)s)")
    command.add_argument("--commit", help="commit of the code, for a tree without its history")
    command.add_argument("--dirty", action=argparse.BooleanOptionalAction, help="whether tracked files differ from that commit")
    command.add_argument("--record", type=Path, help="measure nothing; show this record")
    command.add_argument("--document", type=Path, help="put the tables between the marks of this document")
    return command


def record(given: argparse.Namespace) -> Path:
    """Measure all heads, one after the other, and write record and tables; returns the record's path."""
    import torch

    from wts_lab.accuracy_run import measure_head, with_provenance
    from wts_lab.heads import random_head

    path = record_path(given.out, FOLDER, datetime.now(timezone.utc), CASE)
    require_new(path)
    device, rows = "cuda" if torch.cuda.is_available() else "cpu", []
    for shape in shapes(given.vocab):
        rows += measure_head(random_head(shape, device=device), "random", walks=given.walks, steps=given.steps)
    stated = {name: value for name, value in (("git_commit", given.commit), ("git_dirty", given.dirty)) if value is not None}
    rows = with_provenance(rows, **stated)
    write_markdown(path.with_suffix(".md"), rows)
    return write_accuracy(path, rows)


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    given = parser().parse_args(arguments)
    if given.document:
        require_marks(given.document)
        require_writable(given.document)
    path = given.record or record(given)
    rows = read_accuracy(path)
    print(accuracy_markdown(rows))
    if given.document:
        print(f"updated {update_document(given.document, rows)}", file=sys.stderr)
    print(f"record: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
