"""`wts-lab rounds`: recorded rounds beside the round model. Touches no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost_model.errors import BadInput
from wts_lab.cli_inputs import JsonOption, path_from, path_option
from wts_lab.cli_output import print_json, print_table, require_page, user_errors, write_page

if TYPE_CHECKING:
    import pandas

    from cost_model.gpu import Gpu


def rounds(
    records: Annotated[list[Path], typer.Argument(help="Round records, as benchmarks/round.py makes them.", parser=path_from, metavar="RECORDS...")],
    gpu: Annotated[str | None, typer.Option("--gpu", help="GPU id, where the record's device alone does not tell.")] = None,
    out: Annotated[Path | None, path_option("--out", "Write the tables to this file, .md or .json.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show recorded rounds: every phase and head beside its prediction, and what the resident head gives a whole round."""
    from cost_model.measured_round import compare_rounds
    from wts_lab.measured_round_views import markdown, sentences, tables

    with user_errors(out=out):
        require_page(out)
        frame, chip = read_rounds(records, gpu)
        found = compare_rounds(chip, frame)
        if out is not None:
            write_page(out, found, markdown(found))
        if as_json:
            print_json(found)
            return
        for title, columns, rows in tables(found):
            print_table(title, columns, rows)
        for line in sentences(found):
            typer.echo(line)


def read_rounds(records: list[Path], gpu: str | None) -> tuple[pandas.DataFrame, Gpu]:
    """Round records as one frame, and the GPU that they were all measured on. Rounds that were measured again, since the GPU throttled, count once.

    Raises:
        RecordError: a file is no round record; AnotherGpu: it was measured on another GPU than the one named, or than the first.
    """
    import pandas

    from cost_model.gpu import load_gpu, recognise_gpu
    from cost_model.measured_round import kept_rows
    from cost_model.measurement import read_round, require_gpu

    frame = kept_rows(pandas.concat([read_round(path) for path in records], ignore_index=True))
    if gpu is not None:
        chip = load_gpu(gpu)
    else:
        first = frame.iloc[0]
        if first["gpu_name"] is None:
            raise BadInput("the record does not name its GPU; name it with --gpu")
        chip = load_gpu(recognise_gpu(first["gpu_name"], int(first["gpu_sm_count"])).id)
    require_gpu(frame, chip)
    return frame, chip
