"""Imports point one way, and what is heavy or optional is imported late.

`RULES` is the house: each room and the rooms that it may import. A new room fails until it has a line here.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from derex import doctor

SOURCE = Path(__file__).parents[1] / "src" / "derex"

CHAIN = ("types", "decomposition", "networks", "representations", "agents", "training")

RULES: dict[str, set[str]] = {
    **{room: set(CHAIN[:place]) for place, room in enumerate(CHAIN)},
    "training": {*CHAIN[:-1], "envs", "report"},
    "_version": set(),
    "_text": set(),
    "compilation": set(),
    "progress": set(),
    "envs": {"types"},
    "estimators": {"types", "decomposition", "networks"},
    "report": set(),
    "studies": {*CHAIN, "estimators", "envs", "report"},
    "doctor": {"decomposition", "estimators", "envs", "report"},
    "cli": {"studies", "training", "envs", "types", "report", "doctor"},
    "__init__": {"types", "decomposition", "estimators", "training"},
}
ANYBODY = {"_version", "_text", "compilation", "progress"}
SHUT_OUT = {
    "report": {"jax", "jaxlib", "equinox", "optax", "sklearn"}
}  # packages a room may not import, even late

LATE = (
    "jax",
    "sklearn",
    "matplotlib",
    "plotly",
    "orbax",
    "safetensors",
    "PIL",
)  # not imported by `import derex`, a command of `derex.cli` or a definition


class Import(NamedTuple):
    """One import of a file."""

    target: str
    line: int
    at_module_level: bool
    names: tuple[str, ...] = ()


def imports_of(file: Path, source: Path) -> Iterator[Import]:
    """Every import in the file, relative ones resolved, and `import_module("...")` with a literal."""
    package = ("derex", *file.relative_to(source).parent.parts)
    tree = ast.parse(file.read_text(encoding="utf-8"))
    late = {id(node) for scope in ast.walk(tree) if _runs_later(scope) for node in ast.walk(scope)}
    for node in ast.walk(tree):
        now = id(node) not in late
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, now) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            target = ".".join([*base, *([node.module] if node.module else [])])
            yield Import(target, node.lineno, now, tuple(alias.name for alias in node.names))
        elif isinstance(node, ast.Call) and _is_import_module(node):
            literal = node.args[0]
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str):
                yield Import(literal.value, node.lineno, now)


def _runs_later(node: ast.AST) -> bool:
    """Bodies that do not run on import: functions, and blocks for the type checker."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def _is_import_module(node: ast.Call) -> bool:
    return bool(node.args) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")


def rooms_entered(found: Import) -> set[str]:
    """The rooms of derex that an import reaches; `from derex import X` reaches X itself."""
    package, *rest = found.target.split(".")
    if package != "derex":
        return set()
    if rest:
        return {rest[0]}
    names = {"_version" if name == "__version__" else name for name in found.names}
    return names or {"__init__"}


def violations(source: Path, optional: frozenset[str]) -> list[str]:
    """What breaks the rules in the tree, a line for each."""
    wrong = []
    for file in sorted(source.rglob("*.py")):
        place = file.relative_to(source)
        room = place.parts[0].removesuffix(".py")
        if room not in RULES:
            wrong.append(f"{place}: {room!r} has no line in RULES; say what it may import")
            continue
        for found in imports_of(file, source):
            where = f"{place}:{found.line}"
            for entered in sorted(rooms_entered(found) - RULES[room] - ANYBODY - {room}):
                wrong.append(f"{where}: {room} may not import {entered} (allowed: {sorted(RULES[room])})")
            package = found.target.split(".")[0]
            if package in SHUT_OUT.get(room, ()):
                wrong.append(f"{where}: {room} may not import {package}")
            if found.at_module_level and package.lower() in optional:
                wrong.append(f"{where}: {package} is optional; import it inside the function that needs it")
    return wrong


def optional_packages() -> frozenset[str]:
    """Names under which the extras' packages are imported, in lower case."""
    extras = [extra for extra in doctor.find_extras() if extra.name != "dev"]
    return frozenset(name.replace("-", "_").lower() for extra in extras for name in extra.packages)


def test_the_house_is_in_order() -> None:
    assert violations(SOURCE, optional_packages()) == []


def test_the_optional_packages_are_known() -> None:
    expected = {"gymnax", "xminigrid", "gymnasium", "minigrid", "vizdoom", "ale_py", "dm_env_rpc", "wandb"}
    assert expected <= optional_packages()


def test_the_chain_only_looks_down() -> None:
    assert RULES["networks"] == {"types", "decomposition"}
    assert not any("cli" in allowed for allowed in RULES.values())
    assert set().union(*RULES.values()) <= set(RULES)


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("networks/a.py", "from derex.agents import x", "networks may not import agents"),
        ("networks/a.py", "from derex import agents", "networks may not import agents"),
        ("networks/a.py", "from ..agents.loss import x", "networks may not import agents"),
        ("networks/a.py", "from .. import agents", "networks may not import agents"),
        ("networks/a.py", "def f():\n    import derex.cli", "networks may not import cli"),
        ("networks/a.py", "import derex", "networks may not import __init__"),
        ("networks/a.py", "if TYPE_CHECKING:\n    from derex.training import x", "may not import training"),
        ("networks/a.py", "import_module('derex.training.learner')", "may not import training"),
        ("estimators/a.py", "from derex import DeRex", "estimators may not import DeRex"),
        ("envs/a.py", "from derex.networks import x", "envs may not import networks"),
        ("report/a.py", "def f():\n    import jax.numpy", "report may not import jax"),
        ("report/a.py", "from derex.types import x", "report may not import types"),
        ("envs/a.py", "try:\n    import gymnax\nexcept ImportError:\n    pass", "gymnax is optional"),
        ("training/a.py", "class A:\n    from tensorboardX import W", "tensorboardX is optional"),
        ("attic/a.py", "", "'attic' has no line in RULES"),
        ("attic.py", "", "'attic' has no line in RULES"),
    ],
)
def test_what_is_not_allowed_is_found(path: str, code: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.write_text(code)
    (line,) = violations(tmp_path, frozenset({"gymnax", "tensorboardx"}))
    assert says in line


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("networks/a.py", "from derex.decomposition import x\nfrom derex.networks.b import y\nimport jax"),
        ("networks/a.py", "from .b import y\nfrom ..types import x\nfrom derex import __version__"),
        (
            "studies/a.py",
            "from .common import x\nfrom derex.report import y\nimport derex.training",
        ),
        ("envs/a.py", "def make():\n    import gymnax"),
        ("envs/a.py", "if TYPE_CHECKING:\n    import gymnax"),
    ],
)
def test_what_is_allowed_is_not_found(path: str, code: str, tmp_path: Path) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(code)
    assert violations(tmp_path, frozenset({"gymnax"})) == []


def test_the_command_starts_without_heavy_packages() -> None:
    definitions = [
        ".".join(("derex", *file.relative_to(SOURCE).with_suffix("").parts))
        for file in sorted(SOURCE.glob("studies/definitions.py"))
    ]
    commands = [f"derex.cli.{file.stem}" for file in sorted(SOURCE.glob("cli/[a-z]*.py"))]
    modules = ["derex", "derex.cli", *commands, "derex.doctor", *definitions]
    code = f"""
import importlib, sys
for module in {modules!r}:
    importlib.import_module(module)
    loaded = [name for name in {LATE!r} if name in sys.modules]
    if loaded:
        sys.exit(f"import {{module}} loads {{loaded}}; import them inside the functions that need them")
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
