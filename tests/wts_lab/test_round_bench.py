"""A whole measured round on the CPU: the real phases, heads, checks and records over a tiny catalogue."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from cost_model.errors import BadInput
from cost_model.measurement import RecordError, frame_rows, read_round
from tests import tiny_round
from wts_lab.bench import WrongKernel
from wts_lab.bench_run import MeasurementInterrupted, WorkerFailed
from wts_lab.round_bench import MOST_LAYER_ERROR, REST_S, RESTS, burst, layer_errors, stream_rounds
from wts_lab.nvml import ClockReading
from wts_lab.round_parts import RoundModels, RoundParts, RoundShape
from wts_lab.round_plan import RoundCase, RoundPlan, implementation_name, select_cases
from wts_lab.round_run import main, measure_rounds, work
from wts_lab.run_folder import RunFolder  # noqa: E402
from wts_lab.stepwise import StepwiseWalk
from wts_lab.timing import GateTimer, TimingError

CPU = torch.device("cpu")
PROVENANCE = {"command": "test", "gpu_name": "none"}


@pytest.fixture(autouse=True)
def catalogue(monkeypatch, tmp_path):
    tiny_round.use_catalogue(monkeypatch, tmp_path / "data")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # products this small take longer on several
    yield
    torch.set_num_threads(threads)


def case(concurrency=2, context=9, steps=3) -> RoundCase:
    return RoundCase("tiny-drafter", steps, concurrency, context, engine=False)


def parts_of(one: RoundCase, dtype=torch.float32) -> RoundParts:
    shape = RoundShape.of(one.drafter, one.steps, one.concurrency, one.context_tokens)
    return RoundParts(shape, RoundModels(shape.drafter, shape.target, CPU, 0, dtype))


def test_verify_accepts_what_the_target_would_have_said():
    parts = parts_of(case(concurrency=3))
    parts.verify()
    for _ in range(3):  # each time the target's own words for the tokens before them, so one more is right
        parts.tokens[0, 1:] = parts.greedy[0, :-1]
        parts.tokens[1, 1] = parts.greedy[1, 0]
        parts.tokens[2, 1] = (parts.greedy[2, 0] + 1) % 320
        parts.tokens[1, 2] = (parts.greedy[1, 1] + 1) % 320
        parts.verify()
    assert parts.accepted.tolist() == [3, 1, 0]
    assert parts.anchor.tolist() == [parts.greedy[0, 3], parts.greedy[1, 1], parts.greedy[2, 0]]


def test_a_round_is_its_phases_one_after_the_other_and_repeats_itself():
    parts = parts_of(case(), torch.bfloat16)
    head = tiny_round.StepwiseWalk
    from wts_lab.bench_inputs import draw_head

    weights = draw_head(case().head, torch.Generator().manual_seed(5))
    walk, drafts = head(weights), torch.empty_like(parts.tokens[:, 1:])
    parts.whole(walk, drafts)()
    seen = [drafts.clone(), *(getattr(parts, name).clone() for name in ("base_logits", "hidden", "anchor", "features"))]
    assert torch.equal(drafts, StepwiseWalk(weights)(parts.base_logits, parts.anchor))
    wanted = parts.hidden.flatten(0, 1) @ parts.models.target.output.t()
    torch.testing.assert_close(parts.base_logits.flatten(0, 1), wanted)
    for buffer in (parts.base_logits, parts.hidden, parts.features):
        buffer.fill_(float("nan"))
    drafts.fill_(-1)
    for work_of in (*map(parts.phase, ("verify", "backbone", "base_logits")), parts.head(walk, drafts)):
        work_of()
    for now, before in zip([drafts, parts.base_logits, parts.hidden, parts.anchor, parts.features], seen):
        assert torch.equal(now, before)


def test_a_block_that_begins_with_the_known_token_drafts_at_the_others(monkeypatch, tmp_path):
    tiny_round.use_catalogue(monkeypatch, tmp_path / "dflash", block=4)
    parts = parts_of(case())
    assert parts.hidden.shape == (2, 4, 64)
    parts.anchor.fill_(7)
    parts.features.normal_()
    parts.backbone()
    assert parts.block[:, 0].tolist() == [7, 7]
    parts.make_base_logits()
    torch.testing.assert_close(parts.base_logits[1, 0], parts.models.target.output @ parts.hidden[1, 1], atol=1e-5, rtol=1e-4)


def test_caches_take_what_the_shape_says():
    parts = parts_of(case(), torch.bfloat16)
    held = sum(x.nbytes for cache in (parts.cache, parts.draft_cache) for x in (cache.keys, cache.values))
    assert held == parts.shape.cache_bytes() == 2 * (3 * 13 + 2 * 16) * 128


def test_rounds_yield_a_row_for_every_phase_and_for_every_head():
    place, said = tiny_round.HostPlace(), []
    cases = [case(context=9), case(context=17), case(concurrency=1)]
    found = list(stream_rounds(cases, place, repeats=5, rounds=2, seed=1, shared={**PROVENANCE, "run_id": "r", "process_index": 0}, progress=said.append))
    assert [one for one, _ in found] == cases
    for one, rows in found:
        assert [(row["phase"], row["head_implementation"], row["head_mode"]) for row in rows] == [
            ("verify", None, None), ("backbone", None, None), ("base_logits", None, None), ("head", "torch-stepwise", "stepwise"),
            ("head", "wts", "resident"), ("round", "torch-stepwise", "stepwise"), ("round", "wts", "resident"),
        ]  # fmt: skip
        assert {(row["target"], row["concurrency"], row["context_tokens"], row["draft_tokens"]) for row in rows} == {
            ("tiny", one.concurrency, one.context_tokens, 3)
        }
        assert all(len(row["samples_us"]) == 5 and min(row["samples_us"]) > 0 for row in rows)
    assert sorted(size for _, size in place.timer.calls) == sorted([3, 2] * 7 * 3)
    assert sum("drawing weights" in text for text in said) == 1 and sum("preparing walks" in text for text in said) == 2


class Throttled(tiny_round.HostPlace):
    """A place whose power cap holds until it has rested some times."""

    def __init__(self, rests: int) -> None:
        super().__init__()
        self.wanted, self.rested_s = rests, []

    def clocks(self):
        return ClockReading(1980.0, ("sw_power_cap",) if len(self.rested_s) < self.wanted else ())

    def rest(self, seconds: float) -> None:
        self.rested_s.append(seconds)


def rows_at(place) -> list[dict]:
    [(_, rows)] = stream_rounds([case()], place, repeats=4, rounds=2, seed=1, shared={**PROVENANCE, "run_id": "r", "process_index": 0})
    return rows


def test_a_throttled_burst_is_taken_again_after_a_rest():
    place = Throttled(2)
    rows = rows_at(place)
    assert place.rested_s == [REST_S] * 2
    assert all((len(row["samples_us"]), row["samples_dropped"]) == (4, 0) for row in rows)
    assert sorted(row["throttle_reasons"] for row in rows) == ["none"] * 6 + ["sw_power_cap"]
    assert len(place.timer.calls) == 2 * 7 + 2


def test_a_power_cap_that_no_rest_frees_costs_the_samples():
    place = Throttled(10**6)
    rows = rows_at(place)
    assert place.rested_s == [REST_S] * (2 * 7 * RESTS)
    assert all((len(row["samples_us"]), row["samples_dropped"], row["throttle_reasons"]) == (0, 4, "sw_power_cap") for row in rows)


class _Broken:
    """A walk that drafts the twin's tokens plus one, in its calls from a given one on."""

    def __init__(self, head, first: int) -> None:
        self.twin, self.left = tiny_round.TwinWalk(head), first

    def __call__(self, base_logits, anchor, *, tokens_out=None):
        self.left -= 1
        tokens = self.twin(base_logits, anchor, tokens_out=tokens_out)
        return tokens.add_(1).remainder_(320) if self.left < 0 else tokens


