"""The command `accuracy`: what int8x2 and other number formats change, on a random head or a checkpoint."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost_model.errors import BadInput
from cost_model.head import HEAD_KINDS, Head, load_head
from cost_model.measurement import record_path, require_new
from cost_model.workload import ROUNDINGS, require_whole, require_word
from wts_lab.cli_inputs import (
    DEFAULT_RANK, HeadOption, JsonOption, RankOption, RoundingOption, StepsOption, TargetVocabOption, VocabOption, path_option, require_steps,
)
from wts_lab.cli_output import print_json, print_table, say, user_errors

if TYPE_CHECKING:
    from wts_lab.heads import DraftHead

FOLDER = "accuracy"
WALKS_BY_DEVICE = {"cuda": 64, "cpu": 4}
MAX_SEED = 2**32 - 1
DEFAULT_HIDDEN, DEFAULT_GRU = 2560, 1024
"""Sizes of the heads released for Qwen3-4B."""


def accuracy(
    head: HeadOption = None,
    checkpoint: Annotated[
        Path | None, path_option("--checkpoint", "A .safetensors file, or a folder of them, that holds a head of any kind.")
    ] = None,
    embedding: Annotated[Path | None, path_option("--embedding", "Checkpoint of the target model, for a Domino head without the embedding.")] = None,
    vocab: VocabOption = None,
    rank: RankOption = None,
    target_vocab: TargetVocabOption = None,
    kind: Annotated[str | None, typer.Option("--kind", help=f"One of {', '.join(HEAD_KINDS)}. [default: markov, or what the checkpoint holds]")] = None,
    hidden: Annotated[int | None, typer.Option("--hidden", help=f"Elements of the backbone's hidden vector. [default: {DEFAULT_HIDDEN}]")] = None,
    gru: Annotated[int | None, typer.Option("--gru", help=f"Elements of a Domino head's state. [default: {DEFAULT_GRU}]")] = None,
    walks: Annotated[int | None, typer.Option("--walks", help="Walks to compare. [default: 64 on a GPU, 4 without]")] = None,
    steps: StepsOption = 16,
    base_spread: Annotated[float, typer.Option("--base-spread", help="Standard deviation of the random base logits.")] = 2.0,
    rounding: RoundingOption = "once",
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random weights and inputs.")] = 0,
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; the GPU where there is one if left out.")] = None,
    out: Annotated[Path, path_option("--out", f"Folder of records; record and tables lie in <out>/{FOLDER}/.")] = Path("out"),
    case: Annotated[str | None, typer.Option("--case", help="Last part of the record's name; the head's name if left out.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare number formats of the projection with bf16: tokens that change, errors of logits, weights against levels."""
    from wts_lab import accuracy_report
    from wts_lab.accuracy import write_accuracy

    with user_errors(out=out):
        require_steps(steps)
        require_whole("--seed", seed, 0, MAX_SEED)
        require_word("--rounding", rounding, ROUNDINGS)
        shape = None if checkpoint else _shape(head, kind, vocab, rank, target_vocab, hidden, gru)
        if checkpoint:
            _refuse("--checkpoint", {"--head": head, "--rank": rank, "--target-vocab": target_vocab, "--hidden": hidden, "--gru": gru})
        elif embedding:
            raise BadInput("--embedding belongs to --checkpoint, which was not given; random heads have a random embedding")
        place = usable_device(device)
        name = case or re.sub(r"[^a-z0-9.]+", "-", (shape.name if shape else checkpoint.stem).lower()).strip("-.")
        path = record_path(out, FOLDER, datetime.now(timezone.utc), name)
        require_new(path)
        from wts_lab.accuracy_run import measure_head, with_provenance

        module = _random(shape, seed, place) if shape else _loaded(checkpoint, kind, embedding, vocab, place)
        source = "random" if shape else checkpoint.name
        count = WALKS_BY_DEVICE[place] if walks is None else walks
        rows = with_provenance(measure_head(module, source, walks=count, steps=steps, base_spread=base_spread, seed=seed, rounding=rounding))
        written = write_accuracy(path, rows), accuracy_report.write_markdown(path.with_suffix(".md"), rows)
        if as_json:
            print_json({"record": str(written[0]), "rows": rows})
            return
        for title, columns, cells in accuracy_report.accuracy_tables(rows):
            print_table(title, columns, cells, 1 if title.startswith("Magnitudes") else 2)
        for line in accuracy_report.summary(rows):
            typer.echo(f"{line}.")
        say(f"wrote {' and '.join(map(str, written))}")


def _shape(
    name: str | None, kind: str | None, vocab: int | None, rank: int | None, target_vocab: int | None, hidden: int | None, gru: int | None
) -> Head:
    """The catalogued head, or one of the given sizes."""
    if name is not None:
        _refuse(f"--head {name}", {"--kind": kind, "--vocab": vocab, "--rank": rank, "--target-vocab": target_vocab, "--hidden": hidden, "--gru": gru})
        return load_head(name)
    if vocab is None:
        raise BadInput("no head was given; give --vocab (and --rank, --kind), --head with a name from the catalogue, or --checkpoint")
    kind = kind or "markov"
    require_word("--kind", kind, HEAD_KINDS)
    _refuse(f"--kind {kind}", ({"--hidden": hidden} if kind == "markov" else {}) | ({"--gru": gru} if kind != "domino" else {}))
    rank = DEFAULT_RANK if rank is None else rank
    hidden = None if kind == "markov" else DEFAULT_HIDDEN if hidden is None else hidden
    gru = None if kind != "domino" else DEFAULT_GRU if gru is None else gru
    return Head(f"{kind}-{vocab}-r{rank}", kind, vocab, vocab if target_vocab is None else target_vocab, vocab, rank, hidden, gru)


def _refuse(by: str, options: dict[str, object]) -> None:
    """Raise BadInput where an option was given that another one settles or has no use for."""
    given = [flag for flag, value in options.items() if value is not None]
    if given:
        raise BadInput(f"{' and '.join(given)} cannot be given with {by}, which settles the sizes or has none of that name; leave one out")


def usable_device(word: str | None) -> str:
    """The device to compute on; BadInput where torch or the device is missing."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise BadInput("comparing number formats needs torch; pip install torch, a CPU build is enough for small heads")
    import torch

    if word is not None:
        require_word("--device", word, tuple(WALKS_BY_DEVICE))
        if word == "cuda" and not torch.cuda.is_available():
            raise BadInput("--device is cuda, and torch sees no CUDA device; leave it out to compute on the CPU")
    return word or ("cuda" if torch.cuda.is_available() else "cpu")


def _random(shape: Head, seed: int, device: str) -> DraftHead:
    """A head of random weights."""
    from wts_lab.heads import random_head

    return random_head(shape, seed=seed, device=device)


def _loaded(checkpoint: Path, kind: str | None, embedding: Path | None, vocab: int | None, device: str) -> DraftHead:
    """The head of a checkpoint; `vocab` is its draft vocabulary where W2 is padded."""
    from wts_lab.heads import head_from_safetensors

    return head_from_safetensors(checkpoint, kind, embedding=embedding, vocab_size=vocab, device=device)
