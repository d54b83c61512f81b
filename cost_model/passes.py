"""Passes of a transformer under CUDA graphs, as a measured round runs them (`wts_lab/round_parts.py`): verify, draft backbone, base logits.

A pass is a chain of kernels, one after the other:

    pass = kernels × kernel_us + Σ products max(bytes / read rate, operations of whole tiles / product rate)
           + Σ attention max(bytes / read rate, operations / attention rate) + other bytes / read rate of their own

Read rates are the GPU's own, as its probes measured them (`parameters.resolve`): of large footprints for weights and K and V, of L2 for what a kernel
leaves for the next. Four coefficients are fitted to recorded rounds: what a kernel costs beside its work, the share of the probe's read
rate that products and attention reach, and the shares of the dense bf16 rate that products and attention reach. On another GPU they are
carried over.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cost_model.catalogue import CatalogueError, check_keys, check_version, read_facts
from cost_model.drafter_memory import DrafterMemory
from cost_model.errors import BadInput
from cost_model.figures import Figure, figure_from_table, figure_lines, toml_text
from cost_model.files import write_text_whole
from cost_model.gpu import Gpu
from cost_model.parameters import RELATIVE_ERROR_BY_KIND, resolve
from cost_model.paths import data_root
from cost_model.targets import Drafter, Target
from cost_model.terms import BYTES_OF_BF16
from cost_model.units import us_from_operations, us_from_transfer
from cost_model.workload import require_whole

PASSES_SCHEMA_VERSION = 1
COEFFICIENTS = ("kernel_us", "read_share", "product_share", "attention_share")

LAYER_KERNELS, DRAFT_LAYER_KERNELS = 13, 15
"""Kernels of a layer: four products, two norms, the places of queries and of keys, the gate, and attention: over the context, its splits joined, over the
block, and both merged. A draft layer has no block apart, but K and V of the context's features (a product and their places), and its output in
another order."""

TARGET_KERNELS, DRAFT_KERNELS, LOGITS_KERNELS = 12, 6, 1
"""Kernels around the layers: embedding, last norm, output projection, choice of tokens and their acceptance; the block's tokens and the joined
features; the output projection alone."""

PRODUCT_TILE = 128
"""Vectors of a tile of a matrix product: more than whole tiles of them are multiplied as the next whole tile. It is the tile of the libraries' large kernels
on Hopper, and of 16, 32, 64 and 128 the one that predicted the other target's passes best when it was chosen; docs/round.md, section 3, has how 64 does since."""

ATTENTION_TILE = 64
"""Query rows of a tile of attention: the heads of a group and all tokens of a block share K and V, and are rounded up to whole tiles."""


@dataclass(frozen=True)
class Product:
    """`count` equal matrix products of `rows` vectors: [rows, inner] × [inner, outer], bf16."""

    count: int
    rows: int
    inner: int
    outer: int

    @property
    def work_bytes(self) -> int:
        """Weights, input and output of all of them."""
        return self.count * BYTES_OF_BF16 * (self.inner * self.outer + self.rows * (self.inner + self.outer))

    @property
    def operations(self) -> int:
        """Two a multiply-add, with vectors in whole tiles of PRODUCT_TILE."""
        return 2 * self.count * _in_tiles(self.rows, PRODUCT_TILE) * self.inner * self.outer


@dataclass(frozen=True)
class PassWork:
    """What a pass does.

    Attributes:
        products: its matrix products.
        attention_bytes, attention_operations: K and V that attention reads, and what it multiplies with rows in whole tiles.
        passed_bytes: what kernels between products read and write, in L2 mostly.
        kernels: kernels in all.
    """

    products: tuple[Product, ...]
    attention_bytes: int
    attention_operations: int
    passed_bytes: int
    kernels: int

    @property
    def weight_bytes(self) -> int:
        """Weights that the products read."""
        return sum(BYTES_OF_BF16 * one.count * one.inner * one.outer for one in self.products)