@pytest.mark.parametrize(("first", "message"), [(0, "of the twin's tokens"), (3, "other tokens than before the timing")])
def test_a_wrong_head_is_not_recorded(first, message):
    class Place(tiny_round.HostPlace):
        def walk(self, case, head, steps):
            return _Broken(head, first) if case.fused else StepwiseWalk(head)

    with pytest.raises(WrongKernel, match=message):
        list(stream_rounds([case()], Place(), repeats=1, rounds=1, seed=1, shared={}))


def test_layers_are_compared_with_the_same_in_fp32():
    parts = parts_of(case(concurrency=3, context=30), torch.bfloat16)
    found = layer_errors(parts)
    assert found.keys() == {"target", "drafter"} and all(1e-4 < error < MOST_LAYER_ERROR for error in found.values())
    here, _ = parts.models.first_layers["drafter"]
    here.layers[0].out.copy_(here.layers[0].out.flip(1))
    wrong = layer_errors(parts)
    assert wrong["drafter"] > MOST_LAYER_ERROR > wrong["target"]


def test_a_wrong_layer_is_not_timed(monkeypatch):
    monkeypatch.setattr("wts_lab.round_bench.MOST_LAYER_ERROR", 0.0)
    with pytest.raises(WrongKernel, match="a target layer differs from the same in fp32"):
        list(stream_rounds([case()], tiny_round.HostPlace(), repeats=1, rounds=1, seed=1, shared={}))


@pytest.mark.parametrize(("host_us", "samples"), [(50.0, 4), (5_000.0, None)])
def test_calls_that_no_gate_holds_are_timed_behind_one_another(host_us, samples, simulated):
    queue = simulated.Queue()

    class Shut(GateTimer):
        def burst(self, *words, **options):
            raise TimingError("no gate holds them")

    def call():
        queue.enqueue(host_us, 1_000.0)

    if samples is None:
        with pytest.raises(TimingError, match="waits for the host"):
            burst(Shut(queue), "round", call, 4, None)
    else:
        assert burst(Shut(queue), "round", call, samples, None) == pytest.approx([1_000.0] * 4)


