"""The shape of the code, held by its syntax trees: direction of imports, names with units, docstrings, sizes.

Nothing is imported, so the test also runs where torch, plotly or a GPU are missing. Each scanner is itself tested on a
small source, and the scan of the repository is checked not to be empty.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("cost_model", "wts_lab")
MAX_MODULE_LINES = 450
MAX_FUNCTION_LINES = 70
MAX_ENVIRONMENT_VARIABLES = 3

WIDGETS = {"ipywidgets", "anywidget", "IPython", "traitlets", "jupyterlab", "ipykernel"}
SCREEN = WIDGETS | {"plotly"}


@dataclass(frozen=True)
class Rule:
    """What the modules under a folder must not import.

    Attributes:
        folder: relative to the repository.
        forbidden: top-level packages.
        only_at_import: whether an import inside a function is allowed.
        reason: why.
        but_not: subfolder to which the rule does not apply.
    """

    folder: str
    forbidden: frozenset[str]
    only_at_import: bool
    reason: str
    but_not: str | None = None


RULES = (
    Rule("cost_model", frozenset({"wts_lab", "torch"} | SCREEN), False, "the model is pure analysis"),
    Rule("cost_model", frozenset({"pandas", "scipy", "pyarrow"}), True, "importing cost_model must be quick"),
    Rule("wts_lab", frozenset(WIDGETS), False, "widgets live in wts_lab.ui", but_not="wts_lab/ui"),
    Rule("wts_lab/ui", frozenset({"torch"}), True, "the screen opens on recorded data where torch is missing"),
)

UNIT = re.compile(
    r"(^|_)(us|ns|ms|s|bytes|bytes_per_s|ops|operations|ops_per_s|flops_per_s|mhz|gb|w|cycles|blocks|tokens|tokens_per_s)"
    r"(_per_\w+)?(_low|_high|_before|_after|_min|_max|_total|_median|_error)?$"
)
PURE_NUMBER = re.compile(r"(^|_)(share|ratio|factor|gain|speedup|efficiency|probability|temperature|relative_error|match|length)(_|$)")
"""Words that name a number without a unit."""

DIMENSIONLESS = {
    "value": "of a Figure, a Claim or a Finding: the unit stands in the field beside it",
    "high": "of an Estimate, beside its value and low: an accepted length, its difference or their ratio",
    "design_effect": "of an Agreement: a ratio of variances, by the name that surveys have for it",
    "standard_error": "of a Figure: in the unit of the figure beside it",
    "low": "least allowed value of a column whose name carries the unit",
    "lack_of_fit_p": "a probability",
    "r_squared": "a share",
    "tokens_agree_reference": "a share of tokens",
    "min": "bound of a control, in the control's own unit", "max": "the same", "step": "the same",
}
"""Float fields that may lack a unit in their names, each with the reason."""


def modules(folder: str, but_not: str | None = None) -> list[Path]:
    """List the Python files under a folder of the repository."""
    paths = sorted((REPOSITORY / folder).rglob("*.py"))
    return [path for path in paths if but_not is None or (REPOSITORY / but_not) not in path.parents]


def parse(path: Path) -> ast.Module:
    """Parse a file."""
    return ast.parse(path.read_text("utf-8"), str(path))


def name_of(path: Path) -> str:
    """Return a path relative to the repository."""
    return path.relative_to(REPOSITORY).as_posix()


def imports(tree: ast.Module) -> list[tuple[str, int, bool]]:
    """List every import as (top-level package, line, whether it runs when the module is imported).

    Imports for type checkers alone are left out. `importlib.import_module("x")` and `__import__("x")` count.
    """
    found: list[tuple[str, int, bool]] = []

    def visit(node: ast.AST, at_import: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                visit(child, at_import)
            return
        if isinstance(node, ast.Import):
            found.extend((alias.name.split(".")[0], node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.module.split(".")[0], node.lineno, at_import))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
                found.append((node.args[0].value.split(".")[0], node.lineno, at_import))
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, at_import and not inside)

    visit(tree, True)
    return found


def breaches(tree: ast.Module, rule: Rule) -> list[tuple[str, int]]:
    """List the imports of a module that break a rule."""
    return [
        (package, line) for package, line, at_import in imports(tree)
        if package in rule.forbidden and (at_import or not rule.only_at_import)
    ]


def dataclasses_of(tree: ast.Module) -> list[tuple[ast.ClassDef, bool]]:
    """List the dataclasses of a module with whether each is frozen."""
    found = []
    for node in ast.walk(tree):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else []:
            text = ast.unparse(decorator)
            if re.match(r"(dataclasses\.)?dataclass\b", text):
                found.append((node, "frozen=True" in text))
    return found


def float_fields(tree: ast.Module) -> list[tuple[str, str, int]]:
    """List the dataclass fields that hold floats, as (class, field, line)."""
    found = []
    for node, _ in dataclasses_of(tree):
        for entry in node.body:
            if isinstance(entry, ast.AnnAssign) and re.search(r"\bfloat\b", ast.unparse(entry.annotation)):
                found.append((node.name, entry.target.id, entry.lineno))
    return found


def has_unit(field: str) -> bool:
    """Tell whether a float field's name says its unit, or is a known pure number."""
    return bool(UNIT.search(field) or PURE_NUMBER.search(field)) or field in DIMENSIONLESS


