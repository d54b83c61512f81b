"""Every environment is the same: pins are exact and agree between constraints.txt, pyproject.toml and environment.yml."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"([a-z0-9][a-z0-9.-]*)==([0-9][0-9a-z.]*)")


def normal(name: str) -> str:
    """Write a distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of(text: str) -> dict[str, str]:
    """Read the pins of a constraints file; a line that is neither a pin nor a comment fails the test."""
    pins: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = PIN.fullmatch(line.strip())
        assert match, f"not an exact pin: {line!r}"
        assert match[1] not in pins, f"{match[1]} is pinned twice"
        pins[normal(match[1])] = match[2]
    return pins


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    return pins_of((ROOT / "constraints.txt").read_text())


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def wanted_names(project: dict) -> set[str]:
    """Names that the package asks for, extras among them."""
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return {normal(re.match(r"[A-Za-z0-9._-]+", line)[0]) for line in lines}


def test_a_range_is_not_a_pin():
    with pytest.raises(AssertionError, match="not an exact pin"):
        pins_of("numpy>=2\n")


def test_everything_that_the_package_asks_for_is_pinned(pins, project):
    assert wanted_names(project) - pins.keys() == set()


def test_bounds_of_the_package_admit_the_pins(pins, project):
    requirements = pytest.importorskip("packaging.requirements")
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    for requirement in map(requirements.Requirement, lines):
        assert requirement.specifier.contains(pins[normal(requirement.name)]), str(requirement)


def test_pins_close_over_what_the_installed_packages_ask_for(pins, project):
    """Walk the installed packages from those that the extras ask for: each one reached is pinned."""
    requirements = pytest.importorskip("packaging.requirements")
    waiting, seen = [(name, "") for name in wanted_names(project)], set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        assert name in pins, f"{name} is installed as a dependency and not pinned"
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in map(requirements.Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                try:
                    metadata.distribution(requirement.name)
                except metadata.PackageNotFoundError:
                    continue
                waiting += [(normal(requirement.name), wanted) for wanted in {"", *requirement.extras}]
    assert len(seen) > len(wanted_names(project)), "the walk followed no dependency"


def test_conda_environment_has_the_pins_and_every_package_asked_for(pins, project):
    lines = [line.strip() for line in (ROOT / "environment.yml").read_text().splitlines()]
    packages = [line[2:] for line in lines if line.startswith("- ") and "==" in line]
    listed = pins_of("\n".join(packages))
    assert listed == {name: pins[name] for name in listed}
    assert listed.keys() == wanted_names(project)
    assert "- --constraint constraints.txt" in lines, "without it the rest of the closure would float"


def test_conda_environment_takes_the_python_that_the_package_takes(project):
    floor = project["requires-python"].removeprefix(">=")
    assert f"  - python>={floor}," in (ROOT / "environment.yml").read_text()