@dataclass(frozen=True)
class PassRates:
    """The coefficients: see this module's docstring. `kernel_us` in microseconds, the others shares above 0.

    `relative_error` is the standard error of a pass's time: what the fit left, and more on another GPU.
    """

    kernel_us: float
    read_share: float
    product_share: float
    attention_share: float
    relative_error: float = 0.0

    def __post_init__(self) -> None:
        for name in COEFFICIENTS:
            if not 0 < getattr(self, name) < float("inf"):
                raise BadInput(f"{name} is {getattr(self, name)!r}; it must be a finite number above 0")


def target_work(target: Target, concurrency: int, context_tokens: int, tokens: int) -> PassWork:
    """One pass of the target over `tokens` positions of each sequence, as a measured round has it."""
    rows = _rows(concurrency, context_tokens, tokens)
    layers = _layers(target, target.layers, rows)
    last = Product(1, rows, target.hidden_size, target.vocab_size)
    kept = concurrency * (context_tokens + tokens) * target.layers * target.kv_bytes_per_layer_token
    chosen = rows * target.vocab_size * BYTES_OF_BF16  # the logits, once more, to choose tokens
    return PassWork((*layers, last), kept, _attention_operations(target, target.layers, concurrency, context_tokens + tokens, tokens),
                    _passed_bytes(target, target.layers, rows) + chosen, target.layers * LAYER_KERNELS + TARGET_KERNELS)


def backbone_work(target: Target, drafter: Drafter, memory: DrafterMemory, concurrency: int, context_tokens: int, steps: int) -> PassWork:
    """One pass of the drafter that drafts `steps` tokens after a verify of `steps` + 1, whose features it projects into K and V."""
    verified, positions = steps + 1, drafter.positions(steps)
    rows, features = _rows(concurrency, context_tokens, positions), concurrency * verified
    read = memory.read_bytes(concurrency, context_tokens + verified + positions)
    size = 2 * target.kv_heads * target.head_dim
    products = (*_layers(target, drafter.layers, rows), Product(drafter.layers, features, target.hidden_size, size))
    if drafter.target_features:
        products += (Product(1, features, drafter.target_features * target.hidden_size, target.hidden_size),)
    attended = context_tokens if memory.window_tokens is None else min(context_tokens, memory.window_tokens)
    operations = _attention_operations(target, memory.attention_layers, concurrency, attended + verified + positions, positions)
    return PassWork(products, read, operations, _passed_bytes(target, drafter.layers, rows), drafter.layers * DRAFT_LAYER_KERNELS + DRAFT_KERNELS)


def base_logits_work(target: Target, concurrency: int, steps: int, vocab_size: int | None = None) -> PassWork:
    """The output projection of a draft; `vocab_size` is the target's where None."""
    rows = _rows(concurrency, 0, steps)
    return PassWork((Product(1, rows, target.hidden_size, vocab_size or target.vocab_size),), 0, 0, 0, LOGITS_KERNELS)


def pass_us(gpu: Gpu, work: PassWork, rates: PassRates) -> float:
    """Time of a pass in microseconds: the sum in this module's docstring.

    Raises:
        MissingFact: the GPU lacks its bf16 rate, or what its read rates are carried over by.
    """
    parameters = resolve(gpu)
    read = rates.read_share * parameters.curve.at(max(work.weight_bytes, work.attention_bytes, 1))
    nearby = parameters.curve.at(1)
    dense = gpu.value("bf16_dense_flops_per_s")
    products = sum(max(us_from_transfer(one.work_bytes, read), us_from_operations(one.operations, rates.product_share * dense)) for one in work.products)
    attention = max(us_from_transfer(work.attention_bytes, read), us_from_operations(work.attention_operations, rates.attention_share * dense))
    return work.kernels * rates.kernel_us + products + attention + us_from_transfer(work.passed_bytes, nearby)


