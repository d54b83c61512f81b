"""Made-up inputs that several tests of the model share: a calibrated H200 from the design study's figures, and exact fits.

The figures are test inputs, not a calibration: they were read from a feasibility study of one H200.
"""

from __future__ import annotations

from cost_model.fit import SeriesKey, StepFit
from cost_model.gpu import BandwidthCurve, Figure, Gpu, load_gpu
from cost_model.head import Head
from cost_model.parameters import ENTRY_ERROR, MODEL_ERROR, class_error
from cost_model.walk_class import FEW_ROWS, WALK_CLASSES

QWEN = Head.markov(151_936, 256)
STUDY = "design study of one H200"


def measured(value: float, unit: str, standard_error: float | None = None) -> Figure:
    """Return a measured figure of the study."""
    return Figure(value, unit, "measured", STUDY, standard_error)


def study_h200(**changes: float) -> Gpu:
    """Return an H200 with the study's figures; `changes` replaces values."""
    values = {
        "exchange_us": (0.80, "us"), "l2_latency_us": (0.146, "us"), "hbm_latency_us": (0.350, "us"),
        "shared_read_bytes_per_s_per_sm": (2.46e11, "B/s"), "mma_s8_ops_per_s_per_sm": (9.63e12, "op/s"),
        "mma_bf16_flops_per_s_per_sm": (4.8e12, "FLOP/s"), "graph_launch_us": (2.5, "us"), "cooperative_launch_us": (3.2, "us"),
        "graph_node_us": (0.52, "us"), "hbm_read_bytes_per_s": (4.65e12, "B/s"), "fused_overhead_us": (0.8, "us"),
        "stream_efficiency": (0.85, "ratio"), "first_step_us": (1.8, "us"),
    }
    errors = {MODEL_ERROR: {**dict.fromkeys(WALK_CLASSES, 0.045), FEW_ROWS: 0.03}, ENTRY_ERROR: dict.fromkeys(WALK_CLASSES, 0.05)}
    values |= {class_error(name, one): (error, "ratio") for name, of_class in errors.items() for one, error in of_class.items()}
    figures = {name: measured(changes.get(name, value), unit) for name, (value, unit) in values.items()}
    sizes = (20e6, 38.9e6, 48e6, 63.6e6, 77.8e6, 1.07e9)
    rates = (9.0e12, 7.8e12, 6.6e12, 4.6e12, 4.2e12, 4.65e12)
    curve = BandwidthCurve(sizes, tuple(measured(rate, "B/s") for rate in rates))
    return load_gpu("h200-sxm", calibrated=False).with_figures(figures, {"read": curve}, STUDY)


def exact_fit(step_us: float, entry_us: float, *, half_us: float = 0.02, status: str = "ok", repeatability_us: float = 0.01) -> StepFit:
    """Return a fit with a symmetric interval."""
    if status == "inconclusive":
        return StepFit(None, None, None, None, None, None, None, False, None, None, 3, 0, 300, (), {}, status, "throttled")
    return StepFit(step_us, step_us - half_us, step_us + half_us, entry_us, entry_us - half_us, entry_us + half_us, repeatability_us, status == "curved",
                   0.5, 1.0, 3, 300, 0, (1, 7, 16), {steps: entry_us + steps * step_us for steps in (1, 7, 16)}, status)


def series_key(mode: str, precision: str = "int8x2", implementation: str = "wts", variant: str | None = None, l2_state: str = "warm",
               head: Head = QWEN, placement: tuple[int, int, int, int] | None = None) -> SeriesKey:
    """Return the key of a series; `placement` is register, shared, streamed and staging tiles at 8 warps."""
    counts = dict(zip(("register_tiles", "shared_tiles", "streamed_tiles", "staging_tiles"), placement or ()))
    fused = {"warps": 8, "tensor_tiles": 0, "grid_blocks": 132, **counts} if placement else {}
    return SeriesKey(gpu_name="NVIDIA H200", l2_state=l2_state, implementation=implementation, variant=variant, mode=mode, precision=precision,
                     rounding="once", head_kind="markov", vocab_size=head.vocab_size, target_vocab_size=head.target_vocab_size,
                     padded_vocab_size=head.padded_vocab_size, rank=head.rank, batch=1, temperature=0.0, probe="none", **fused)
