"""The NumPy twin against a scalar implementation written from the design, and its selection rules against torch.argmax."""

from __future__ import annotations

import itertools
import math
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, strategies as st

from cost_model.errors import BadInput
from wts_lab import reference
from wts_lab.noise import philox
from wts_lab.reference import ordered_value, pack_word, round_to_bf16, select, twin_walk, twin_walks, unpack_word

any_float = st.floats(width=32, allow_nan=True, allow_infinity=True)
awkward = [math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149)]


def bits_of(value: float) -> int:
    return struct.unpack("<I", struct.pack("<f", value))[0]


def key_of(value: float) -> int:
    return int(ordered_value(np.float32(value)).item())


# --- numbers


@given(st.integers(0, 2**32 - 1))
def test_bf16_rounding_is_to_nearest_even(bits):
    """Against exact rational arithmetic: the result is the nearer neighbour, or the even one of two as near."""
    value = np.array(bits, dtype=np.uint32).view(np.float32)
    rounded = int(round_to_bf16(value).item())
    if math.isnan(value):
        assert rounded == 0x7FFF
        return
    down = bits >> 16
    remainder = bits & 0xFFFF
    up_wins = remainder > 0x8000 or (remainder == 0x8000 and down & 1)
    assert rounded == down + (1 if up_wins else 0)


def test_bf16_rounding_equals_torch_for_all_neighbours_of_ties():
    torch = pytest.importorskip("torch", reason="needs torch")
    high = np.arange(0, 1 << 16, dtype=np.uint32)[:, None] << 16
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=np.uint32)
    values = (high | low).reshape(-1).view(np.float32)
    ours = round_to_bf16(values)
    torchs = torch.from_numpy(values.copy()).to(torch.bfloat16).view(torch.uint16).numpy()
    numbers = ~np.isnan(values)
    assert np.array_equal(ours[numbers], torchs[numbers])
    assert (ours[~numbers] == 0x7FFF).all()


def test_bf16_bits_round_trip():
    bits = np.arange(1 << 16, dtype=np.uint16)
    numbers = ~np.isnan(reference.bf16_to_float(bits))
    assert np.array_equal(round_to_bf16(reference.bf16_to_float(bits))[numbers], bits[numbers])


@given(any_float, any_float)
def test_ordered_value_orders_as_the_selection_does(a, b):
    key_a, key_b = key_of(a), key_of(b)
    if math.isnan(a) or math.isnan(b):
        assert (key_a > key_b) == (math.isnan(a) and not math.isnan(b))
        assert (key_a == key_b) == (math.isnan(a) and math.isnan(b))
    else:
        assert (key_a > key_b) == (a > b) and (key_a == key_b) == (a == b)


def test_ordered_value_at_the_ends():
    keys = {key_of(math.nan): 0xFFFFFFFF, key_of(math.inf): 0xFF800000, key_of(0.0): 0x80000000, key_of(-0.0): 0x80000000}
    assert all(key == expected for key, expected in keys.items())
    assert key_of(-math.inf) == 0x007FFFFF


@given(any_float, st.integers(0, 2**20 - 1), any_float, st.integers(0, 2**20 - 1), st.integers(0, 4095))
def test_word_round_trip_and_order(a, index_a, b, index_b, epoch):
    words = [pack_word(key_of(value), index, epoch) for value, index in ((a, index_a), (b, index_b))]
    assert unpack_word(words[0]) == (key_of(a), index_a, epoch)
    assert 0 <= words[0] < 2**64
    assert (words[0] > words[1]) == ((key_of(a), -index_a) > (key_of(b), -index_b))


@pytest.mark.parametrize("fields", [(1 << 32, 0, 0), (0, 1 << 20, 0), (0, 0, 4096), (0, -1, 0)])
def test_word_refuses_fields_that_do_not_fit(fields):
    with pytest.raises(BadInput, match="bits"):
        pack_word(*fields)


@given(st.lists(st.sampled_from(awkward), min_size=1, max_size=12))
def test_selection_equals_torch_argmax(values):
    torch = pytest.importorskip("torch", reason="needs torch")
    for dtype in (torch.float32, torch.bfloat16):
        row = torch.tensor(values, dtype=torch.float32).to(dtype)
        assert int(select(row.float().numpy())) == int(torch.argmax(row))


