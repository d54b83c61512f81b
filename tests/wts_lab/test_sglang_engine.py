"""SGLang's steps: found by version, loaded without their package, called in the engine's order; and the same tokens as the twins'.

What needs SGLang's files skips without them (an installed sglang, or ``--sglang-root``); the loader is tested on a wheel made here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from cost_model.errors import BadInput  # noqa: E402
from tests.exact_heads import one_hot_head  # noqa: E402
from wts_lab import noise  # noqa: E402
from wts_lab.bench_plan import ENGINE_PATHS  # noqa: E402
from wts_lab.engines import sglang, sglang_files  # noqa: E402
from wts_lab.engines.sglang import SglangWalk, load_step_kernels  # noqa: E402
from wts_lab.heads import MarkovHead  # noqa: E402
from wts_lab.quantize import quantize_latents, quantize_rows  # noqa: E402
from wts_lab.reference import Int8x2Projection  # noqa: E402
from wts_lab.stepwise import StepwiseWalk  # noqa: E402
from wts_lab.twin_torch import expected_walks  # noqa: E402

DISPATCH = "def inputs_on_cuda(**kwargs):\n    return False\n"
SAMPLE = '''
import triton
import triton.language as tl
from sglang.kernels.ops.speculative.dspark.dispatch import inputs_on_cuda
from sglang.srt.utils import is_npu
from triton.language.extra import libdevice
assert not is_npu() and inputs_on_cuda() is False
CALLS = []

@triton.jit
def kernel(BLOCK: tl.constexpr): ...

class MarkovSampleStep:
    @classmethod
    def execute(cls, **given):
        CALLS.append(given)
        if given["logits_out"] is not None:
            given["logits_out"].copy_(given["base_logits"] + given["bias"])
        return (given["base_logits"] + given["bias"]).argmax(-1)
'''
GREEDY = '''
from __future__ import annotations
import msgspec
import triton

class MarkovGreedyStep:
    @classmethod
    def execute(cls, *, base_logits, prev_embeds, w2_weight):
        return (base_logits.float() + prev_embeds.float() @ w2_weight.float().T).argmax(-1)

class Cached(msgspec.Struct):
    weight: int
'''


def make_wheel(root: Path, version: str = "0.5.23") -> Path:
    """A folder shaped as an unpacked wheel, with steps that record what they are given."""
    package = root.joinpath(*sglang.PACKAGE.split("."))
    package.mkdir(parents=True)
    for name, text in (("dispatch", DISPATCH), ("markov_sample", SAMPLE), ("dspark_draft_model", GREEDY)):
        (package / f"{name}.py").write_text(text)
    (root / f"sglang-{version}.dist-info").mkdir()
    (root / f"sglang-{version}.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.4\nName: sglang\nVersion: {version}\n\nVersion: 9\n")
    return root


@pytest.fixture
def wheel(tmp_path):
    """The made wheel."""
    return make_wheel(tmp_path)


def test_loading_leaves_no_module_behind(wheel, monkeypatch):
    mine = object()
    monkeypatch.setitem(sys.modules, "sglang.srt.utils", mine)
    before = dict(sys.modules)
    kernels = load_step_kernels(wheel)
    assert kernels.version == "0.5.23"
    assert kernels.sample.__name__ == "MarkovSampleStep" and kernels.greedy.__module__ == f"{sglang.PACKAGE}.dspark_draft_model"
    added = {name for name in sys.modules if name not in before}
    assert sys.modules["sglang.srt.utils"] is mine and not {name for name in added if name.startswith("sglang")}


def test_modules_are_put_back_after_a_failure(wheel):
    (wheel.joinpath(*sglang.PACKAGE.split(".")) / "markov_sample.py").write_text("raise RuntimeError('broken')")
    with pytest.raises(RuntimeError, match="broken"):
        load_step_kernels(wheel)
    assert not [name for name in sys.modules if name.startswith("sglang.")]


def test_another_version_is_refused_with_the_tested_ones_named(tmp_path):
    with pytest.raises(BadInput, match=r"sglang 0\.6\.0 .*tested: 0\.5\.23"):
        load_step_kernels(make_wheel(tmp_path, "0.6.0"))


def test_a_folder_that_tells_no_version_is_refused(wheel):
    (wheel / "sglang-0.5.23.dist-info" / "METADATA").unlink()
    with pytest.raises(BadInput, match=r"METADATA.*0\.5\.23"):
        load_step_kernels(wheel)


def test_an_incomplete_wheel_is_named(wheel):
    (wheel.joinpath(*sglang.PACKAGE.split(".")) / "dispatch.py").unlink()
    with pytest.raises(BadInput, match=r"dispatch\.py is missing"):
        load_step_kernels(wheel)


def test_an_installed_distribution_is_found_by_its_metadata(wheel, monkeypatch):
    monkeypatch.setattr(sglang_files.metadata, "distribution", lambda name: sglang_files.metadata.PathDistribution(wheel / f"{name}-0.5.23.dist-info"))
    load_step_kernels.cache_clear()
    try:
        assert load_step_kernels().version == "0.5.23"
    finally:
        load_step_kernels.cache_clear()


def test_a_missing_distribution_says_what_to_do(monkeypatch):
    def missing(name):
        raise sglang_files.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(sglang_files.metadata, "distribution", missing)
    load_step_kernels.cache_clear()
    with pytest.raises(BadInput, match="not installed.*unpacked wheel"):
        load_step_kernels()


# --- the order of the calls, with the recording steps


@pytest.fixture
def inputs():
    """A head of 90 ids whose matrix is padded to 96, base logits with padding and anchors."""
    head = MarkovHead.random(90, 32, padded_vocab_size=96, seed=1)
    generator = torch.Generator().manual_seed(2)
    return head, torch.randn(3, 4, 100, generator=generator).to(torch.bfloat16), torch.tensor([5, 0, 89])


@pytest.mark.parametrize("path", ["greedy", "sample"])
def test_each_path_walks_as_the_stepwise_reference(path, wheel, inputs):
    head, base, anchor = inputs
    walk = SglangWalk(head, path, root=wheel)
    assert (walk.path, walk.rounding) == (path, {"greedy": "none", "sample": "twice"}[path])
    tokens = torch.empty(3, 4, dtype=torch.int64)
    assert walk(base, anchor, tokens_out=tokens) is tokens
    assert torch.equal(tokens, StepwiseWalk(head)(base, anchor))


def test_the_sampling_step_is_called_as_the_engine_calls_it(wheel, inputs):
    head, base, anchor = inputs
    walk = SglangWalk(head, "sample", root=wheel)
    calls = walk.kernels.sample.execute.__func__.__globals__["CALLS"]
    temperatures, offset, logits = torch.tensor([0.0, 1.0, 0.5]), torch.tensor([7]), torch.empty(3, 4, 90, dtype=torch.bfloat16)
    tokens = walk(base, anchor, temperatures=temperatures, noise=(11, offset), logits_out=logits)
    assert [call["step"] for call in calls] == [0, 1, 2, 3] and offset.item() == 8
    for step, call in enumerate(calls):
        assert call["temperatures"] is temperatures and call["offset"] is offset and call["key"] == 11
        assert call["has_sampled_rows"] is None and call["step_dtype"] == torch.bfloat16
        previous = anchor if step == 0 else tokens[:, step - 1]
        assert torch.equal(call["bias"], head(previous)[:, :90]) and torch.equal(call["base_logits"], base[:, step, :90])
        assert torch.equal(logits[:, step].argmax(-1), tokens[:, step])
    calls.clear()
    walk(base, anchor)
    assert [call["has_sampled_rows"] for call in calls] == [False] * 4 and calls[0]["temperatures"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("sample", {"base_logits": torch.zeros(3, 4, 80, dtype=torch.bfloat16)}, "at least 90"),
        ("sample", {"base_logits": torch.zeros(3, 4, 100)}, "bfloat16"),
        ("sample", {"anchor": torch.zeros(3)}, "int64"),
        ("sample", {"anchor": torch.zeros(2, dtype=torch.int64)}, "int64"),
        ("sample", {"temperatures": torch.ones(3)}, "go together"),
        ("sample", {"noise": (1, torch.zeros(1, dtype=torch.int64))}, "go together"),
        ("sample", {"temperatures": torch.ones(2), "noise": (1, torch.zeros(1, dtype=torch.int64))}, r"float32 \[3\]"),
        ("sample", {"logits_out": torch.zeros(3, 4, 90)}, "logits_out must be bfloat16"),
        ("greedy", {"logits_out": torch.zeros(3, 4, 90, dtype=torch.bfloat16)}, "take 'sample'"),
        ("greedy", {"temperatures": torch.ones(3), "noise": (1, torch.zeros(1, dtype=torch.int64))}, "take 'sample'"),
    ],
)
def test_calls_that_do_not_fit_are_refused(path, change, message, wheel, inputs):
    head, base, anchor = inputs
    arguments = {"base_logits": base, "anchor": anchor} | change
    with pytest.raises(BadInput, match=message):
        SglangWalk(head, path, root=wheel)(arguments.pop("base_logits"), arguments.pop("anchor"), **arguments)


def test_measured_variants_name_these_paths_and_roundings():
    assert dict(ENGINE_PATHS.values()) == sglang.PATHS


def test_heads_that_sglang_cannot_walk_are_refused(wheel):
    with pytest.raises(BadInput, match="path"):
        SglangWalk(MarkovHead.random(90, 32), "fused", root=wheel)
    with pytest.raises(BadInput, match="bf16"):
        SglangWalk(MarkovHead.random(90, 32, dtype=torch.float32), root=wheel)
    with pytest.raises(BadInput, match="maps no ids"):
        SglangWalk(MarkovHead.random(90, 32, target_vocab_size=80), root=wheel)


def test_corrections_of_a_one_hot_head_are_exact_in_every_arithmetic():
    head = one_hot_head(300, 64)
    w2, w1 = head.markov_w2.weight, head.markov_w1.weight
    exact = w1.double() @ w2.double().T
    quantised = [part.numpy() for part in (*quantize_rows(w2), *quantize_latents(w1))]
    assert np.array_equal(Int8x2Projection(*quantised).corrections(np.arange(300), slice(0, 300)), exact.numpy())
    assert torch.equal(exact.to(torch.bfloat16).double(), exact) and torch.equal((w1 @ w2.T).double(), exact)
    assert len(exact.unique()) > 50


# --- SGLang's own files


def test_our_stream_is_sglangs(sglang_root):
    names = load_step_kernels(sglang_root).sample.torch.__func__.__globals__
    key, offset, rows, step = 0x7EDCBA9876543210, 2**35 + 12345, 5, 6
    words = names["_philox"](
        key, torch.arange(50)[None, :], torch.arange(rows)[:, None], torch.full((1, 1), step), torch.tensor([[offset & 0xFFFFFFFF]])
    )
    bits = torch.stack(torch.broadcast_tensors(*words), dim=-1).reshape(rows, -1)
    uniforms = (bits.float() + 0.5) * 2.0**-32
    assert torch.equal(noise.uniforms(key, offset, rows=rows, step=step, vocab=200, device="cpu"), uniforms)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.3, "mixed"])
def test_whole_sampled_walks_equal_the_twins(temperature, sglang_root):
    head = one_hot_head(1003, 64, seed=3, padded_vocab_size=1010)
    base = torch.randn(4, 5, 1003, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    anchor, offset = torch.tensor([0, 1002, 17, 500]), torch.tensor([2**32 + 3])
    temperatures = torch.tensor([0.0, 0.7, 1.0, 1.3]) if temperature == "mixed" else torch.full((4,), temperature)
    twin = expected_walks(
        head, base, anchor, rounding="twice", temperatures=temperatures, noise=(99, offset), rows=torch.arange(4), keep_logits=True
    )
    logits = torch.empty_like(twin.logits)
    tokens = SglangWalk(head, "sample", root=sglang_root)(base, anchor, temperatures=temperatures, noise=(99, offset), logits_out=logits)
    assert torch.equal(tokens, twin.tokens) and torch.equal(logits, twin.logits) and offset.item() == 2**32 + 4


@pytest.mark.parametrize("path", ["greedy", "sample"])
def test_sglangs_greedy_references_equal_the_stepwise_walk(path, sglang_root):
    """On a CPU both references round twice; the rounding "none" of the greedy path is its CUDA kernel's."""
    head = MarkovHead.random(2000, 64, seed=5)
    base = torch.randn(2, 6, 2000, generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    anchor = torch.tensor([3, 4])
    assert torch.equal(SglangWalk(head, path, root=sglang_root)(base, anchor), StepwiseWalk(head)(base, anchor))
