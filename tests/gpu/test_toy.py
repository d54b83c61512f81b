"""The toy walk on a real GPU: the kernel's tokens and logits are the twin's, bit for bit."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from wts_lab.toy import toy_head, twin, walk_on_gpu  # noqa: E402


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_kernel_walks_a_toy_head(seed):
    head = toy_head() if seed is None else toy_head(seed)
    live = walk_on_gpu(head)
    assert live.tokens is not None and live.says.startswith("run on ")
    assert not live.differs_from(twin(head))
