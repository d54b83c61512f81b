"""`wts-lab round`: one speculative round on a target and drafter, with everything that could be done about its head. Touches no GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.workload import Workload
from wts_lab import round_views
from wts_lab.cli_inputs import (
    GpuOption, JsonOption, L2StateOption, TemperatureOption, measured_option, path_from, path_option, require_steps,
)
from wts_lab.cli_output import print_json, print_table, require_page, user_errors, write_page
from wts_lab.measured_text import measured_from

if TYPE_CHECKING:
    from cost_model.drafter_memory import DrafterMemory
    from cost_model.gpu import Gpu
    from cost_model.head import Head
    from cost_model.phases import Phase
    from cost_model.round import Interval
    from cost_model.targets import Drafter, Target


MEASURED = "measured"
"""Basis of a phase whose time comes from a round record."""


def round_(
    gpu: GpuOption,
    drafter: Annotated[str, typer.Option("--drafter", help="A drafter from the catalogue, such as dspark-qwen3-8b.", show_default=False)],
    accepted_length: Annotated[str | None, measured_option("--accepted-length", "Tokens a round and sequence, the bonus token included.")] = None,
    acceptance_rate: Annotated[float | None, typer.Option("--acceptance-rate", help="Chance of each drafted token, instead of --accepted-length.")] = None,
    records: Annotated[
        list[Path] | None, typer.Argument(help="Records whose fits replace predictions of the head.", parser=path_from, metavar="[RECORDS]...")
    ] = None,
    head: Annotated[str | None, typer.Option("--head", help="Another head than the drafter's.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", help="Sequences that go through a round together.")] = 1,
    context: Annotated[int, typer.Option("--context", help="Tokens of context of each sequence.")] = 2048,
    steps: Annotated[int | None, typer.Option("--steps", help="Tokens drafted a round; the drafter's own number if left out.")] = None,
    temperature: TemperatureOption = 0.0,
    l2_state: L2StateOption = "serving",
    verify_us: Annotated[str | None, measured_option("--verify-us", "The target's pass; estimated from a roofline if left out.")] = None,
    measured: Annotated[list[Path] | None, typer.Option("--measured", help="A round record whose times of this round replace estimates.", parser=path_from, metavar="PATH")] = None,
    backbone_us: Annotated[str | None, measured_option("--backbone-us", "The drafter's layers; likewise.")] = None,
    base_logits_us: Annotated[str | None, measured_option("--base-logits-us", "The draft's output projection; likewise.")] = None,
    schedule: Annotated[str, typer.Option("--schedule", help="serial, or overlapped: the draft runs beside verify, as in DPara.")] = "serial",
    hidden_share: Annotated[str | None, measured_option("--hidden-share", "Overlapped: part of the shorter of both that is hidden.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="separate-kv, target-kv or window; the drafter's own if left out.")] = None,
    window: Annotated[int | None, typer.Option("--window", help="Positions that a window keeps.")] = None,
    recurrent_layers: Annotated[int, typer.Option("--recurrent-layers", help="Draft layers with a recurrent state.")] = 0,
    state_bytes: Annotated[int, typer.Option("--state-bytes", help="State of one such layer for one sequence.")] = 0,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Also price pruning to so many candidates (approximate).")] = None,
    draft_vocab: Annotated[int | None, typer.Option("--draft-vocab", help="Also price a draft vocabulary of so many rows (approximate).")] = None,
    ranks: Annotated[int, typer.Option("--ranks", help="GPUs of tensor parallelism.")] = 1,
    collective_us: Annotated[float | None, typer.Option("--collective-us", help="One collective of a step on their link.")] = None,
    out: Annotated[Path | None, path_option("--out", "Write the answer to this file, .md or .json.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask about one speculative round: phases, the head's share, tokens per second with each head, memory, break-even, and what to do."""
    from cost_model.serving import RoundRequest, ask_round, shapes_of
    from cost_model.substitutes import Alternatives
    from cost_model.targets import load_drafter

    with user_errors(out=out):
        require_page(out)
        chip, drafts = load_gpu(gpu), load_drafter(drafter)
        target, shape = shapes_of(drafts, _head(head))
        drafted = drafts.steps if steps is None else steps
        require_steps(drafted)
        length, length_interval = _length(accepted_length, acceptance_rate, drafted)
        share, share_interval = measured_from("--hidden-share", hidden_share) if hidden_share is not None else (None, None)
        request = RoundRequest(
            drafts, target, shape, Workload(concurrency, drafted, temperature, l2_state=l2_state), context, length, length_interval,
            _recorded(chip, measured, target, concurrency, context, drafted)
            | _times({"verify": verify_us, "backbone": backbone_us, "base_logits": base_logits_us}), schedule, share, share_interval,
            _memory(drafts, target, memory, window, recurrent_layers, state_bytes), Alternatives(top_k, draft_vocab, ranks, collective_us),
        )
        answer = ask_round(chip, request, **_measured(chip, records))
        if out is not None:
            write_page(out, answer, round_views.markdown(answer))
        if as_json:
            print_json(answer)
            return
        for title, columns, rows in round_views.tables(answer):
            print_table(title, columns, rows)
        for line in round_views.sentences(answer):
            typer.echo(line)


def _head(name: str | None) -> Head | None:
    """The head that was named."""
    from cost_model.head import load_head

    return None if name is None else load_head(name)


def _length(text: str | None, rate: float | None, steps: int) -> tuple[float, Interval | None]:
    """The accepted length as given, or as a rate implies."""
    from cost_model.round import expected_accepted_length

    if (text is None) == (rate is None):
        raise BadInput("give --accepted-length as measured on your traffic, or --acceptance-rate for an idealised one; one of both, as no model knows it")
    return measured_from("--accepted-length", text) if text is not None else (expected_accepted_length(rate, steps), None)


def _times(texts: dict[str, str | None]) -> dict[str, Phase]:
    """The phases whose times were given."""
    from cost_model.phases import given

    return {name: given(*measured_from(f"--{name.replace('_', '-')}-us", text)) for name, text in texts.items() if text is not None}


def _recorded(gpu: Gpu, records: list[Path] | None, target: Target, concurrency: int, context: int, steps: int) -> dict[str, Phase]:
    """Times of this round's phases from round records; none where none are given."""
    from cost_model.measured_round import RoundKey, known_phases, measured_parts
    from cost_model.phases import given
    from wts_lab.cli_rounds import read_rounds

    if not records:
        return {}
    frame, _ = read_rounds(records, gpu.id)
    found = known_phases(measured_parts(frame), RoundKey(target.name, concurrency, context, steps))
    return {name: replace(given(*times), basis=MEASURED) for name, times in found.items()}


def _memory(drafter: Drafter, target: Target, scheme: str | None, window: int | None, recurrent_layers: int, state_bytes: int) -> DrafterMemory:
    """How the drafter keeps context."""
    from cost_model.drafter_memory import memory_of

    return memory_of(drafter, target, scheme=scheme, recurrent_layers=recurrent_layers, state_bytes=state_bytes, window_tokens=window)


def _measured(gpu: Any, records: list[Path] | None) -> dict[str, Any]:
    """The fits of records, and what these know of their machine."""
    from cost_model.settings import REPLAYED
    from wts_lab.cli_ask import recorded

    if not records:
        return {}
    fits, environment = recorded(gpu, records)
    return {"fits": fits, "environment": environment, "source": REPLAYED}
