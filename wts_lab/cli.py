"""The command line: `wts-lab`, also `python -m wts_lab`.

A command turns options into the values that the packages take (`cli_inputs`), calls one function, and shows what it returns
(`cli_output`, `cli_views`). `cli_ask` has the commands that only think, `cli_run` those that may use a GPU; `cli_measure`, `cli_sweep`, `cli_tune`, `cli_round`,
`cli_rounds`, `cli_step_table` and `cli_accuracy` have one each, `cli_acceptance` two. Packages that are slow to import are imported by the commands that need them: `predict` answers within
a second of process start.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wts_lab import __version__, cli_acceptance, cli_accuracy, cli_ask, cli_measure, cli_round, cli_rounds, cli_run, cli_step_table, cli_sweep, cli_tune
from wts_lab.cli_output import say, say_error
from wts_lab.endings import EXIT_INTERRUPTED


class OneLineGroup(TyperGroup):
    """A group whose usage errors (an unknown option, a word that is no number) are one line, as all other errors are."""

    def main(self, *arguments: Any, standalone_mode: bool = True, **options: Any) -> Any:
        """Run a command and leave with its exit status; outside standalone mode, return or raise as typer does."""
        if not standalone_mode:
            return super().main(*arguments, standalone_mode=False, **options)
        try:
            status = super().main(*arguments, standalone_mode=False, **options)
        except typer.Abort:
            say("interrupted")
            status = EXIT_INTERRUPTED
        except Exception as error:
            # Newer typers carry their own click, so its errors are told by what they can do.
            if not hasattr(error, "format_message"):
                raise
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
            else:
                say_error(f"{error.format_message().rstrip('.')}; `wts-lab --help` and `wts-lab COMMAND --help` say what there is")
            status = error.exit_code
        sys.exit(status or 0)


app = typer.Typer(
    name="wts-lab", cls=OneLineGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="What would fusing a draft head's walk give on your GPU, and what would keeping its weights on chip add?",
)
for command in (
    cli_run.study, cli_ask.predict, cli_ask.plan, cli_measure.measure, cli_sweep.sweep, cli_tune.tune, cli_run.calibrate, cli_ask.fit, cli_ask.decide,
    cli_accuracy.accuracy, cli_acceptance.acceptance, cli_acceptance.agreement, cli_run.doctor, cli_run.app,
):
    app.command()(command)
app.command("round")(cli_round.round_)  # `round` alone is Python's own
app.command("step-table")(cli_step_table.step_table)
app.command()(cli_rounds.rounds)


def main() -> None:
    """Run the command line and leave with its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show a sign gets a question mark, not a traceback
    try:
        app(prog_name="wts-lab")
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(EXIT_INTERRUPTED)


def _show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        typer.echo(f"wts-lab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Options that stand before the command."""
