"""What a drafter keeps of the context in device memory, and what of it a round reads and writes, over concurrency and context.

Three schemes, by how they answer the same question: what stands for the target's context on the drafter's side?

- `separate-kv` (DFlash, arXiv 2602.06036): target features of every position are projected into K and V of every draft layer and kept. Both
  memory and traffic grow with concurrency × context. An engine allocates a slot for each token that the target holds.
- `target-kv` (H-Spec: target K and V reused in place, Mamba states set from the last position's hidden features): attention layers read
  the target's K and V, which are there anyway; only the recurrent states are the drafter's own, and those do not grow.
- `window` (HyFlash: local attention beside recurrent memory of fixed size): K and V of the last `window_tokens` positions and the states.

H-Spec's and HyFlash's sizes are not published with their abstracts, so layers, window and state are inputs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cost_model.errors import BadInput
from cost_model.targets import MEMORY_SCHEMES, Drafter, Target
from cost_model.terms import BYTES_OF_BF16
from cost_model.workload import require_whole, require_word


@dataclass(frozen=True)
class DrafterMemory:
    """How a drafter keeps context.

    Attributes:
        scheme: one of MEMORY_SCHEMES.
        kv_bytes_per_layer_token: K and V of one token in one attention layer.
        attention_layers: draft layers that attend to the context.
        recurrent_layers: draft layers with a recurrent state; 0 for `separate-kv`.
        state_bytes: state of one recurrent layer for one sequence.
        window_tokens: positions that `window` keeps; None for the others.
    """

    scheme: str
    kv_bytes_per_layer_token: int
    attention_layers: int
    recurrent_layers: int = 0
    state_bytes: int = 0
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        require_word("memory", self.scheme, MEMORY_SCHEMES)
        for name in ("kv_bytes_per_layer_token", "attention_layers", "recurrent_layers", "state_bytes"):
            require_whole(name, getattr(self, name), 0, None)
        if (self.scheme == "window") != (self.window_tokens is not None):
            raise BadInput(f"window_tokens is {self.window_tokens!r} with memory {self.scheme}; the scheme `window` needs it, the others have none")
        if self.window_tokens is not None:
            require_whole("window_tokens", self.window_tokens, 1, None)
        if (self.recurrent_layers > 0) != (self.state_bytes > 0):
            raise BadInput(f"recurrent_layers is {self.recurrent_layers} and state_bytes {self.state_bytes}; give both or neither")
        if self.scheme == "separate-kv" and self.recurrent_layers:
            raise BadInput("separate-kv keeps the whole context as K and V and has no recurrent layers; choose target-kv or window for those")

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one position over all attention layers."""
        return self.attention_layers * self.kv_bytes_per_layer_token

    def held_bytes(self, concurrency: int, context_tokens: int) -> int:
        """Device memory of the drafter's own: concurrency × (kept positions × K and V of a position + recurrent layers × state)."""
        _require(concurrency, context_tokens)
        kept = {"separate-kv": context_tokens, "target-kv": 0, "window": min(context_tokens, self.window_tokens or 0)}[self.scheme]
        return concurrency * (kept * self.kv_bytes_per_token + self.recurrent_layers * self.state_bytes)

    def read_bytes(self, concurrency: int, context_tokens: int) -> int:
        """Bytes that one draft pass reads: each attended position once for the whole block, and each state once.

        In place or not, attention reads what it attends to: `target-kv` saves memory, not these bytes.
        """
        _require(concurrency, context_tokens)
        attended = min(context_tokens, self.window_tokens) if self.window_tokens is not None else context_tokens
        return concurrency * (attended * self.kv_bytes_per_token + self.recurrent_layers * self.state_bytes)

    def written_bytes(self, concurrency: int, accepted_length: float) -> float:
        """Bytes that one round writes on average: K and V of the positions accepted, and each state once; `target-kv` writes states only."""
        _require(concurrency, 0)
        kept = 0.0 if self.scheme == "target-kv" else accepted_length * self.kv_bytes_per_token
        return concurrency * (kept + self.recurrent_layers * self.state_bytes)

    def as_dict(self) -> dict:
        """Return the fields as plain values."""
        return {**asdict(self), "kv_bytes_per_token": self.kv_bytes_per_token}


def memory_of(drafter: Drafter, target: Target, *, scheme: str | None = None, recurrent_layers: int = 0, state_bytes: int = 0,
              window_tokens: int | None = None) -> DrafterMemory:
    """Return the memory of a drafter whose layers have its target's sizes, as it is or with another scheme.

    Recurrent layers take the place of attention layers: attention_layers = layers − recurrent_layers.
    """
    if recurrent_layers > drafter.layers:
        raise BadInput(f"recurrent_layers is {recurrent_layers}; {drafter.name} has {drafter.layers} layers in all")
    return DrafterMemory(scheme or drafter.memory, target.kv_bytes_per_layer_token, drafter.layers - recurrent_layers, recurrent_layers, state_bytes,
                         window_tokens)


def mamba2_state_bytes(heads: int, head_dim: int, state_size: int, *, groups: int = 1, conv_kernel: int = 4,
                       element_bytes: int = BYTES_OF_BF16) -> int:
    """State of one Mamba-2 layer for one sequence, in bytes.

    heads × head_dim × state_size elements, and a convolution's last conv_kernel − 1 inputs of heads × head_dim + 2 × groups × state_size
    channels (Mamba-2, arXiv 2405.21060; the shapes that vLLM's MambaStateShapeCalculator.mamba2_state_shape allocates).
    """
    for name, value in (("heads", heads), ("head_dim", head_dim), ("state_size", state_size), ("groups", groups), ("conv_kernel", conv_kernel)):
        require_whole(name, value, 1, None)
    channels = heads * head_dim + 2 * groups * state_size
    return (heads * head_dim * state_size + (conv_kernel - 1) * channels) * element_bytes


def _require(concurrency: int, context_tokens: int) -> None:
    """Raise BadInput unless there is a sequence and the context is not negative."""
    require_whole("concurrency", concurrency, 1, None)
    require_whole("context_tokens", context_tokens, 0, None)