def _rows(concurrency: int, context_tokens: int, tokens: int) -> int:
    """Vectors of a pass, of sizes that can be."""
    require_whole("concurrency", concurrency, 1, None)
    require_whole("context_tokens", context_tokens, 0, None)
    require_whole("tokens", tokens, 1, None)
    return concurrency * tokens


def _in_tiles(rows: int, tile: int) -> int:
    """Rows rounded up to whole tiles."""
    return -(-rows // tile) * tile


def _layers(target: Target, layers: int, rows: int) -> tuple[Product, ...]:
    """The four products of each layer: Q, K and V together, the output, gate and up together, down."""
    hidden, heads = target.hidden_size, target.attention_heads * target.head_dim
    qkv = heads + 2 * target.kv_heads * target.head_dim
    return (Product(layers, rows, hidden, qkv), Product(layers, rows, heads, hidden), Product(layers, rows, hidden, 2 * target.intermediate_size),
            Product(layers, rows, target.intermediate_size, hidden))


def _attention_operations(target: Target, layers: int, concurrency: int, attended: int, tokens: int) -> int:
    """4 × rows × head size for each attended position, layer and kv head; rows = tokens × heads of a group, in whole tiles."""
    group = target.attention_heads // target.kv_heads
    rows = _in_tiles(group * tokens, ATTENTION_TILE)
    return 4 * layers * concurrency * target.kv_heads * attended * rows * target.head_dim


def _passed_bytes(target: Target, layers: int, rows: int) -> int:
    """What two norms (in and out, with the stream), rotations, gate and merge of a layer read and write for each vector."""
    hidden, heads = target.hidden_size, target.attention_heads * target.head_dim
    elements = 2 * 4 * hidden + 2 * (heads + 2 * target.kv_heads * target.head_dim) + 3 * target.intermediate_size + 3 * heads
    return layers * rows * elements * BYTES_OF_BF16


# --- the coefficients' file -----------------------------------------------------------------------------------------------

ERROR_FIGURE = "pass_relative_error"


def rates_path() -> Path:
    """The file of the coefficients that ship."""
    return data_root() / "parameters" / "passes.toml"


def load_rates(gpu: Gpu) -> PassRates | None:
    """Return the coefficients that ship, carried over where they were fitted on another GPU; None where none ship.

    Raises:
        CatalogueError: the file has another form.
    """
    path = rates_path()
    if not path.is_file():
        return None
    facts = read_facts(path)
    check_version(path, facts, PASSES_SCHEMA_VERSION)
    check_keys(path, "the file", facts, {"schema_version", "fitted_on", "figures"})
    check_keys(path, "figures", facts["figures"], {*COEFFICIENTS, ERROR_FIGURE})
    found = {name: figure_from_table(path, name, table, str).value for name, table in facts["figures"].items()}
    error = found.pop(ERROR_FIGURE)
    if facts["fitted_on"] != gpu.id:
        error = (error**2 + RELATIVE_ERROR_BY_KIND["transferred"] ** 2) ** 0.5
    try:
        return PassRates(**found, relative_error=error)
    except BadInput as fault:
        raise CatalogueError(f"{path}: {fault}") from fault


def write_rates(path: Path | str, rates: PassRates, fitted_on: str, source: str) -> Path:
    """Write fitted coefficients as `load_rates` reads them; `source`: the records."""
    lines = ["# How passes of a round under CUDA graphs run beside the probes: fitted by cost_model/pass_fit.py, read by cost_model/passes.py.",
             f"schema_version = {PASSES_SCHEMA_VERSION}", f"fitted_on = {toml_text(fitted_on)}", ""]
    for name in (*COEFFICIENTS, ERROR_FIGURE):
        value = rates.relative_error if name == ERROR_FIGURE else getattr(rates, name)
        lines += figure_lines(f"[figures.{name}]", Figure(value, "us" if name.endswith("_us") else "ratio", "measured", source))
    return write_text_whole(path, "\n".join(lines))