def test_all_minus_infinity_gives_index_0():
    assert select(np.full((2, 5), -np.inf, dtype=np.float32)).tolist() == [0, 0]


def test_word_maximum_is_the_selection():
    values = np.array([1.0, 3.0, 3.0, -0.0, math.nan, math.nan], dtype=np.float32)
    for length in range(1, 7):
        words = [pack_word(key_of(value), index, 9) for index, value in enumerate(values[:length])]
        assert unpack_word(max(words))[1] == select(values[:length])


# --- the walk, against scalars


def scalar_walk(weight_q, scale, q1, q2, s1, s2, base_bits, anchor, vocab_size, rounding):
    """The walk in plain loops, one fp32 operation at a time (`np.float32` rounds each)."""

    def to_bf16(value):
        bits = bits_of(float(value))
        return np.float32(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000))[0])

    token, tokens = anchor, []
    for row_bits in base_bits:
        best, best_value = None, None
        for v in range(vocab_size):
            c1 = np.float32(sum(int(w) * int(u) for w, u in zip(weight_q[v], q1[token], strict=True)))
            c2 = np.float32(sum(int(w) * int(u) for w, u in zip(weight_q[v], q2[token], strict=True)))
            correction = np.float32(scale[v]) * (np.float32(s1[token]) * c1 + np.float32(s2[token]) * c2)
            base = np.float32(struct.unpack("<f", struct.pack("<I", int(row_bits[v]) << 16))[0])
            if rounding == "twice":
                correction = to_bf16(correction)
            y = base + correction
            y = y if rounding == "none" else to_bf16(y)
            if best is None or y > best_value:
                best, best_value = v, y
        tokens.append(best)
        token = best
    return tokens


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_twin_equals_the_scalar_walk(rounding, seed):
    rng = np.random.default_rng(seed)
    vocab, rank, steps = 40, 32, 6
    head = reference.twin_quantize_rows(rng.normal(size=(vocab, rank)))
    latents = reference.twin_quantize_latents(rng.normal(size=(vocab, rank)))
    base_bits = round_to_bf16(rng.normal(size=(steps, vocab + 3)).astype(np.float32) * 4)
    walk = twin_walk(*head, *latents, base_bits, 7, rounding=rounding)
    assert walk.tokens.tolist() == scalar_walk(*head, *latents, base_bits, 7, vocab, rounding)


def test_integer_products_are_exact_at_the_largest_rank():
    q = np.full((1, 512), 127, dtype=np.int8)
    one = np.ones(1, dtype=np.float32)
    projection = reference.Int8x2Projection(q, one, q, -q, one, one * 0)
    assert projection.corrections(np.array([0]), slice(0, 1)).item() == 127 * 127 * 512


def test_quantised_rows_meet_the_design():
    codes, scale = reference.twin_quantize_rows(np.array([[254.0, 5.0, -3.0], [0, 0, 0]]))
    assert codes.tolist() == [[127, 2, -2], [0, 0, 0]] and scale.tolist() == [2.0, 0.0]


@pytest.fixture
def small_inputs():
    rng = np.random.default_rng(0)
    head = reference.twin_quantize_rows(rng.normal(size=(50, 32)))
    latents = reference.twin_quantize_latents(rng.normal(size=(50, 32)))
    base_bits = round_to_bf16(rng.normal(size=(4, 5, 60)).astype(np.float32) * 2)
    return (*head, *latents), base_bits, np.array([0, 9, 49, 9])


def test_batched_walks_chunks_and_iterators_agree_with_single_walks(small_inputs, monkeypatch):
    head, base_bits, anchors = small_inputs
    base_bits[1, 2, 10:30] = 0x4280  # 64: ties across chunks of 7 rows
    walks = twin_walks(*head, base_bits, anchors)
    monkeypatch.setattr(reference, "CHUNK_ROWS", 7)
    chunked = twin_walks(*head, iter(base_bits.transpose(1, 0, 2)), anchors)
    assert np.array_equal(walks.tokens, chunked.tokens) and np.array_equal(walks.values, chunked.values)
    for walk, anchor in enumerate(anchors):
        assert np.array_equal(twin_walk(*head, base_bits[walk], int(anchor)).tokens, walks.tokens[walk])


# --- sampling


