"""Walk small shapes under compute-sanitizer: ``python -m benchmarks.sanitize``.

memcheck, synccheck and racecheck (shared memory) over a representative set of instantiations: every kind of head, 1, 4 and 8 batch rows,
sampling, streaming, partial residency, bf16. Kernels are built first and expected tokens are the twin's; then each tool runs one process
that walks them all and compares. Only the walk's kernels are instrumented. Races through global memory no tool sees: `stress.py`.

racecheck gets what it can judge (`adapted`): it does not order what a thread did before ``bar.arrive``, so arriving threads wait there; and
cuBLAS's products, which break it, are made on the host. What waiting hides, a warp that runs ahead of its leaders, is the emulator's part: it
tries orders of events with the arrivals as they are (tests/wts_lab/test_emulated_walk.py).

``--build GPU`` only builds, for a GPU of the catalogue that need not be here. Exit status: 0 nothing reported (or nothing to check with,
and why), 1 a report, other tokens, or a tool that failed, 2 the request cannot be used.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.status import ending_with_status
from cost_model.errors import BadInput
from cost_model.gpu import Gpu, load_gpu
from cost_model.head import Head
from cost_model.placement import Placement
from cost_model.terms import TILE_ROWS

if TYPE_CHECKING:
    import torch

TOOLS = ("memcheck", "synccheck", "racecheck")
STEPS, RANK, HIDDEN_SIZE, GRU_SIZE, SMALL_VOCAB = 3, 64, 96, 64, 3001
PARTIAL = Placement(4, 4, 4, 4, 4)
"""A slot of a warp in each tier."""
NOISE = (0x7EDCBA9876543210, 7)
TIMEOUT_S = 300
UNSUPPORTED = "Device not supported"
SHOWN_LINES = 40


@dataclass(frozen=True)
class Case:
    """One instantiation: a kind of head, batch rows, and what is not as in a resident greedy int8x2 walk."""

    kind: str
    batch: int
    mode: str = "resident"
    precision: str = "int8x2"
    sampling: bool = False
    placement: Placement | None = None

    @property
    def name(self) -> str:
        """A word for each thing that is unusual."""
        words = [self.kind, str(self.batch), *(["partial"] * (self.placement is not None)), *([self.mode] * (self.mode != "resident"))]
        return "-".join([*words, *([self.precision] * (self.precision != "int8x2")), *(["sampling"] * self.sampling)])

    def head(self, sm_count: int) -> Head:
        """The head's shape; a given placement is filled on that many multiprocessors, but for a few rows."""
        vocab_size = SMALL_VOCAB if self.placement is None else self.placement.tiles * TILE_ROWS * sm_count - 5
        hidden = None if self.kind == "markov" else HIDDEN_SIZE
        return Head(self.name, self.kind, vocab_size, vocab_size, vocab_size, RANK, hidden, GRU_SIZE if self.kind == "domino" else None)

    def options(self) -> dict[str, Any]:
        """What `plan_walk` and `Walk` are asked."""
        return {
            "mode": self.mode, "precision": self.precision, "placement": self.placement, "max_batch": self.batch, "sampling": self.sampling,
        }


CASES = (
    *(Case("markov", batch) for batch in (1, 4, 8)),
    *(Case("markov", batch, placement=PARTIAL) for batch in (1, 8)),
    *(Case("markov", batch, mode="streaming") for batch in (1, 8)),
    *(Case("markov", batch, mode="streaming", precision="bf16") for batch in (1, 4)),
    *(Case("markov", batch, sampling=True) for batch in (1, 4, 8)), Case("markov", 8, mode="streaming", sampling=True), Case("markov", 32, placement=PARTIAL, sampling=True),
    Case("gated", 1), Case("gated", 4), Case("rnn", 1), Case("rnn", 8), Case("domino", 1), Case("domino", 8),
)  # fmt: skip


def select_cases(names: Sequence[str]) -> tuple[Case, ...]:
    """The cases of those names, all for none; BadInput lists the names where one is not known."""
    known = {case.name: case for case in CASES}
    for name in names:
        if name not in known:
            raise BadInput(f"no case is named {name!r}; there are {', '.join(known)}")
    return tuple(known[name] for name in names) or CASES


# --- what racecheck gets ------------------------------------------------------------------------------------------------------

ARRIVE, SYNC = '"bar.arrive %0, %1;"', '"bar.sync %0, %1;"'