def without_docstring(tree: ast.Module) -> list[tuple[str, int]]:
    """List the module, public classes and public functions or methods that lack a docstring.

    A method needs none where a protocol in the same module documents it.
    """
    protocols = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)]
    known = {entry.name for node in protocols for entry in node.body if isinstance(entry, ast.FunctionDef) and ast.get_docstring(entry)}
    found = [] if ast.get_docstring(tree) or not tree.body else [("the module", 1)]

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                inherited = isinstance(node, ast.ClassDef) and child.name in known
                if not child.name.startswith("_") and not ast.get_docstring(child) and not inherited:
                    found.append((prefix + child.name, child.lineno))
                if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
                    visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, (ast.If, ast.Try, ast.With)):
                visit(child, prefix)

    visit(tree, "")
    return found


def long_functions(tree: ast.Module, limit: int = MAX_FUNCTION_LINES) -> list[tuple[str, int]]:
    """List the functions longer than a limit, as (name, lines)."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    sizes = [(node.name, node.end_lineno - node.lineno + 1) for node in functions]
    return [(name, lines) for name, lines in sizes if lines > limit]


def environment_variables(tree: ast.Module) -> set[str]:
    """Return the names of environment variables that a module reads; `?` for a name that is not a literal."""
    found = set()
    for node in ast.walk(tree):
        key = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and ast.unparse(node.value).endswith("environ"):
            key = node.slice
        elif isinstance(node, ast.Call) and re.search(r"(environ\.get|getenv)$", ast.unparse(node.func)) and node.args:
            key = node.args[0]
        if key is not None:
            found.add(key.value if isinstance(key, ast.Constant) else "?")
    return found


def scaled_by_hand(tree: ast.Module) -> list[int]:
    """List the lines that multiply or divide by a literal power of a thousand."""
    powers = {1000.0 ** exponent for exponent in (-4, -3, -2, -1, 1, 2, 3, 4)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            sides = [side.value for side in (node.left, node.right) if isinstance(side, ast.Constant)]
            if any(isinstance(value, (int, float)) and value in powers for value in sides):
                found.append(node.lineno)
    return found


ALL_MODULES = [path for package in PACKAGES for path in modules(package)]
EVERY_MODULE = pytest.mark.parametrize("path", ALL_MODULES, ids=name_of)


def test_the_scan_is_not_empty():
    names = {name_of(path) for path in ALL_MODULES}
    assert {"cost_model/gpu.py", "cost_model/measurement.py", "wts_lab/walk.py", "wts_lab/cli.py", "wts_lab/ui/panels.py"} <= names
    found = [entry for path in ALL_MODULES for entry in imports(parse(path))]
    assert len(found) > 100 and any(package == "torch" for package, _, _ in found)
    assert sum(len(float_fields(parse(path))) for path in ALL_MODULES) > 20


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.folder}: {rule.reason}")
def test_imports_go_one_way(rule):
    paths = modules(rule.folder, rule.but_not)
    assert paths
    found = [f"{name_of(path)}:{line} imports {package}" for path in paths for package, line in breaches(parse(path), rule)]
    assert found == [], rule.reason


def test_kernels_know_nothing_of_torch():
    sources = [path for path in sorted((REPOSITORY / "csrc").rglob("*")) if path.suffix in (".cu", ".cuh", ".cpp", ".h", ".hpp")]
    assert len(sources) >= 5
    with_torch = {
        path.name for path in sources if re.search(r"#\s*include\s*[<\"](torch|ATen|c10|pybind11)", path.read_text("utf-8"))
    }
    assert with_torch <= {"binding.cpp"}


@EVERY_MODULE
def test_public_things_are_documented(path):
    assert without_docstring(parse(path)) == []


@EVERY_MODULE
def test_float_fields_say_their_unit(path):
    unnamed = [f"{owner}.{field} (line {line})" for owner, field, line in float_fields(parse(path)) if not has_unit(field)]
    assert unnamed == [], "end the name in its unit, or list it in DIMENSIONLESS with the reason"


@EVERY_MODULE
def test_modules_and_functions_stay_readable(path):
    assert len(path.read_text("utf-8").splitlines()) < MAX_MODULE_LINES
    assert long_functions(parse(path)) == []
    assert path.stem not in ("utils", "util", "helpers", "misc")


@pytest.mark.parametrize("path", modules("cost_model"), ids=name_of)
def test_dataclasses_of_the_model_are_frozen(path):
    assert [node.name for node, frozen in dataclasses_of(parse(path)) if not frozen] == []


@pytest.mark.parametrize("path", [path for path in modules("cost_model") if path.stem != "units"], ids=name_of)
def test_the_model_scales_units_in_one_place(path):
    assert scaled_by_hand(parse(path)) == [], "use cost_model.units"


def test_environment_variables_are_few():
    names = set().union(*(environment_variables(parse(path)) for path in ALL_MODULES))
    ours = {name for name in names if name.startswith("WTS_")} | ({"?"} & names)
    assert "?" not in names and len(ours) <= MAX_ENVIRONMENT_VARIABLES, names


SAMPLE = '''
from __future__ import annotations
import json, torch.nn
from typing import TYPE_CHECKING
from wts_lab import walk
from . import sibling
import importlib
if TYPE_CHECKING:
    import pandas
else:
    import scipy.stats

@dataclass(frozen=True)
class Time:
    step_us: float
    step: float | None
    note: str
    table: dict[str, float]

@dataclasses.dataclass
class Loose:
    """A docstring."""
    interval_us_low: float = 0.0
    def method(self):
        return os.environ["WTS_CACHE"], os.getenv("HOME"), os.environ.get(name)
    def _private(self): ...

class Queue(Protocol):
    """A docstring."""
    def wait(self):
        """A docstring."""
    def go(self): ...

class RealQueue:
    """A docstring."""
    def wait(self): ...

def late():
    """A docstring."""
    import plotly.graph_objects as go
    importlib.import_module("ipywidgets")
    return __import__("numpy")
'''


def test_the_import_scanner_sees_every_kind_of_import():
    assert [(package, at_import) for package, _, at_import in imports(ast.parse(SAMPLE))] == [
        ("__future__", True), ("json", True), ("torch", True), ("typing", True), ("wts_lab", True), ("importlib", True),
        ("scipy", True), ("plotly", False), ("ipywidgets", False), ("numpy", False),
    ]


def test_a_rule_catches_what_it_forbids_and_no_more():
    tree = ast.parse(SAMPLE)
    assert [package for package, _ in breaches(tree, RULES[0])] == ["torch", "wts_lab", "plotly", "ipywidgets"]
    assert [package for package, _ in breaches(tree, RULES[1])] == ["scipy"]
    assert breaches(tree, Rule("x", frozenset({"plotly"}), True, "late imports are allowed")) == []


def test_the_other_scanners_see_what_they_should():
    tree = ast.parse(SAMPLE)
    assert [(owner, field) for owner, field, _ in float_fields(tree)] == [
        ("Time", "step_us"), ("Time", "step"), ("Time", "table"), ("Loose", "interval_us_low")]
    assert [node.name for node, frozen in dataclasses_of(tree) if not frozen] == ["Loose"]
    assert [name for name, _ in without_docstring(tree)] == ["the module", "Time", "Loose.method", "Queue.go"]
    assert environment_variables(tree) == {"WTS_CACHE", "HOME", "?"}
    assert scaled_by_hand(ast.parse("a = b * 1e6\nc = d / 1000\ne = 1e-6 * f\ng = h * 2.0\ni = 1e6")) == [1, 2, 3]
    assert long_functions(tree, limit=4) == [("late", 5)]


@pytest.mark.parametrize(("field", "expected"), [
    ("step_us", True), ("step_us_low", True), ("dram_bandwidth_bytes_per_s", True), ("shared_read_bytes_per_s_per_sm", True),
    ("sm_clock_mhz_before", True), ("tokens_match", True), ("temperature", True), ("head_share", True), ("time", False),
    ("bytes", True), ("gain_low", True), ("relative_error", True), ("bandwidth", False), ("stepus", False), ("clock", False),
    ("byte_rate", False), ("error", False),
])
def test_the_unit_scanner_tells_names_apart(field, expected):
    assert has_unit(field) is expected
