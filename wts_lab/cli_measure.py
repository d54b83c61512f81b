"""The command `measure`: time the walks that are asked for on the GPU in this machine, into one record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.head import HEAD_KINDS, Head
from cost_model.workload import DEFAULT_EXCHANGE, EXCHANGES, MODES, PRECISIONS, require_word
from wts_lab.cli_inputs import (
    STANDARD_STEPS, STUDIED_VOCABULARY, BatchesOption, CaseOption, GpuHereOption, HeadsOption, JsonOption, KindOption, L2StatesOption, ModesOption,
    PlacementOption, PrecisionsOption, ProcessesOption, RankOption, RecordsFolderOption, RepeatsOption, SglangRootOption, StepsListOption,
    TemperaturesOption, VocabsOption, WalksRoundingOption, heads_from, placement_from, whole_from, wholes_from, words_from,
)
from wts_lab.cli_output import print_json, say, user_errors
from wts_lab.measured_text import number_from

if TYPE_CHECKING:
    from wts_lab.bench_plan import WalkCase

USUAL_PRECISIONS = {"resident": ("int8x2",), "streaming": ("int8x2", "bf16"), "stepwise": ("bf16",)}
"""What a mode is timed in unless precisions are named."""


def measure(
    head: HeadsOption = None,
    vocab: VocabsOption = None,
    rank: RankOption = None,
    kind: KindOption = None,
    mode: ModesOption = ",".join(MODES),
    precision: PrecisionsOption = None,
    batch: BatchesOption = "1",
    temperature: TemperaturesOption = "0",
    logits: Annotated[bool, typer.Option("--logits", help="Keep the step logits, as a sampling round needs them.")] = False,
    rounding: WalksRoundingOption = None,
    placement: PlacementOption = None,
    exchange: Annotated[str | None, typer.Option("--exchange", help=f"One of {', '.join(EXCHANGES)}. [default: {DEFAULT_EXCHANGE}]")] = None,
    sglang_root: SglangRootOption = None,
    steps: StepsListOption = STANDARD_STEPS,
    l2_state: L2StatesOption = "warm",
    processes: ProcessesOption = 3,
    repeats: RepeatsOption = 100,
    out: RecordsFolderOption = Path("runs"),
    case: CaseOption = "measure",
    gpu: GpuHereOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time walks on the GPU in this machine into one record. The tokens are checked first: a wrong kernel is not timed."""
    from wts_lab.bench import measure as measure_walks

    with user_errors(out=out):
        if sglang_root is not None and not sglang_root.is_dir():
            raise BadInput(f"--sglang-root is {sglang_root}, which is no folder; give the one that an sglang wheel was unpacked into")
        asked = Asked(
            tuple(words_from([mode])), None if precision is None else tuple(words_from([precision])), rounding, logits,
            placement_from(placement), exchange, sglang_root is not None,
        )
        heads = [as_kind(each, kind) for each in heads_from(head, vocab, rank, (STUDIED_VOCABULARY,))]
        batches = [whole_from("--batch", word) for word in words_from([batch]) or [""]]
        temperatures = [number_from("--temperature", word) for word in words_from([temperature]) or [""]]
        cases = tuple(case for each in heads for rows in batches for degree in temperatures for case in asked.cases(each, rows, degree))
        gpu_id = load_gpu(gpu).id if gpu is not None else None
        path = measure_walks(
            cases, steps=wholes_from("--steps", steps), l2_states=tuple(words_from([l2_state])), processes=processes, repeats=repeats,
            out=out, case_name=case, gpu=gpu_id, progress=True, engine_root=sglang_root,
        )
        if as_json:
            print_json({"record": str(path), "cases": [each.label for each in cases]})
        else:
            say(f"wrote {path}; `wts-lab fit {path}` fits it")


@dataclass(frozen=True)
class Asked:
    """Which walks of a head are timed.

    Attributes:
        modes, precisions: those wanted; precisions None for USUAL_PRECISIONS.
        rounding: of our walks and of torch's; None for what is usual. The engine's paths have their own.
        logits: whether step logits are kept.
        placement, exchange: of the fused walks; None for the planner's and the usual one.
        engine: whether the engine's own paths are timed.

    Raises:
        BadInput: a word that is none of those known.
    """

    modes: tuple[str, ...]
    precisions: tuple[str, ...] | None
    rounding: str | None
    logits: bool
    placement: Any
    exchange: str | None
    engine: bool

    def __post_init__(self) -> None:
        for word in self.modes:
            require_word("--mode", word, MODES)
        for word in self.precisions or ():
            require_word("--precision", word, PRECISIONS)

    def cases(self, head: Head, batch: int, temperature: float) -> list[WalkCase]:
        """The walks of one head at one batch and temperature.

        Raises:
            BadInput: there is none, or one that cannot be run.
        """
        fields = {"batch": batch, "temperature": temperature, "logits_kept": self.logits}
        found = [*self._fused(head, fields), *self._stepwise(head, fields)]
        if not found:
            raise BadInput(
                f"no walk of {head.name} runs {' or '.join(self.modes)} in {' or '.join(self.precisions or ('any precision',))}; "
                "stepwise walks are bf16, resident and streaming ones are int8x2 or, of markov heads, bf16"
            )
        return found

    def _precisions(self, mode: str) -> tuple[str, ...]:
        return USUAL_PRECISIONS[mode] if self.precisions is None else self.precisions

    def _rounding(self) -> dict[str, str]:
        return {} if self.rounding is None else {"rounding": self.rounding}

    def _fused(self, head: Head, fields: dict[str, Any]) -> Iterator[WalkCase]:
        """Our kernels' walks; those in bf16 have a twin to be checked with for Markov heads alone."""
        from wts_lab.bench_plan import resident_case, streaming_case

        for mode, make in (("resident", resident_case), ("streaming", streaming_case)):
            for precision in self._precisions(mode) if mode in self.modes else ():
                if precision == "int8x2" or head.kind == "markov":
                    yield make(head, precision=precision, placement=self.placement, exchange=self.exchange, **fields, **self._rounding())

    def _stepwise(self, head: Head, fields: dict[str, Any]) -> Iterator[WalkCase]:
        """Torch's walk, and the engine's over Markov heads: its greedy path is for batch 1."""
        from wts_lab.bench_plan import engine_case, stepwise_case

        if "stepwise" not in self.modes or "bf16" not in self._precisions("stepwise"):
            return
        yield stepwise_case(head, **fields, **self._rounding())
        if self.engine and head.kind == "markov":
            if fields["batch"] == 1 and not fields["temperature"] and not self.logits:
                yield engine_case(head, "MarkovGreedyStep", **fields)
            yield engine_case(head, "MarkovSampleStep", **fields)


def as_kind(head: Head, kind: str | None) -> Head:
    """The head's sizes as those of another kind; the same head where no kind, or its own, is asked for.

    Raises:
        BadInput: an unknown kind, or one that needs sizes that the head does not have.
    """
    if kind is None or kind == head.kind:
        return head
    require_word("--kind", kind, HEAD_KINDS)
    try:
        return Head(
            f"{kind}-{head.name}", kind, head.vocab_size, head.target_vocab_size, head.padded_vocab_size, head.rank,
            None if kind == "markov" else head.hidden_size, head.gru_size if kind == "domino" else None,
            head.candidate_pool if kind == "domino" else None,
        )  # fmt: skip
    except BadInput as error:
        raise BadInput(f"--kind is {kind}, and {head.name} does not give all sizes: {error}; name a head that does with --head") from error
