"""Where a gain comes from: fusion, precision, residency in a fixed order; and where a measured head's time goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from cost_model import terms
from cost_model.errors import BadInput
from cost_model.forms import is_number
from cost_model.gpu import Gpu
from cost_model.head import Head
from cost_model.predict import Prediction, predict
from cost_model.workload import ENGINE, Workload, require_whole


@dataclass(frozen=True)
class GainSplit:
    """Step costs of four real kernels, and the three gains between them, in microseconds a step.

    Attributes:
        stepwise_us, streaming_bf16_us, streaming_int8x2_us, resident_us: step costs.
        fusion_us: stepwise bf16 − streaming bf16. precision_us: streaming bf16 − streaming int8x2. residency_us: streaming
            int8x2 − resident int8x2. They sum to the whole gain; any may be negative.
    """

    stepwise_us: float
    streaming_bf16_us: float
    streaming_int8x2_us: float
    resident_us: float

    @property
    def fusion_us(self) -> float:
        """What the one launch and the missing intermediate tensors give."""
        return self.stepwise_us - self.streaming_bf16_us

    @property
    def precision_us(self) -> float:
        """What the smaller matrix gives."""
        return self.streaming_bf16_us - self.streaming_int8x2_us

    @property
    def residency_us(self) -> float:
        """What keeping it on chip gives."""
        return self.streaming_int8x2_us - self.resident_us

    @property
    def total_us(self) -> float:
        """The whole gain."""
        return self.stepwise_us - self.resident_us

    def as_dict(self) -> dict:
        """Return step costs and gains as plain values."""
        return {**asdict(self), "fusion_us": self.fusion_us, "precision_us": self.precision_us, "residency_us": self.residency_us,
                "total_us": self.total_us}


def split_gain(gpu: Gpu, head: Head, workload: Workload, implementation: str = ENGINE, variant: str | None = None) -> GainSplit:
    """Predict the split against a path of an engine: the one it takes, unless a variant is named."""
    bf16, int8 = replace(workload, precision="bf16"), replace(workload, precision="int8x2")
    return GainSplit(
        predict(gpu, head, bf16, "stepwise", implementation, variant=variant).step_us, predict(gpu, head, bf16, "streaming").step_us,
        predict(gpu, head, int8, "streaming").step_us, predict(gpu, head, int8, "resident").step_us,
    )


@dataclass(frozen=True)
class HeadSplit:
    """A measured stepwise head, split; the four parts sum to `total_us`.

    Attributes:
        launch_us: what graph replay recovers, or the node gaps of an already graphed head.
        byte_floor_us: steps × bytes of W2 / best rate.
        selection_us: selection kernels, as the engine's description has them, at most what is left.
        projection_excess_us: the rest: matrix-vector kernels that do not reach the byte floor.
        launch_saving_us: what capturing a graph would still save; 0 for a head that is graphed.
        total_us: what was measured.
    """

    launch_us: float
    byte_floor_us: float
    selection_us: float
    projection_excess_us: float
    launch_saving_us: float
    total_us: float

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return asdict(self)


def split_measured_head(gpu: Gpu, head: Head, workload: Workload, *, graphed_us: float, eager_us: float | None = None,
                        implementation: str = ENGINE, variant: str | None = None) -> HeadSplit:
    """Split a measured head of `workload.steps` steps.

    Args:
        graphed_us: its time as a replayed CUDA graph.
        eager_us: its time launched kernel by kernel, where that was measured; then this is the total that is split, and its
            excess over `graphed_us` is the launches.

    Raises:
        BadInput: a time is not above 0, eager is below graphed, or the measurement beats the byte floor (then the floor is
            wrong: the shape, the GPU or the clock is not what was said).
    """
    prediction = predict(gpu, head, replace(workload, precision="bf16"), "stepwise", implementation, variant=variant)
    total = graphed_us if eager_us is None else eager_us
    if not is_number(graphed_us) or not is_number(total) or not 0 < graphed_us <= total:
        raise BadInput(f"graphed_us is {graphed_us!r} and eager_us {eager_us!r}; times are above 0 and eager is not below graphed")
    steps = workload.steps
    step = prediction.terms["step"]
    floor = steps * prediction.read_floor_step_us
    if graphed_us < floor:
        raise BadInput(f"the measured {graphed_us:g} us beat the byte floor of {floor:.1f} us for {steps} steps of {head.name} on {gpu.id}: "
                       "the floor is wrong here; check shape, GPU and whether L2 holds the matrix")
    launch = min(total - graphed_us if eager_us is not None else steps * step["launch"].exposed_us, total - floor)
    selection = min(steps * step["selection"].exposed_us, total - floor - launch)
    return HeadSplit(launch, floor, selection, total - floor - launch - selection, 0.0 if eager_us is None else total - graphed_us, total)


def byte_floor_us(gpu: Gpu, head: Head, steps: int, precision: str = "bf16") -> float:
    """Read floor of a walk that reads W2 from DRAM in each step: steps × V × rank × bytes / datasheet bandwidth."""
    require_whole("steps", steps, 1, None)
    return steps * terms.read_floor_us(terms.matrix_bytes(head.padded_vocab_size, head.rank, precision), gpu.value("dram_bandwidth_bytes_per_s"))


def binding_term(prediction: Prediction) -> str:
    """Name of the largest exposed term of a step."""
    return max(prediction.terms["step"], key=lambda name: prediction.terms["step"][name].exposed_us)
