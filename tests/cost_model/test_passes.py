"""Work of a pass against closed forms, its time, and the file of its coefficients."""

from __future__ import annotations

import dataclasses

import pytest

from cost_model import passes
from cost_model.catalogue import CatalogueError
from cost_model.drafter_memory import memory_of
from cost_model.errors import BadInput
from cost_model.gpu import load_gpu
from cost_model.parameters import resolve
from cost_model.passes import PassRates, PassWork, Product, load_rates, pass_us, write_rates
from cost_model.targets import load_drafter, load_target

GPU = load_gpu("h200-sxm")
RATES = PassRates(2.0, 0.8, 0.5, 0.25)


@pytest.mark.parametrize("name", ["qwen3-4b", "qwen3-8b"])
def test_products_read_the_weights_that_the_shapes_count(name):
    target, drafter = load_target(name), load_drafter(f"dspark-{name}")
    verify = passes.target_work(target, 3, 1000, 17)
    assert verify.weight_bytes == 2 * (target.layers * target.layer_parameters + target.output_parameters)
    assert sum(one.operations for one in verify.products) == 2 * 128 * verify.weight_bytes // 2  # 51 vectors are one tile of 128
    draft = passes.backbone_work(target, drafter, memory_of(drafter, target), 3, 1000, 16)
    again = drafter.layers * 2 * target.kv_heads * target.head_dim * target.hidden_size  # K and V of the features are a product of their own
    assert draft.weight_bytes == 2 * (drafter.parameters(target) + again)
    assert passes.base_logits_work(target, 3, 16).weight_bytes == 2 * target.output_parameters


def test_attention_reads_each_position_once_and_multiplies_whole_tiles():
    target, drafter = load_target("qwen3-8b"), load_drafter("dspark-qwen3-8b")
    verify = passes.target_work(target, 2, 1000, 17)
    assert verify.attention_bytes == 2 * 1017 * 36 * 4096
    assert verify.attention_operations == 4 * 36 * 2 * 8 * 1017 * 128 * 128  # 4 heads x 17 tokens are 68 rows: two tiles of 64
    assert passes.target_work(target, 2, 1000, 16).attention_operations == 4 * 36 * 2 * 8 * 1016 * 64 * 128
    draft = passes.backbone_work(target, drafter, memory_of(drafter, target), 2, 1000, 16)
    assert draft.attention_bytes == 2 * (1000 + 17 + 16) * 5 * 4096
    window = passes.backbone_work(target, drafter, memory_of(drafter, target, scheme="window", window_tokens=100), 2, 1000, 16)
    assert window.attention_bytes == 2 * 100 * 5 * 4096


def test_a_product_is_bound_by_bytes_or_by_operations():
    few, many = Product(2, 1, 4096, 8192), Product(2, 4000, 4096, 8192)
    assert few.work_bytes == 2 * 2 * (4096 * 8192 + 4096 + 8192) and few.operations == 2 * 2 * 128 * 4096 * 8192
    assert many.operations == 2 * 2 * 4096 * 4096 * 8192  # 4,000 vectors are 31.25 tiles, and take 32
    read = RATES.read_share * resolve(GPU).curve.at(few.count * 2 * 4096 * 8192)
    assert pass_us(GPU, PassWork((few,), 0, 0, 0, 0), RATES) == pytest.approx(few.work_bytes / read * 1e6)
    dense = GPU.value("bf16_dense_flops_per_s")
    assert pass_us(GPU, PassWork((many,), 0, 0, 0, 0), RATES) == pytest.approx(many.operations / (0.5 * dense) * 1e6)


def test_a_pass_is_the_sum_of_its_parts():
    alone = [PassWork((Product(1, 8, 4096, 4096),), 0, 0, 0, 0), PassWork((), 0, 10**12, 0, 0), PassWork((), 0, 0, 10**8, 0), PassWork((), 0, 0, 0, 7)]
    together = PassWork((Product(1, 8, 4096, 4096),), 0, 10**12, 10**8, 7)
    assert pass_us(GPU, together, RATES) == pytest.approx(sum(pass_us(GPU, one, RATES) for one in alone))
    assert pass_us(GPU, alone[3], RATES) == pytest.approx(7 * 2.0)
    assert pass_us(GPU, alone[1], RATES) == pytest.approx(10**12 / (0.25 * GPU.value("bf16_dense_flops_per_s")) * 1e6)


def test_longer_contexts_and_more_sequences_take_longer():
    target = load_target("qwen3-4b")
    times = [[pass_us(GPU, passes.target_work(target, batch, context, 17), RATES) for context in (0, 1024, 8192)] for batch in (1, 4, 16)]
    assert all(row == sorted(row) for row in times) and all(list(column) == sorted(column) for column in zip(*times))


def test_coefficients_survive_their_file(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "rates_path", lambda: tmp_path / "passes.toml")
    assert load_rates(GPU) is None
    rates = dataclasses.replace(RATES, relative_error=0.04)
    write_rates(tmp_path / "passes.toml", rates, "h200-sxm", "made up")
    assert load_rates(GPU) == rates
    elsewhere = load_rates(load_gpu("b200-sxm"))
    assert elsewhere.relative_error == pytest.approx((0.04**2 + 0.3**2) ** 0.5) and elsewhere.kernel_us == rates.kernel_us
    text = (tmp_path / "passes.toml").read_text()
    (tmp_path / "passes.toml").write_text(text.replace("[figures.read_share]", "[figures.other]"))
    with pytest.raises(CatalogueError, match="read_share"):
        load_rates(GPU)


@pytest.mark.parametrize("name", passes.COEFFICIENTS)
def test_a_coefficient_that_cannot_be_is_refused(name):
    with pytest.raises(BadInput, match=f"{name} is 0"):
        dataclasses.replace(RATES, **{name: 0.0})


@pytest.mark.parametrize(("arguments", "message"), [((0, 5, 1), "concurrency is 0"), ((1, -1, 1), "context_tokens is -1"), ((1, 5, 0), "tokens is 0")])
def test_a_pass_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(BadInput, match=message):
        passes.target_work(load_target("qwen3-4b"), *arguments)
