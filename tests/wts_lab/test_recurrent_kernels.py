"""State advance and latents of the gated, RNN and Domino heads compile alone, within the registers that a resident walk leaves them."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from wts_lab import abi, build

SOURCE = """
#include "walk/recurrent.cuh"

namespace wts {

template <int Rows, int Rank, int Gru, HeadKind Head, int Warps, bool Int8x2, int StateRows, int ProjectorRows>
struct Config {
  static constexpr int rows = Rows, rank = Rank, gru = Gru, warps = Warps, threads = 32 * Warps;
  static constexpr HeadKind head = Head;
  static constexpr bool int8x2 = Int8x2;
  static constexpr int latent_header = 2 * Rank, latent_stride = 2 * Rank + 16;
  static constexpr bool grouped = false;  // latents lie as warps read them, so there is no operand of a warpgroup
  static constexpr int operand_bytes = 0, latents_bytes = Rows * latent_stride;
  static constexpr int state_rows = StateRows, projector_rows = ProjectorRows;
};

// A walk without its projection: each token is the one before, plus one.
template <class C>
__global__ void __launch_bounds__(C::threads, 65536 / C::threads / REGISTERS) walk_kernel(const __grid_constant__ WalkParams p) {
  extern __shared__ __align__(16) char shared[];
  int* const tokens = reinterpret_cast<int*>(shared + C::rows * C::latent_stride);
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  if (threadIdx.x < p.batch) tokens[threadIdx.x] = static_cast<int>(p.anchors[threadIdx.x]);
  __syncthreads();
  if constexpr (C::head == HeadKind::gated) {
    if (warp < p.batch) gate_latent<C>(p, warp, tokens[warp], 0, shared + warp * C::latent_stride, lane);
  } else {
    Recurrence<C> recurrence(p, shared + C::rows * C::latent_stride + 128, warp, lane);
    recurrence.load();
    wait_copies<0>();
    __syncthreads();
    for (int position = 0; position < p.steps; ++position) {
      if (!recurrence.advance(tokens, position, position, position == 0, shared)) break;
      __syncthreads();
      if (warp > 0) recurrence.publish_products(position + 1, warp - 1, C::warps - 1);
      else if (lane < p.batch) ++tokens[lane];
      __syncthreads();
    }
  }
  __syncthreads();
  if (blockIdx.x == 0) p.tokens[threadIdx.x] = shared[threadIdx.x];
}

template __global__ void walk_kernel<Config<CONFIG>>(const __grid_constant__ WalkParams);

}  // namespace wts
"""

CONFIGS = {
    # arguments of Config, and the registers of a thread that the compiler may take
    "gated": ("1, 256, 0, HeadKind::gated, 8, true, 0, 0", 64),
    "rnn": ("1, 256, 0, HeadKind::rnn, 8, true, 6, 0", 64),
    "rnn-odd-bf16": ("4, 96, 0, HeadKind::rnn, 12, false, 2, 0", 64),
    "rnn-32-rows": ("32, 512, 0, HeadKind::rnn, 8, true, 12, 0", 64),
    "domino": ("1, 256, 1024, HeadKind::domino, 8, true, 24, 2", 64),
    "domino-32-rows": ("32, 256, 1024, HeadKind::domino, 8, true, 4, 1", 64),
    "domino-small": ("2, 32, 72, HeadKind::domino, 4, true, 0, 0", 64),
}
EVERYWHERE = ("gated", "rnn", "domino")
CASES = [("sm_90", name) for name in CONFIGS] + [(arch, name) for arch in build.ARCHITECTURES if arch != "sm_90" for name in EVERYWHERE]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """What the compiler says of every case, two at a time."""
    folder, nvcc = tmp_path_factory.mktemp("recurrent"), build.find_nvcc()
    (folder / "wts_abi.h").write_text(abi.render_header())

    def compile_one(case: tuple[str, str]) -> str:
        arch, name = case
        source = folder / f"{name}-{arch}.cu"
        config, registers = CONFIGS[name]
        source.write_text(SOURCE.replace("CONFIG", config).replace("REGISTERS", str(registers)))
        places = [f"-I{path}" for path in (folder, abi.csrc_root(), *nvcc.include_dirs)]
        code = f"-gencode=arch=compute_{arch[3:]},code={arch}"
        command = [nvcc.path, *build.FLAGS, code, *places, "-cubin", "-o", source.with_suffix(".cubin"), source]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stderr

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(compile_one, CASES), strict=True))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_heads_compile_without_spills_and_warnings(logs, case):
    registers, spill_bytes, stack_bytes = build.parse_ptxas(logs[case], "walk_kernel")
    assert spill_bytes == stack_bytes == 0 and 0 < registers <= CONFIGS[case[1]][1]
    assert "warning" not in logs[case]
