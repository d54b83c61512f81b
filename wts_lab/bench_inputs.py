"""Weights and inputs of a group of cases, and what walks over them must return.

Everything is drawn on the device that walks it, from one seed: normal base logits and hidden vectors of standard deviation 1,
uniform anchors, and weights with the spreads of `heads.random_head`, so that base logits and corrections both decide the tokens.

What must come out is the twin's: exact for int8x2 on any weights, for bf16 on weights whose products and sums are exact in fp32
(small integers / 8). A sampled walk is exact at temperature 1, where dividing by it loses nothing, so that is where it is
checked: a temperature is an input of the kernel, not another kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wts_lab.bench_plan import WalkCase

if TYPE_CHECKING:
    import torch

    from cost_model.head import Head
    from wts_lab.heads import DraftHead
    from wts_lab.twin_torch import TorchTwinWalk

MAX_CHECKED_DRAWS = 4
CHECKED_WALKS = 16
"""A case is compared with the twin on as many fresh inputs as hold this many walks, but on 1 to MAX_CHECKED_DRAWS."""

EXACT_STEP = 8
"""Exact weights are whole numbers of at most this size, divided by it: products and sums of 512 are exact in fp32."""

CHECKED_TEMPERATURE = 1.0
FIRST_OFFSET = 7
"""Offset of the noise in every checked call; timed calls count on from wherever they are."""


def checked_draws(batch: int) -> int:
    """Fresh inputs that a case of that batch is checked on: 4 up to batch 4, 2 at 8, 1 from 16 on."""
    return max(1, min(MAX_CHECKED_DRAWS, CHECKED_WALKS // batch))


def draw_head(shape: Head, generator: torch.Generator) -> DraftHead:
    """A random head of that shape in bf16, as `heads.random_head` but drawn where the generator is.

    A grid measures dozens of heads, and drawing one of rank 512 on the CPU takes longer than measuring it on a GPU.
    """
    import torch

    from wts_lab.checkpoints import measure
    from wts_lab.heads import HEAD_CLASSES

    kind, sizes = HEAD_CLASSES[shape.kind], shape.as_dict()
    tensors = []
    for name, spread in kind.spreads(shape).items():
        numbers = torch.empty(measure(kind.TENSORS[name], sizes), dtype=torch.bfloat16, device=generator.device)
        tensors.append(numbers.normal_(generator=generator).mul_(torch.as_tensor(spread, device=generator.device)))
    pool = {} if shape.candidate_pool is None else {"candidate_pool": shape.candidate_pool}
    return kind(*tensors, vocab_size=shape.vocab_size, name=shape.name, **pool)


class GroupInputs:
    """Weights and inputs of one group, for its longest walk.

    Attributes:
        head: a random head of the group's shape.
        base: base logits, bf16 ``[B, positions, V]``.
        anchor: int64 ``[B]``.
        hidden: hidden vectors, bf16 ``[B, positions, hidden_size]``; None for Markov heads.
        temperatures: float32 ``[B]``; None where the group is greedy.
        noise: key and int64 ``[1]`` offset; None where the group is greedy.
        logits: where kept logits go, bf16 ``[B, positions, V]``; None where no case keeps any.
    """

    def __init__(self, cases: tuple[WalkCase, ...] | list[WalkCase], max_steps: int, seed: int, device: Any) -> None:
        import torch

        case = cases[0]
        shape, positions = case.head, case.positions(max_steps)
        self._torch, self._temperature = torch, case.temperature
        self._generator = torch.Generator(device=device).manual_seed(seed)
        self._expected: dict[tuple, TorchTwinWalk] = {}
        self.head = draw_head(shape, self._generator)

        def buffer(columns: int) -> torch.Tensor:
            return torch.empty((case.batch, positions, columns), dtype=torch.bfloat16, device=device)

        self.base, self._base_source = buffer(shape.vocab_size), buffer(shape.vocab_size)
        self.anchor = torch.empty(case.batch, dtype=torch.int64, device=device)
        self.logits = buffer(shape.vocab_size) if any(one.logits_kept for one in cases) else None
        self.hidden = self._hidden_source = self.temperatures = self.noise = None
        if shape.hidden_size is not None:
            self.hidden, self._hidden_source = buffer(shape.hidden_size), buffer(shape.hidden_size)
        if case.temperature:
            self.temperatures = torch.full((case.batch,), float(case.temperature), device=device)
            self.noise = (seed, torch.zeros(1, dtype=torch.int64, device=device))
        self.draw()

    def draw(self) -> None:
        """Fresh base logits, hidden vectors and anchors, in place."""
        for source in (self._base_source, self._hidden_source):
            if source is not None:
                source.normal_(generator=self._generator)
        self.write(self.base.shape[1])
        self.anchor.random_(0, self.head.target_vocab_size, generator=self._generator)
        self._expected.clear()

    def write(self, positions: int) -> None:
        """Write the first positions of hidden vectors and then base logits anew, as a backbone does right before the walk."""
        for target, source in ((self.hidden, self._hidden_source), (self.base, self._base_source)):
            if target is not None:
                target[:, :positions].copy_(source[:, :positions])

    def begin_check(self) -> None:
        """Set temperature and noise to what expected tokens stand for. To be called before every compared call, which counts the
        offset on."""
        if self.noise is not None:
            self.temperatures.fill_(CHECKED_TEMPERATURE)
            self.noise[1].fill_(FIRST_OFFSET)

    def end_check(self) -> None:
        """Set the temperature back to the group's."""
        if self.noise is not None:
            self.temperatures.fill_(self._temperature)

    def options(self, case: WalkCase, positions: int | None = None) -> dict[str, Any]:
        """Keyword arguments of a call over the first positions (default: all), beside base logits, anchors and ``tokens_out``."""
        part = slice(positions)
        options: dict[str, Any] = {} if self.hidden is None else {"hidden": self.hidden[:, part]}
        if self.noise is not None:
            options |= {"temperatures": self.temperatures, "noise": self.noise}
        if case.logits_kept:
            options["logits_out"] = self.logits[:, part]
        return options

    def expected(self, case: WalkCase, positions: int) -> TorchTwinWalk:
        """What a fused int8x2 case must return for the first positions of the present inputs, at CHECKED_TEMPERATURE.

        A longer Markov walk begins as a shorter one does. Other heads have position terms, whose last bits may depend on how many
        positions are computed at once, so each length has a walk of its own.
        """
        whole = positions if self.hidden is not None else self.base.shape[1]
        key = (case.rounding, case.logits_kept, whole)
        if key not in self._expected:
            self._expected[key] = self._twin(case, whole)
        return self._expected[key]

    def expected_exact(self, case: WalkCase, head: DraftHead) -> TorchTwinWalk:
        """What a bf16 case must return for all positions of the present inputs over a head of exact weights."""
        from wts_lab.twin_torch import expected_walks

        return expected_walks(head, self.base, self.anchor, precision="bf16", **self._twin_options(case))

    def exact_head(self) -> DraftHead:
        """A Markov head of the same shape whose bf16 products and sums are exact in fp32."""
        from wts_lab.heads import MarkovHead

        def whole(rows: int) -> torch.Tensor:
            shape = (rows, self.head.rank)
            numbers = self._torch.randint(-EXACT_STEP, EXACT_STEP + 1, shape, generator=self._generator, device=self.base.device)
            return (numbers / EXACT_STEP).to(self._torch.bfloat16)

        return MarkovHead(whole(self.head.target_vocab_size), whole(self.head.padded_vocab_size), vocab_size=self.head.vocab_size)

    def _twin(self, case: WalkCase, positions: int) -> TorchTwinWalk:
        """The int8x2 twin over the first positions."""
        base, options = self.base[:, :positions], self._twin_options(case)
        if self.head.kind == "markov":
            from wts_lab.twin_torch import expected_walks

            return expected_walks(self.head, base, self.anchor, **options)
        from wts_lab.head_terms import position_terms
        from wts_lab.recurrent_twin import twin_head_walks

        terms = position_terms(self.head, self.hidden[:, :positions])
        return twin_head_walks(self.head, self._pooled(base), self.anchor, terms, precision="int8x2", **options)

    def _pooled(self, base: torch.Tensor) -> torch.Tensor:
        """Base logits in which every step of a head with a candidate pool finds -inf outside of the pool."""
        from wts_lab.stepwise import candidate_ids

        pool, first = self.head.candidate_pool, self.head.first_step
        if pool is None or base.shape[1] == first:
            return base
        inside = self._torch.zeros_like(base[:, 0], dtype=self._torch.bool).scatter_(1, candidate_ids(base[:, first:], pool), True)
        pooled = base.clone()
        pooled[:, first:].masked_fill_(~inside[:, None], float("-inf"))
        return pooled

    def _twin_options(self, case: WalkCase) -> dict[str, Any]:
        """Arithmetic and noise of a twin, whose walks are the rows of one call."""
        options: dict[str, Any] = {"rounding": case.rounding}
        if self.noise is not None:
            checked = self._torch.full_like(self.temperatures, CHECKED_TEMPERATURE)
            options |= {"temperatures": checked, "noise": (self.noise[0], FIRST_OFFSET), "rows": self._torch.arange(len(self.anchor))}
        return options | ({"keep_logits": True} if case.logits_kept else {})