def scalar_key(y: np.float32, temperature: float, key: int, counter: list[int], word: int) -> np.float32:
    """y / T - log(-log1p(-u)) one fp32 number at a time, from the words of one Philox block."""
    bits = philox(key, np.array(counter, np.uint32))[word]
    uniform = (np.float32(bits) + np.float32(0.5)) * np.float32(2.0**-32)
    exponential = np.float32(-math.log1p(-float(uniform)))
    return np.float32(np.float32(y / np.float32(temperature)) - np.float32(math.log(float(exponential))))


@pytest.mark.parametrize("rounding", ["once", "twice", "none"])
def test_sampled_walks_equal_scalars_and_greedy_ones_are_untouched(small_inputs, rounding):
    head, base_bits, anchors = small_inputs
    temperatures, key, offsets, rows = np.float32([0.7, 0.0, 1.0, 2.5]), 0xABCDEF0123456789, np.array([5, 6, 7, 2**33 + 8]), [3, 2, 1, 0]
    options = {"rounding": rounding, "keep_logits": True}
    greedy = twin_walks(*head, base_bits, anchors, **options)
    walks = twin_walks(*head, base_bits, anchors, temperatures=temperatures, noise=(key, offsets), rows=rows, **options)
    assert np.array_equal(walks.tokens[1], greedy.tokens[1]) and np.array_equal(walks.logits[1], greedy.logits[1])
    projection = reference.Int8x2Projection(*head)
    for walk in (0, 2, 3):
        previous = anchors[walk]
        for step in range(5):
            base = reference.bf16_to_float(base_bits[walk, step, :50])
            y = reference.combine(base, projection.corrections(np.array([previous]), slice(0, 50))[0], rounding)
            assert np.array_equal(walks.logits[walk, step], round_to_bf16(y))
            keys = [
                scalar_key(y[n], temperatures[walk], key, [n // 4, rows[walk], step, offsets[walk] % 2**32], n % 4) for n in range(50)
            ]
            assert walks.tokens[walk, step] == int(np.argmax(keys)) and walks.values[walk, step] == max(keys)
            previous = walks.tokens[walk, step]


def test_kept_logits_of_a_greedy_walk_hold_its_values(small_inputs):
    head, base_bits, anchors = small_inputs
    walks = twin_walks(*head, base_bits, anchors, vocab_size=45, keep_logits=True)
    assert walks.logits.shape == (4, 5, 45)
    kept = np.take_along_axis(reference.bf16_to_float(walks.logits), walks.draft_ids[..., None], axis=2)[..., 0]
    assert np.array_equal(kept, walks.values) and np.array_equal(walks.logits.argmax(2) < 45, np.ones((4, 5), bool))
    single = twin_walk(*head, base_bits[2], int(anchors[2]), vocab_size=45, keep_logits=True)
    assert np.array_equal(single.logits, walks.logits[2])
    assert twin_walks(*head, base_bits, anchors).logits is None


def test_nan_wins_over_noise_and_minus_infinity_never_does():
    y = np.float32([[-np.inf, 0.0, np.nan, np.nan], [-np.inf, -np.inf, 3.0, -np.inf]])
    keys = reference.selection_keys(y, np.float32([1.0, 1.0]), np.float32([[9.0, 9.0, -9.0, 9.0], [9.0, 9.0, -np.inf, 9.0]]))
    assert select(keys).tolist() == [2, 0] and np.isnan(keys[0, 2])


def test_sampled_tokens_follow_the_softmax():
    """10,000 walks of one step, of offsets 0 to 9,999, against softmax(y / T): a chi-square test at one in ten thousand."""
    stats = pytest.importorskip("scipy.stats", reason="needs SciPy")
    y, walks, temperature = np.float32([0.5, -1, 2, 0, 1.5, -0.25, 1, -2, 0.75]), 10_000, np.float32(1.3)
    nothing = (np.zeros((9, 32), np.int8), np.zeros(9, np.float32), *(np.zeros((9, 32), np.int8),) * 2, *(np.zeros(9, np.float32),) * 2)
    found = twin_walks(
        *nothing, np.broadcast_to(round_to_bf16(y), (walks, 1, 9)), np.zeros(walks, np.int64),
        temperatures=np.full(walks, temperature), noise=(17, np.arange(walks)),
    )  # fmt: skip
    weights = np.exp(y.astype(np.float64) / temperature)
    expected = weights / weights.sum() * walks
    assert stats.chisquare(np.bincount(found.tokens[:, 0], minlength=9), expected).pvalue > 1e-4


def test_padded_columns_are_never_chosen(small_inputs):
    head, base_bits, anchors = small_inputs
    for value in (1e4, math.inf, math.nan):
        base_bits[:, :, 40:] = round_to_bf16(np.float32(value))
        assert twin_walks(*head, base_bits, anchors, vocab_size=40).draft_ids.max() < 40
    base_bits[:, :, :40] = 0xFF80  # all −inf, and the padding above it
    assert (twin_walks(*head, base_bits, anchors, vocab_size=40).tokens == 0).all()


def test_tokens_are_target_ids_and_lead_to_their_own_latents(small_inputs):
    (w_q, w_scale, *latents), base_bits, anchors = small_inputs
    mapping = np.random.default_rng(1).permutation(70)[:50]
    tables = [np.zeros((70, *table.shape[1:]), table.dtype) for table in latents]
    for table, original in zip(tables, latents, strict=True):
        table[mapping] = original
    plain = twin_walks(w_q, w_scale, *latents, base_bits, anchors)
    mapped = twin_walks(w_q, w_scale, *tables, base_bits, mapping[anchors], draft_to_target=mapping)
    assert np.array_equal(mapped.draft_ids, plain.draft_ids)
    assert np.array_equal(mapped.tokens, mapping[plain.tokens])


def test_exact_bf16_twin_computes_the_product_itself():
    w2, w1 = np.array([[1.0] * 32, [2.0] * 32]), np.array([[0.5] * 32, [-1.0] * 32])
    walk = reference.twin_walks_bf16(w2, w1, round_to_bf16(np.zeros((1, 2, 2), np.float32)), np.array([0]))
    assert walk.tokens.tolist() == [[1, 0]] and walk.values.tolist() == [[32.0, -32.0]]
    with pytest.raises(BadInput, match="not an fp32 number"):
        reference.twin_walks_bf16(w2 * (1 + 2.0**-20), w1 * (1 + 2.0**-20), np.zeros((1, 1, 2), np.uint16), np.array([0]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"anchors": np.array([50, 0, 0, 0])}, "anchors must be .* from 0 to 49"),
        ({"anchors": np.array([-1, 0, 0, 0])}, "anchors"),
        ({"vocab_size": 51}, "vocab_size must be 1 to 50"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"rounding": "thrice"}, "thrice"),
        ({"draft_to_target": np.full(50, 99)}, "target id 99"),
        ({"draft_to_target": np.arange(10)}, "needs a latent"),
        ({"base_bits": np.zeros((4, 5, 30), np.uint16)}, "at least 50"),
        ({"base_bits": np.zeros((4, 5, 60), np.float32)}, "uint16"),
        ({"temperatures": [1.0]}, r"temperatures must be \[4\]"),
        ({"temperatures": np.ones(4)}, "needs noise"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(small_inputs, change, message):
    head, base_bits, anchors = small_inputs
    arguments = {"base_bits": base_bits, "anchors": anchors, **change}
    with pytest.raises(BadInput, match=message):
        twin_walks(*head, arguments.pop("base_bits"), arguments.pop("anchors"), **arguments)


def test_ranks_that_differ_are_refused(small_inputs):
    (w_q, w_scale, *latents), base_bits, anchors = small_inputs
    with pytest.raises(BadInput, match="share a rank"):
        twin_walks(w_q[:, :16], w_scale, *latents, base_bits, anchors)


def test_the_twin_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from wts_lab.reference import twin_walk, round_to_bf16\n"
        "import numpy as np\n"
        "q, s = np.ones((3, 32), np.int8), np.ones(3, np.float32)\n"
        "print(twin_walk(q, s, q, q, s, s, np.zeros((2, 3), np.uint16), 1).tokens.tolist())"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.strip() == "[0, 0]"


def test_unknown_names_of_the_module_raise():
    with pytest.raises(AttributeError, match="no attribute twin_runs"):
        _ = reference.twin_runs


def test_selection_of_every_short_row_follows_the_rules():
    """All rows of three awkward values: the winner beats what is before it and is not beaten by what is after."""
    for row in itertools.product(awkward, repeat=3):
        winner = int(select(np.array(row, dtype=np.float32)))
        keys = [key_of(value) for value in row]
        assert all(keys[winner] > key for key in keys[:winner]) and all(keys[winner] >= key for key in keys[winner:])