def plan(**changes) -> RoundPlan:
    fields = {"cases": (case(), case(concurrency=1)), "repeats": 2, "rounds": 1, "processes": 2, "seed": 3, "gpu_id": "made-up", "provenance": PROVENANCE}
    return RoundPlan(**{**fields, **changes})


class Workers:
    """Runs each process here, on the CPU; stops before a part of a given number."""

    def __init__(self, stop_before: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.left, self.error, self.measured = stop_before, error, []

    def __call__(self, plan_file, process_index):
        def progress(done, total, label):
            if label == "written":
                self.measured.append(process_index)
                if self.left is not None and len(self.measured) == self.left:
                    raise self.error

        work(plan_file, process_index, place=tiny_round.HostPlace(), progress=progress)


def test_a_run_becomes_one_record(tmp_path):
    path = measure_rounds(plan(), tmp_path, "round", run_worker=Workers())
    rows = frame_rows(read_round(path))
    assert path.parent == tmp_path / "made-up" and path.name.endswith("-round.parquet")
    assert len(rows) == 2 * 2 * 7 and {row["process_index"] for row in rows} == {0, 1} and len({row["run_id"] for row in rows}) == 1
    assert list(path.parent.glob(".*")) == []
    with pytest.raises(RecordError, match="exists"):
        measure_rounds(plan(), tmp_path, "round", run_worker=Workers())


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    first, second = Workers(stop_before=3), Workers()
    with pytest.raises(MeasurementInterrupted, match="3 of 4 parts finished"):
        measure_rounds(plan(engine_root="/here"), tmp_path, "round", run_worker=first)
    path = measure_rounds(plan(engine_root="/there"), tmp_path, "round", run_worker=second)
    assert first.measured == [0, 0, 1] and second.measured == [1]
    assert len(read_round(path)) == 28


def test_a_worker_that_leaves_cases_out_is_a_failure(tmp_path):
    with pytest.raises(WorkerFailed, match=r"left cases \[0, 1\] unmeasured"):
        measure_rounds(plan(), tmp_path, "round", run_worker=lambda file, index: None)


def test_a_worker_without_a_gpu_says_so(tmp_path, capsys):
    folder = RunFolder.open(plan(), tmp_path, "round").folder
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert main(["--plan", str(folder / "plan.json"), "--process", "0"]) == 1
    assert "no CUDA device" in capsys.readouterr().err


def test_a_plan_survives_its_file_and_knows_an_equal_one():
    one = plan()
    assert RoundPlan.from_dict(one.as_dict()) == one
    assert plan(engine_root="/x", provenance={**PROVENANCE, "command": "other"}).fingerprint == one.fingerprint != plan(seed=4).fingerprint
    with pytest.raises(BadInput, match="version 9"):
        RoundPlan.from_dict({**one.as_dict(), "version": 9})


@pytest.mark.parametrize(
    ("change", "message"),
    [({"cases": ()}, "at least one"), ({"cases": "twice"}, "none twice"), ({"repeats": 0}, "repeats is 0"), ({"processes": 0}, "processes is 0")],
)
def test_a_plan_that_cannot_be_is_refused(change, message):
    with pytest.raises(BadInput, match=message):
        plan(**{**change, **({"cases": (case(), case())} if change.get("cases") == "twice" else {})})


@pytest.mark.parametrize(
    ("fields", "message"),
    [({"concurrency": 0}, "concurrency is 0"), ({"concurrency": 33}, "concurrency is 33"), ({"context_tokens": 0}, "context_tokens is 0"), ({"steps": 0}, "steps is 0")],
)
def test_a_case_that_cannot_be_is_refused(fields, message):
    with pytest.raises(BadInput, match=message):
        dataclasses.replace(case(), **fields)


def test_the_engine_takes_its_greedy_path_at_one_sequence_alone():
    engine = dataclasses.replace(case(concurrency=1), engine=True)
    assert [implementation_name(one) for one in engine.heads] == ["sglang-0.5.23 MarkovGreedyStep", "sglang-0.5.23 MarkovSampleStep", "wts"]
    assert [implementation_name(one) for one in dataclasses.replace(engine, concurrency=2).heads] == ["sglang-0.5.23 MarkovSampleStep", "wts"]
    assert engine.points[3:] == (("head", 0), ("head", 1), ("head", 2), ("round", 0), ("round", 1), ("round", 2))


def test_cases_are_picked_by_their_words():
    cases = [case(concurrency, context) for concurrency in (1, 2) for context in (1024, 8192)]
    assert select_cases(cases, ["c2", "k1,k8"]) == tuple(cases[2:])
    assert select_cases(cases, []) == tuple(cases)
    with pytest.raises(BadInput, match="no case has the words c3; known are c1, c2, k1, k8, tiny, tiny-drafter"):
        select_cases(cases, ["c3"])
