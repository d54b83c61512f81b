"""What the command line accepts: one option type for each word that several commands share, and what the words mean.

Ranges are checked where the values live (`Head`, `Workload`, `Placement`), so that a panel, Python and the command line
refuse the same things in the same words. Here only text becomes values.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost_model.errors import BadInput
from cost_model.head import HEAD_KINDS, Head, load_head
from cost_model.placement import Placement
from cost_model.workload import L2_STATES, MODES, PRECISIONS, ROUNDINGS, Workload, require_whole, require_word

if TYPE_CHECKING:
    import pandas

DEFAULT_RANK = 256
STANDARD_STEPS = "1,2,4,7,11,15,16"
STUDIED_VOCABULARY = 151_936
MAX_STEPS = 4096
"""Longest walk asked for. Draft blocks have at most a few dozen tokens; a longer walk is a slip of the keyboard."""


def _words(words: tuple[str, ...]) -> str:
    """List the allowed words for a help text."""
    return ", ".join(words)


def path_from(word: str | Path) -> Path:
    """Read a path; an empty one (an unset variable in a script, say) is refused, not taken for the folder in hand."""
    if not str(word).strip():
        raise typer.BadParameter("it is empty; give a path")
    return Path(word)


def path_option(flag: str, about: str) -> Any:
    """An option that names a file or folder."""
    return typer.Option(flag, help=about, parser=path_from, metavar="PATH")


LOW_HIGH = "VALUE[:LOW:HIGH]"
"""How a measured number is given, with the ends of its interval or without."""


def measured_option(flag: str, about: str) -> Any:
    """An option that takes a measured number."""
    return typer.Option(flag, help=about, metavar=LOW_HIGH)


GpuOption = Annotated[str, typer.Option("--gpu", help="GPU id or alias, such as h200-sxm.", show_default=False)]
GpuHereOption = Annotated[str | None, typer.Option("--gpu", help="GPU id or alias; the GPU in this machine if left out.")]
HeadOption = Annotated[str | None, typer.Option("--head", help="A released head from the catalogue, instead of sizes.")]
VocabOption = Annotated[int | None, typer.Option("--vocab", help="Draft vocabulary: rows of W2.")]
RankOption = Annotated[int | None, typer.Option("--rank", help=f"Elements of the latent, a multiple of 32. [default: {DEFAULT_RANK}]")]
TargetVocabOption = Annotated[int | None, typer.Option("--target-vocab", help="Rows of W1, where they differ from the draft vocabulary.")]
ModeOption = Annotated[str, typer.Option("--mode", help=f"One of {_words(MODES)}.")]
PlannedModeOption = Annotated[
    str, typer.Option("--mode", help=f"One of {_words(tuple(mode for mode in MODES if mode != 'stepwise'))}; a stepwise walk has no placement.")
]
PrecisionOption = Annotated[
    str | None, typer.Option("--precision", help=f"One of {_words(PRECISIONS)}. [default: bf16 for stepwise, else int8x2]")
]
BatchOption = Annotated[int, typer.Option("--batch", help="Rows walked together.")]
StepsOption = Annotated[int, typer.Option("--steps", help="Walk length: tokens drafted one after another.")]
TemperatureOption = Annotated[float, typer.Option("--temperature", help="Sampling temperature; 0 is greedy.")]
RoundingOption = Annotated[str, typer.Option("--rounding", help=f"One of {_words(ROUNDINGS)}.")]
L2StateOption = Annotated[str, typer.Option("--l2-state", help=f"One of {_words(L2_STATES)}.")]
PlacementOption = Annotated[
    str | None,
    typer.Option("--placement", metavar="W,R,S,X,G",
                 help="Tiles of a block: warps, register, shared, streamed, staging; the planner's if left out."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
KindOption = Annotated[
    str | None, typer.Option("--kind", help=f"Take the heads of --head as another kind, whose sizes they give: {_words(HEAD_KINDS)}.")
]
ModesOption = Annotated[str, typer.Option("--mode", help=f"Any of {_words(MODES)}, separated by commas.")]
PrecisionsOption = Annotated[
    str | None,
    typer.Option("--precision", help=f"Any of {_words(PRECISIONS)}, separated by commas. [default: int8x2 for resident, else all there are]"),
]
BatchesOption = Annotated[str, typer.Option("--batch", help="Rows walked together, several numbers separated by commas.")]
TemperaturesOption = Annotated[str, typer.Option("--temperature", help="Sampling temperatures, separated by commas; 0 is greedy.")]
WalksRoundingOption = Annotated[
    str | None, typer.Option("--rounding", help=f"One of {_words(ROUNDINGS)}. [default: once, and twice for torch's stepwise walk]")
]
SglangRootOption = Annotated[
    Path | None,
    path_option("--sglang-root", "Folder of an unpacked sglang wheel, on the machine that measures, whose own stepwise walks are timed, too."),
]
RecordsFolderOption = Annotated[Path, path_option("--out", "Folder of records; the record lies in <out>/<gpu>/.")]
CaseOption = Annotated[str, typer.Option("--case", help="Last part of the record's name.")]
VocabsOption = Annotated[list[str] | None, typer.Option("--vocab", help="Draft vocabularies, separated by commas.")]
HeadsOption = Annotated[list[str] | None, typer.Option("--head", help="Released heads, separated by commas.")]
StepsListOption = Annotated[str, typer.Option("--steps", help="Walk lengths to time, separated by commas.")]
L2StatesOption = Annotated[str, typer.Option("--l2-state", help=f"Any of {_words(L2_STATES)}, separated by commas.")]
ProcessesOption = Annotated[int, typer.Option("--processes", help="Processes with fresh allocations, one after the other.")]
RepeatsOption = Annotated[int, typer.Option("--repeats", help="Timed calls of each point in each process.")]
RecordsArgument = Annotated[
    list[Path], typer.Argument(help="Record files (.parquet), or folders of them.", show_default=False, parser=path_from, metavar="RECORDS...")
]


def head_from(name: str | None, vocab_size: int | None, rank: int | None, target_vocab_size: int | None = None) -> Head:
    """Return the catalogued head, or a Markov head of the given sizes.

    Raises:
        BadInput: both a name and sizes were given, or neither; an unknown name; a size outside its range; a target vocabulary
            below the draft vocabulary.
    """
    if name is not None:
        given = [flag for flag, value in (("--vocab", vocab_size), ("--rank", rank), ("--target-vocab", target_vocab_size)) if value is not None]
        if given:
            raise BadInput(f"--head {name} fixes the sizes, and {' and '.join(given)} was given too; give one or the other")
        return load_head(name)
    if vocab_size is None:
        raise BadInput("no head was given; give --vocab (and --rank), or --head with a name from the catalogue")
    head = Head.markov(vocab_size, DEFAULT_RANK if rank is None else rank, target_vocab_size)
    if head.target_vocab_size < head.vocab_size:
        raise BadInput(f"--target-vocab is {head.target_vocab_size:,}, below --vocab {head.vocab_size:,}; every draft token is a token of the "
                       "target, and the walk looks it up in W1, which has a row for each target token")
    return head


def heads_from(names: list[str] | None, vocab_sizes: list[str] | None, rank: int | None, default: tuple[int, ...]) -> tuple[Head, ...]:
    """Return the heads of several names or sizes, the default vocabularies if neither is given."""
    if names:
        if vocab_sizes or rank is not None:
            raise BadInput("--head fixes the sizes, and --vocab or --rank was given too; give one or the other")
        return tuple(load_head(name) for name in words_from(names))
    sizes = [whole_from("--vocab", word) for word in words_from(vocab_sizes or [])] or list(default)
    return tuple(Head.markov(size, DEFAULT_RANK if rank is None else rank) for size in sizes)


def workload_from(mode: str, precision: str | None, batch: int, steps: int, temperature: float, rounding: str, l2_state: str) -> Workload:
    """Return the workload; the precision that a mode runs in is filled in where none was given."""
    require_word("mode", mode, MODES)
    require_steps(steps)
    return Workload(batch, steps, temperature, precision or ("bf16" if mode == "stepwise" else "int8x2"), rounding, l2_state)


def placement_from(text: str | None) -> Placement | None:
    """Read `W,R,S,X,G`: warps, register, shared, streamed and staging tiles of a block."""
    if text is None:
        return None
    counts = text.split(",")
    if len(counts) != 5:
        raise BadInput(f"--placement is {text!r}; give five counts W,R,S,X,G: warps, register, shared, streamed, staging tiles")
    return Placement(*(whole_from("--placement", count) for count in counts))


def wholes_from(flag: str, text: str) -> tuple[int, ...]:
    """Read walk lengths: whole numbers from 1 to MAX_STEPS, separated by commas, in ascending order and without repeats."""
    numbers = sorted({whole_from(flag, word) for word in words_from([text])})
    if not numbers or numbers[0] < 1:
        raise BadInput(f"{flag} is {text!r}; give whole numbers of at least 1, separated by commas")
    require_steps(numbers[-1], flag)
    return tuple(numbers)


def require_steps(steps: int, flag: str = "--steps") -> None:
    """Raise BadInput unless a walk of so many steps can be asked for."""
    require_whole(flag, steps, 1, MAX_STEPS)


def words_from(texts: list[str]) -> list[str]:
    """Split texts at commas and drop empty words; keeps the order, drops repeats."""
    words = [word.strip() for text in texts for word in text.split(",")]
    return list(dict.fromkeys(word for word in words if word))


def whole_from(flag: str, word: str) -> int:
    """Read one whole number."""
    try:
        return int(word)
    except ValueError:
        raise BadInput(f"{flag} has {word!r}; it must be a whole number") from None


def read_records(paths: list[Path]) -> pandas.DataFrame:
    """Read walk records, and those in folders, into one frame with a last column `record`, the file's stem.

    Raises:
        RecordError: a folder without walk records; a file that is missing, truncated, foreign or of another version.
    """
    import pandas

    from cost_model.measurement import read_walk, read_walk_folder

    frames = [read_walk_folder(path) if path.is_dir() else read_walk(path).assign(record=path.stem) for path in paths]
    return frames[0] if len(frames) == 1 else pandas.concat(frames, ignore_index=True)


def read_walks(paths: list[Path], every: bool = False) -> tuple[pandas.DataFrame, str]:
    """Read the walks of records, of each configuration on each GPU the fullest run unless every one is asked for.

    Returns the frame as `read_records` gives it, and in words what was left out: how many rows of which records, or "".

    Raises:
        RecordError: as `read_records`; BadInput: the records hold probes only.
    """
    import pandas

    from cost_model.measurement import NO_PROBE
    from wts_lab.recordings import fullest_runs

    frame = read_records(paths)
    walks = frame[frame["probe"].isna() | (frame["probe"] == NO_PROBE)]
    if walks.empty:
        raise BadInput(f"{', '.join(map(str, paths))} holds no walk, only probes; `wts-lab calibrate` reads those, `wts-lab measure` times walks")
    if every:
        return walks, ""
    kept = pandas.concat([fullest_runs(rows) for _, rows in walks.groupby("gpu_name", dropna=False, sort=False)])
    dropped = walks.drop(index=kept.index)
    if dropped.empty:
        return kept, ""
    return kept, f"{len(dropped)} of {len(walks)} rows, from {', '.join(sorted(set(dropped['record'])))}"