@contextmanager
def adapted(tool: str) -> Iterator[None]:
    """Within it kernels are built, and walks prepared, as a tool can judge them; for tools other than racecheck as ever.

    A kernel built here has a hash of its own.

    Raises:
        RuntimeError: the arrival is not where this looks for it.
    """
    if tool != "racecheck":
        yield
        return
    from wts_lab import abi, build, head_terms

    build.load_binding()  # of the sources as they are
    kept = abi.csrc_root, head_terms._product
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(shutil.copytree(abi.csrc_root(), Path(folder) / "csrc"))
        instructions = sources / "walk" / "ptx.cuh"
        text = instructions.read_text()
        if text.count(ARRIVE) != 1:
            raise RuntimeError(f"{instructions.name} has {text.count(ARRIVE)} arrivals at a barrier written {ARRIVE}; racecheck is prepared for one")
        instructions.write_text(text.replace(ARRIVE, SYNC))
        abi.csrc_root, head_terms._product = lambda: sources, product_on_the_host
        try:
            yield
        finally:
            abi.csrc_root, head_terms._product = kept


def product_on_the_host(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """fp32 ``rows @ weight.T`` of bf16 factors, on the device of ``rows``, as `head_terms` makes it where there is no GPU."""
    return (rows.bfloat16().cpu().float() @ weight.bfloat16().cpu().float().T).to(rows.device)


# --- walking ------------------------------------------------------------------------------------------------------------------


def build_kernels(cases: Sequence[Case], gpu: Gpu, arch: str) -> None:
    """Build every kernel of the cases, several at a time; raises what `plan_walk` and `build_walk` raise."""
    from wts_lab.build import build_walk
    from wts_lab.walk_plan import plan_walk

    specs = [plan_walk(gpu, case.head(gpu.sm_count), **case.options()).spec for case in cases]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda spec: build_walk(spec, arch), specs))


def make_inputs(case: Case) -> tuple[Any, dict[str, torch.Tensor]]:
    """A head on the GPU and the tensors of one call, the same in every process.

    Random, but in bf16 every correction is one product: that of any order of sums.
    """
    import torch

    from wts_lab.heads import MarkovHead, random_head

    shape = case.head(torch.cuda.get_device_properties(0).multi_processor_count)
    generator = torch.Generator().manual_seed(1)
    head = random_head(shape, device="cuda")
    if case.precision == "bf16":
        w1 = torch.eye(RANK).repeat(shape.vocab_size // RANK + 1, 1)[: shape.vocab_size]
        w2 = torch.randint(-12, 13, (shape.vocab_size, RANK), generator=generator).float()
        head = MarkovHead(*(weights.to("cuda", torch.bfloat16) for weights in (w1, w2)))
    positions = STEPS + head.first_step
    inputs = {
        "base_logits": torch.randn(case.batch, positions, shape.vocab_size, generator=generator).bfloat16(),
        "anchor": torch.randint(shape.vocab_size, (case.batch,), generator=generator),
    }
    if case.kind != "markov":
        inputs["hidden"] = torch.randn(case.batch, positions, HIDDEN_SIZE, generator=generator).bfloat16()
    if case.sampling:
        inputs["temperatures"] = (torch.arange(case.batch) < max(1, case.batch - 1)).float()  # with more than one row, one is greedy
    return head, {name: tensor.cuda() for name, tensor in inputs.items()}


def twin_tokens(case: Case) -> torch.Tensor:
    """int64 ``[batch, positions]`` on the CPU: what the twin walks."""
    import torch

    from wts_lab.head_terms import position_terms
    from wts_lab.recurrent_twin import twin_head_walks
    from wts_lab.twin_torch import expected_walks

    head, inputs = make_inputs(case)
    given = [inputs["base_logits"], inputs["anchor"]]
    options: dict[str, Any] = {"precision": case.precision}
    if case.sampling:
        options |= {"temperatures": inputs["temperatures"], "noise": NOISE, "rows": torch.arange(case.batch, device="cuda")}
    if case.kind == "markov":
        return expected_walks(head, *given, **options).tokens.cpu()
    return twin_head_walks(head, *given, position_terms(head, inputs["hidden"]), **options).tokens.cpu()


def walked_tokens(case: Case) -> torch.Tensor:
    """The same of the kernel, walked twice, from fresh words and from those of the first time; the second walk's tokens."""
    import torch

    from wts_lab.walk import Walk

    head, inputs = make_inputs(case)
    walk = Walk(head, steps=STEPS, **case.options())
    for _ in range(2):
        noise = {"noise": (NOISE[0], torch.tensor([NOISE[1]], device="cuda"))} if case.sampling else {}
        tokens = walk(**inputs, **noise)
    walk.check()
    return tokens.cpu()


def walk_all(expected: Path) -> int:
    """Inside a tool: walk the cases of a file of expected tokens, and say of each whether it has them; 1 if one has not."""
    import torch

    wanted, wrong = torch.load(expected), 0
    for case in select_cases(tuple(wanted)):
        same = torch.equal(walked_tokens(case), wanted[case.name])
        wrong += not same
        print(case.name, "walks as its twin does" if same else "WALKS OTHER TOKENS THAN ITS TWIN", flush=True)
    return 1 if wrong else 0


# --- tools --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ToolResult:
    """What one tool said.

    Attributes:
        tool: its name.
        reports: errors, hazards and warnings of its summary; None where it gave none.
        status: exit status of the walks under it.
        output: all that was printed.
        took_s: seconds.
    """

    tool: str
    reports: int | None
    status: int
    output: str
    took_s: float

    @property
    def clean(self) -> bool:
        """Whether it looked and found nothing, and the tokens were right."""
        return self.reports == 0 and self.status == 0


def count_reports(output: str) -> int | None:
    """Errors, hazards or warnings that a tool's summary counts; None where there is no summary."""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:error|hazard)", output)
    return sum(map(int, found)) if found else None


