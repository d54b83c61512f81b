"""The commands `acceptance` and `agreement`: what drafts are accepted, by logs of serving, and how often int8x2 drafts another token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cost_model.head import HEAD_KINDS
from cost_model.units import format_percent
from cost_model.workload import ROUNDINGS, require_word
from wts_lab.cli_inputs import JsonOption, RoundingOption, VocabOption, path_from, path_option
from wts_lab.cli_output import print_json, print_table, say, user_errors

if TYPE_CHECKING:
    from cost_model.accepted_length import AcceptanceLog, Estimate, LengthChange


def acceptance(
    before: Annotated[Path, typer.Argument(help="Log of a run, .jsonl or .parquet.", parser=path_from, metavar="LOG", show_default=False)],
    after: Annotated[
        Path | None, typer.Argument(help="Log of another run, to be compared with the first.", parser=path_from, metavar="[LOG]", show_default=False)
    ] = None,
    resamples: Annotated[int, typer.Option("--resamples", help="Bootstrap samples.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Accepted length of a logged run, or its change between two, with 95 % intervals over prompts."""
    from cost_model.accepted_length import FEW_PROMPTS, accepted_length, length_change, read_log

    with user_errors():
        logs = [read_log(path) for path in (before, after) if path is not None]
        few = min(len(log.prompts) for log in logs)
        if few < FEW_PROMPTS:
            say(f"only {few} prompts: from about {FEW_PROMPTS} on the interval is as wide as it should be")
        if after is None:
            estimate = accepted_length(logs[0], resamples=resamples, seed=seed)
            if as_json:
                print_json({"accepted_length": estimate, "prompts": len(logs[0].prompts), "position_shares": logs[0].position_shares})
            else:
                _show_run(logs[0], estimate)
            return
        change = length_change(*logs, resamples=resamples, seed=seed)
        if as_json:
            print_json({**change.as_dict(), "position_shares": [log.position_shares for log in logs]})
        else:
            _show_change(change, logs)


def _show_run(log: AcceptanceLog, estimate: Estimate) -> None:
    """Show one run, and how the commands that want its accepted length take it."""
    print_table("Accepted length", ("run", "prompts", "rounds", "accepted length", "95 % interval"), [("the log", *_run_cells(estimate, log))])
    _show_positions([log])
    typer.echo(f"For `wts-lab round` and `wts-lab decide`: --accepted-length {estimate.told}")


def _show_change(change: LengthChange, logs: list[AcceptanceLog]) -> None:
    """Show two runs and the change."""
    print_table(
        "Accepted length", ("run", "prompts", "rounds", "accepted length", "95 % interval"),
        [("before", *_run_cells(change.before, logs[0])), ("after", *_run_cells(change.after, logs[1]))],
    )
    _show_positions(logs)
    drawn = "the same prompts, drawn together" if change.is_paired else "different prompts, drawn apart"
    typer.echo(f"Change: {change.difference.value:+.3g} tokens a round ({change.difference.low:+.3g} to {change.difference.high:+.3g}), a factor of "
               f"{change.ratio.value:.4g} ({change.ratio.low:.4g} to {change.ratio.high:.4g}); {drawn}.")  # fmt: skip
    typer.echo("The runs differ." if change.is_distinguishable else "Not distinguishable: the interval holds 0.")


def _run_cells(estimate: Estimate, log: AcceptanceLog) -> tuple[str, ...]:
    """One run's cells."""
    return (f"{len(log.prompts):,}", f"{int(log.rounds.sum()):,}", f"{estimate.value:.4g}", f"{estimate.low:.4g} to {estimate.high:.4g}")


def _show_positions(logs: list[AcceptanceLog]) -> None:
    """Show the share of accepted tokens, position by position."""
    shares = [log.position_shares for log in logs]
    names = ("accepted",) if len(logs) == 1 else ("before", "after")
    rows = [(str(place + 1), *(format_percent(each[place]) if place < len(each) else "-" for each in shares)) for place in range(max(map(len, shares)))]
    print_table("Rounds whose token was accepted, by position", ("position", *names), rows)


def agreement(
    blocks: Annotated[Path, typer.Argument(help="A .safetensors file of drafted blocks.", parser=path_from, metavar="BLOCKS", show_default=False)],
    checkpoint: Annotated[Path, path_option("--checkpoint", "A .safetensors file, or a folder of them, that holds the draft head.")],
    target: Annotated[
        Path | None, path_option("--target", "Checkpoint of the target model: its output matrix, for blocks without base logits, and a Domino head's embedding.")
    ] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Kind of the head. [default: what the checkpoint holds]")] = None,
    vocab: VocabOption = None,
    number_format: Annotated[str, typer.Option("--format", help="Number format to compare with bf16, as `accuracy` names them.")] = "int8x2",
    rounding: RoundingOption = "once",
    device: Annotated[str | None, typer.Option("--device", help="cpu or cuda; the GPU where there is one if left out.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Share of steps in which int8x2 drafts the token that bf16 drafts, for your head on your own hidden vectors, with its interval."""
    from wts_lab.accuracy import FORMAT_NAMES
    from wts_lab.cli_accuracy import usable_device

    with user_errors():
        require_word("--format", number_format, FORMAT_NAMES)
        require_word("--rounding", rounding, ROUNDINGS)
        if kind is not None:
            require_word("--kind", kind, HEAD_KINDS)
        place = usable_device(device)
        from wts_lab.agreement import estimate_agreement, read_blocks
        from wts_lab.heads import head_from_safetensors

        head = head_from_safetensors(checkpoint, kind, embedding=target, vocab_size=vocab, device=place)
        found = estimate_agreement(head, read_blocks(blocks, head, target), format=number_format, rounding=rounding)
        if as_json:
            print_json(found)
            return
        low, high = (format_percent(share) for share in (found.equal_step_share_low, found.equal_step_share_high))
        typer.echo(f"{found.format} drafts the token of bf16 in {format_percent(found.equal_step_share)} of {found.steps:,} steps ({low} to {high}), "
                   f"over {found.blocks:,} blocks of {found.prompts:,} prompts, given the same history.")  # fmt: skip
        typer.echo(f"A block is equal for {found.prefix_length_mean:.4g} steps before its first difference; {format_percent(found.equal_block_share)} "
                   "of the blocks are equal from end to end.")  # fmt: skip
        if found.design_effect is not None:
            typer.echo(f"Steps of a prompt are alike: the interval is that of {found.steps / max(1.0, found.design_effect):,.0f} independent ones.")

