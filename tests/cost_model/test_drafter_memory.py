"""What a drafter keeps and moves: closed forms, published figures, and how the three schemes grow."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_model.drafter_memory import DrafterMemory, mamba2_state_bytes, memory_of
from cost_model.errors import BadInput
from cost_model.targets import load_drafter, load_target
from cost_model.units import BYTES_PER_GIB, BYTES_PER_KIB

SEQUENCES, CONTEXT = st.integers(1, 256), st.integers(0, 200_000)
KV = 4096  # bytes of K and V of a token in a layer: 2 x 8 heads x 128 x 2 bytes


def test_a_separate_cache_is_what_an_engine_was_seen_to_allocate():
    """SGLang pull 40563 and 40665: five layers take 20 KiB a token, 450,060 slots 8.6 GiB and 136,974 slots 2.6 GiB."""
    memory = DrafterMemory("separate-kv", KV, 5)
    assert memory.kv_bytes_per_token == 20 * BYTES_PER_KIB
    assert memory.held_bytes(1, 450_060) / BYTES_PER_GIB == pytest.approx(8.6, abs=0.05)
    assert memory.held_bytes(1, 136_974) / BYTES_PER_GIB == pytest.approx(2.6, abs=0.05)


def test_a_catalogued_drafter_has_the_same_geometry():
    assert memory_of(load_drafter("dspark-qwen3-8b"), load_target("qwen3-8b")) == DrafterMemory("separate-kv", KV, 5)


@given(sequences=SEQUENCES, context=CONTEXT, more=st.integers(1, 10_000))
def test_only_a_separate_cache_grows_with_context_without_end(sequences, context, more):
    state = 1000
    separate, reused = DrafterMemory("separate-kv", KV, 5), DrafterMemory("target-kv", KV, 3, 2, state)
    window = DrafterMemory("window", KV, 3, 2, state, window_tokens=512)
    assert separate.held_bytes(sequences, context + more) - separate.held_bytes(sequences, context) == sequences * more * 5 * KV
    assert reused.held_bytes(sequences, context) == sequences * 2 * state
    assert window.held_bytes(sequences, context) == sequences * (min(context, 512) * 3 * KV + 2 * state)
    for memory in (separate, reused, window):
        assert memory.held_bytes(sequences, context) == sequences * memory.held_bytes(1, context)


@given(context=CONTEXT)
def test_reusing_the_target_saves_memory_but_not_the_read(context):
    own, reused = DrafterMemory("separate-kv", KV, 3), DrafterMemory("target-kv", KV, 3)
    assert reused.held_bytes(4, context) == 0 and reused.read_bytes(4, context) == own.read_bytes(4, context) == 4 * context * 3 * KV
    assert reused.written_bytes(4, 3.5) == 0 and own.written_bytes(4, 3.5) == 4 * 3.5 * 3 * KV


def test_a_window_bounds_the_read_and_writes_states():
    window = DrafterMemory("window", KV, 3, 2, 1000, window_tokens=512)
    assert window.read_bytes(2, 100_000) == window.read_bytes(2, 512) == 2 * (512 * 3 * KV + 2000)
    assert window.written_bytes(2, 4.0) == 2 * (4 * 3 * KV + 2000)


def test_a_mamba2_state_by_hand():
    """Heads 48, head size 64, state 128, one group, a convolution of 4 (the sizes of mamba2-780m), bf16."""
    assert mamba2_state_bytes(48, 64, 128) == (48 * 64 * 128 + 3 * (48 * 64 + 2 * 128)) * 2
    assert mamba2_state_bytes(48, 64, 128, element_bytes=4) == 2 * mamba2_state_bytes(48, 64, 128)


def test_recurrent_layers_take_the_place_of_attention():
    memory = memory_of(load_drafter("dspark-qwen3-8b"), load_target("qwen3-8b"), scheme="target-kv", recurrent_layers=2, state_bytes=10)
    assert (memory.attention_layers, memory.recurrent_layers) == (3, 2)


@pytest.mark.parametrize("arguments, word", [
    (("paged", KV, 5), "memory is 'paged'"), (("window", KV, 5), "window_tokens is None"), (("separate-kv", KV, 5, 0, 0, 512), "the others have none"),
    (("target-kv", KV, 3, 2), "give both or neither"), (("separate-kv", KV, 3, 2, 10), "choose target-kv or window"), (("target-kv", KV, -1), "attention_layers"),
    (("window", KV, 3, 0, 0, 0), "window_tokens is 0"),
])
def test_impossible_memories_are_refused(arguments, word):
    with pytest.raises(BadInput, match=word):
        DrafterMemory(*arguments)


def test_impossible_questions_are_refused():
    memory = DrafterMemory("separate-kv", KV, 5)
    with pytest.raises(BadInput, match="concurrency is 0"):
        memory.held_bytes(0, 10)
    with pytest.raises(BadInput, match="context_tokens is -1"):
        memory.read_bytes(1, -1)
    with pytest.raises(BadInput, match="5 layers in all"):
        memory_of(load_drafter("dspark-qwen3-8b"), load_target("qwen3-8b"), scheme="target-kv", recurrent_layers=6, state_bytes=1)
    with pytest.raises(BadInput, match="state_size is 0"):
        mamba2_state_bytes(1, 1, 0)