def find_sanitizer() -> Path | None:
    """compute-sanitizer: on the path, or beside the CUDA compiler."""
    from wts_lab.build import BuildError, find_nvcc

    on_path = shutil.which("compute-sanitizer")
    if on_path:
        return Path(on_path)
    try:
        beside = find_nvcc().path.resolve().parent / "compute-sanitizer"
    except BuildError:
        return None
    return beside if beside.is_file() else None


def run_tool(sanitizer: Path, tool: str, expected: Path) -> ToolResult:
    """Walk all cases of a file of expected tokens under one tool."""
    told = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, timeout=60).stdout
    only = "--kernel-name" if "--kernel-name" in told else "--kernel-regex"  # an older name
    command = [
        str(sanitizer), "--tool", tool, only, "kns=walk_kernel", "--target-processes", "application-only", "--error-exitcode", "1",
        *(["--report-api-errors", "no"] if tool == "memcheck" else []), sys.executable, "-m", "benchmarks.sanitize", "--tool", tool, "--walk", str(expected),
    ]  # fmt: skip
    start = time.perf_counter()
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S)
        status, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as stuck:
        status, output = 1, f"{(stuck.stdout or b'').decode(errors='replace')}\nended after {TIMEOUT_S} s"
    return ToolResult(tool, count_reports(output), status, output, time.perf_counter() - start)


def sanitize(cases: Sequence[Case] = CASES, tools: Sequence[str] = TOOLS) -> list[ToolResult] | str:
    """Run the tools over the cases; returns their results, or why there is nothing to check with here.

    Raises:
        BadInput: there is no GPU that runs the kernels.
        BuildError: a kernel cannot be built.
    """
    from wts_lab.environment import require_device

    sanitizer = find_sanitizer()
    if sanitizer is None:
        return "no compute-sanitizer on the path or beside the CUDA compiler; it comes with the CUDA toolkit"
    require_device()
    import torch

    from wts_lab.walk import device_arch, device_gpu

    device = torch.device("cuda", 0)
    results = []
    for tool in tools:
        with adapted(tool), tempfile.TemporaryDirectory() as folder:
            build_kernels(cases, device_gpu(device), device_arch(device))
            expected, tokens = Path(folder) / "expected.pt", {case.name: twin_tokens(case) for case in cases}
            torch.save(tokens, expected)
            for case in cases:  # this also builds the binding outside the tools
                if not torch.equal(walked_tokens(case), tokens[case.name]):
                    raise RuntimeError(f"{case.name} walks other tokens than its twin, without any tool")
            results.append(run_tool(sanitizer, tool, expected))
            if UNSUPPORTED in results[-1].output:
                return f"compute-sanitizer says of this machine: {UNSUPPORTED}"
    return results


@ending_with_status
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    command = argparse.ArgumentParser(prog="python -m benchmarks.sanitize", description="Walk small shapes under compute-sanitizer.")
    command.add_argument("names", nargs="*", metavar="case", help=f"cases to walk (default: all): {', '.join(case.name for case in CASES)}")
    command.add_argument("--tool", nargs="+", choices=TOOLS, default=TOOLS)
    command.add_argument("--build", metavar="GPU", help="only build the kernels, for a GPU of the catalogue")
    command.add_argument("--walk", type=Path, help=argparse.SUPPRESS)
    given = command.parse_args(arguments)
    if given.walk:
        with adapted(given.tool[0]):
            return walk_all(given.walk)
    cases = select_cases(given.names)
    if given.build:
        gpu = load_gpu(given.build)
        build_kernels(cases, gpu, f"sm_{gpu.compute_capability[0]}{gpu.compute_capability[1]}")
        return 0
    results = sanitize(cases, given.tool)
    if isinstance(results, str):
        print(f"skipped: {results}")
        return 0
    return report(results, len(cases))


def report(results: Sequence[ToolResult], cases: int) -> int:
    """Print a line for each tool and what those with something to say said; returns the exit status."""
    for result in results:
        said = "no summary" if result.reports is None else f"{result.reports} reports"
        print(f"{result.tool:10} {cases:3} kernels  {said:12} tokens {'right' if result.status == 0 else 'wrong, or it failed':20} {result.took_s:6.1f} s")
    for result in results:
        if not result.clean:
            print(f"\n{result.tool} said:", *result.output.splitlines()[:SHOWN_LINES], sep="\n")
    return 0 if all(result.clean for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
