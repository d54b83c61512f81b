"""Roofline: arithmetic intensity and rate of a step's phases, under the roofs of a GPU's memories and tensor cores.

A roof is a bandwidth (operations a second = intensity × bytes a second) or a flat rate. A phase without arithmetic (the latent,
the exchange, launches) has no place in the picture: `idle_us` says how long those take.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_model import terms
from cost_model.gpu import Gpu
from cost_model.parameters import resolve
from cost_model.predict import Prediction
from cost_model.stepwise import byte_rate
from cost_model.units import US_PER_S

PROJECTION_TERMS = ("products", "shared_read", "stream", "byte_floor", "projection_excess")
SELECTION_TERMS = ("epilogue", "block_reduction", "selection", "sampling")
OPERATIONS_A_LOGIT = 2
"""Adding the correction and comparing with the best."""

TENSOR_RATE = {"bf16": "bf16_dense_flops_per_s", "int8x2": "int8_dense_ops_per_s"}


@dataclass(frozen=True)
class Phase:
    """One phase of a step.

    Attributes:
        name: in words.
        operations, work_bytes: of the whole chip in one step; the bytes are those that the phase cannot do without.
        time_us: exposed time of its terms.
        tier: where most of the bytes come from.
    """

    name: str
    operations: float
    work_bytes: float
    time_us: float
    tier: str

    @property
    def intensity_ops_per_byte(self) -> float:
        """Operations for each byte."""
        return self.operations / self.work_bytes

    @property
    def rate_ops_per_s(self) -> float:
        """Operations a second that the phase reaches."""
        return self.operations / self.time_us * US_PER_S


@dataclass(frozen=True)
class Roof:
    """A limit: of a memory (`bytes_per_s`) or of the tensor cores (`ops_per_s`); the other is None."""

    name: str
    bytes_per_s: float | None = None
    ops_per_s: float | None = None

    def at(self, intensity_ops_per_byte: float) -> float:
        """Operations a second that the roof allows at an intensity."""
        return self.ops_per_s if self.bytes_per_s is None else intensity_ops_per_byte * self.bytes_per_s


def phases(gpu: Gpu, prediction: Prediction) -> tuple[Phase, ...]:
    """Projection, selection and the whole step of a prediction.

    projection: 2 × V × rank × batch × vectors operations on every byte of W2; selection: `OPERATIONS_A_LOGIT` for each base logit;
    the step does both in all of its time.
    """
    head, workload, precision = prediction.head, prediction.workload, prediction.precision
    vocab, batch = head.padded_vocab_size, workload.batch
    matrix = float(terms.matrix_bytes(vocab, head.rank, precision))
    logits = float(terms.base_logits_bytes(vocab, batch))
    products = 2.0 * vocab * head.rank * batch * terms.VECTORS_OF_PRECISION[precision]
    picks = float(OPERATIONS_A_LOGIT * vocab * batch)
    tier = _tier(gpu, prediction, matrix)
    found = (
        Phase("projection", products, matrix, _exposed_us(prediction, PROJECTION_TERMS), tier),
        Phase("selection", picks, logits, _exposed_us(prediction, SELECTION_TERMS), "L2 or HBM"),
        Phase("whole step", products + picks, matrix + logits, prediction.step_us, tier),
    )
    return tuple(phase for phase in found if phase.time_us > 0)


def idle_us(prediction: Prediction) -> float:
    """Exposed time of a step in which nothing is multiplied, added or compared: latent, exchange, launches, overhead."""
    return prediction.step_us - _exposed_us(prediction, (*PROJECTION_TERMS, *SELECTION_TERMS))


def roofs(gpu: Gpu, precision: str, footprint_bytes: float) -> tuple[Roof, ...]:
    """The roofs of a GPU: HBM, L2 for that footprint where it beats HBM, shared memory of all multiprocessors, tensor cores.

    Rates are dense; bandwidths are measured ones where the GPU is calibrated.
    """
    parameters = resolve(gpu)
    known = parameters.only(gpu, ("hbm_read_bytes_per_s", "shared_read_bytes_per_s_per_sm"))
    hbm, shared = (one.value for one in known.values())
    again = byte_rate(gpu, parameters.curve, footprint_bytes)
    found = [Roof("HBM", bytes_per_s=hbm)] + [Roof("L2", bytes_per_s=again)] * (again > hbm)
    found.append(Roof("shared memory", bytes_per_s=gpu.sm_count * shared))
    rate = TENSOR_RATE[precision]
    if gpu.has(rate):
        found.append(Roof(f"{precision.removesuffix('x2')} tensor cores", ops_per_s=gpu.value(rate)))
    return tuple(found)


def _exposed_us(prediction: Prediction, names: tuple[str, ...]) -> float:
    """Exposed time of those terms of a step that there are."""
    step = prediction.terms["step"]
    return sum(step[name].exposed_us for name in names if name in step)


def _tier(gpu: Gpu, prediction: Prediction, matrix_bytes: float) -> str:
    """Where the matrix is read from in a step: on chip where more than half of it stays there, else L2 where that holds the rest."""
    placement = prediction.placement
    if placement is not None and placement.residency > 0.5:
        return "registers and shared memory"
    again = matrix_bytes if placement is None else matrix_bytes * (1.0 - placement.residency)
    return "L2" if gpu.has("l2_bytes") and again <= gpu.value("l2_bytes") else "HBM"
