"""Every Python and shell block of the README and the docs is executed, at a small size.

The blocks of one file run in order in one empty folder. `shrink` and `quick_arguments` make sizes small; what a block
assumes to exist (`frames`, `observations`, ...) comes from `make_names`. Studies are only looked up: tests/studies runs
them. A command that needs a package or a server that is not here must be refused with an error that names it. Blocks
without a language are shell commands; `text` and `bibtex` blocks are not code.
"""

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from derex import Trajectories, cli
from derex.cli import studies
from derex.cli.train import parse_config
from derex.decomposition.statistics import init_statistics
from derex.report.page import Table
from derex.studies.common import StudyResult

ROOT = Path(__file__).parents[1]
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
NOT_CODE = ("text", "bibtex")
WITH_PYTHON = (
    "README.md",
    "agents.md",
    "environments.md",
    "estimator.md",
    "histories.md",
    "training.md",
)

TRAIN = {
    "--streams": "16",
    "--seeds": "1",
    "--steps": "1024",
    "--log-every": "512",
    "--agent.core": "feed-forward",
    "--agent.width": "8",
    "--agent.unroll": "8",
    "--agent.epochs": "1",
    "--agent.minibatches": "1",
}
SHRUNK = {"--representation.width": "8", "--representation.decomposition.k": "2", "--workers": "1"}
RESUMED_STEPS = "1536"
NEEDS = {
    "navix:": "navix",
    "craftax:": "craftax",
    "xminigrid:": "xminigrid",
    "gymnax": "gymnax",
    "dmlab": "deepmind_lab",
    "envpool": "envpool",
    "atari:": "ale_py",
    ".mp4": "imageio_ffmpeg",
}
REFUSED = r"install|holds no run|DEREX_HARD8_ADDRESS|server|no run|not a folder|does not exist|no checkpoint"


class Block(NamedTuple):
    """One fenced block."""

    file: Path
    line: int
    language: str
    code: str


def find_blocks(file: Path) -> Iterator[Block]:
    text = file.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.S | re.M):
        yield Block(file, text[: match.start()].count("\n") + 1, match.group(1), match.group(2))


def find_imports(code: str) -> str:
    """The imports of the example that a block is an excerpt of; nothing where it is none."""
    for example in sorted((ROOT / "examples").glob("*.py")):
        text = example.read_text(encoding="utf-8")
        if any(line in text for line in re.findall(r"^class .*", code, re.M)):
            tree = ast.parse(text)
            imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
            return "\n".join(map(ast.unparse, imports))
    return ""


def make_names() -> dict[str, Any]:
    """What the blocks take for granted."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (40, 30, 30, 3), dtype=np.uint8)
    observations = [rng.normal(size=(length, 3)).astype(np.float32) for length in (60, 50, 60, 55)]
    actions = [rng.integers(0, 2, len(episode) - 1) for episode in observations]
    halves = {
        name: jnp.asarray(rng.normal(size=(16, 2)), jnp.float32) for name in ("f_1", "g_1", "f_2", "g_2", "f")
    }
    trajectories = Trajectories.from_episodes(observations, actions)
    return halves | {
        "jax": jax,
        "jnp": jnp,
        "np": np,
        "frames": frames,
        "next_frames": np.roll(frames, -1, axis=0),
        "X": rng.normal(size=(40, 3)).astype(np.float32),
        "Y": rng.normal(size=(40, 3)).astype(np.float32),
        "X2": rng.normal(size=(40, 3)).astype(np.float32),
        "Y2": rng.normal(size=(40, 3)).astype(np.float32),
        "observation": observations[0][0],
        "previous_action": 1,
        "previous_actions": np.ones(8, np.int32),
        "first": np.zeros(8, bool),
        **dict.fromkeys(("X_0", "X_1", "X_2"), trajectories),
        "observations": observations,
        "actions": actions,
        "running": init_statistics(2),
    }


def shrink(code: str) -> str:
    """The same code with fewer features, steps and seeds."""
    code = re.sub(r"\bHistoryDeRex\(k=\d+", "HistoryDeRex(k=2, steps=2, width=8, batch_size=2", code)
    code = re.sub(r"(?<!History)DeRex\(k=(?!4,)\d+", "DeRex(k=2, steps=3", code)
    code = code.replace("rooms-chain-8", "rooms-chain-2").replace("1e7, seeds=3", "1024, seeds=1, streams=16")
    return code.replace(
        'AgentConfig(core="feed-forward")', 'AgentConfig(core="feed-forward", width=8, unroll=8)'
    )


def quick_arguments(arguments: list[str]) -> list[str]:
    """The arguments of a `derex` command, at a small size."""
    command, *rest = [word.replace("rooms-chain-8", "rooms-chain-2") for word in arguments if word != "..."]
    if command == "train" and "--help" not in rest:
        resumed = "--resume" in rest
        sizes = ({"--steps": RESUMED_STEPS} if "--steps" in rest else {}) if resumed else dict(TRAIN)
        sizes |= {name: value for name, value in SHRUNK.items() if name in rest}
        return [command, *replace_values(rest, sizes)]
    if command == "reproduce":
        return [command, *rest]
    sizes = {"--episodes": "2"} if command == "eval" else {"--episodes": "1", "--max-steps": "8"}
    known = {name: value for name, value in sizes.items() if name in rest or command == "eval"}
    return [command, *(replace_values(rest, known) if command in ("eval", "video") else rest)]


def replace_values(arguments: list[str], values: dict[str, str]) -> list[str]:
    """The arguments with these options set to these values."""
    rest = list(arguments)
    for name, value in values.items():
        if name in rest:
            rest[rest.index(name) + 1] = value
        else:
            rest += [name, value]
    return rest


def drop_representation(arguments: list[str]) -> list[str]:
    """The arguments without options of the representation, each of which has a value."""
    names = [word for word in arguments if word == "--form" or word.startswith("--representation.")]
    dropped = {arguments.index(name) + i for name in names for i in (0, 1)}
    return [word for i, word in enumerate(arguments) if i not in dropped]


def pretend_study(config: Any) -> StudyResult:
    """What `derex reproduce` and `derex demo` show; their options have been parsed."""
    return StudyResult(config.out / "report.html", Table("a study", ("what",), (("a result",),)))


def is_missing(line: str) -> bool:
    """Whether the command needs something that this machine does not have."""
    return any(mark in line and find_spec(package) is None for mark, package in NEEDS.items())


def run_command(
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unmade: set[str],
    thorough: bool,
    any_method: bool = False,
) -> None:
    """Runs one `derex` command, or checks that what the line names exists.

    With `any_method`, the options of a training are parsed as they are written, and V-MPO alone is trained.
    """
    folder, _, command = line.rpartition("&& ")
    words = shlex.split(command or line, comments=True)
    while words and "=" in words[0]:
        words = words[1:]
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.M), line
        return
    if words[0] == "pip":
        extras = re.findall(r"\[([\w,-]+)\]", line)
        assert all(f"\n{extra} = [" in (ROOT / "pyproject.toml").read_text() for extra in extras), line
        return
    assert words[0] == "derex", line
    arguments = quick_arguments(words[1:])
    if "hard8" in line or ("--preset" in line and not thorough):  # no server here; minutes of compilation
        out = arguments[arguments.index("--out") + 1] if "--out" in arguments else "runs/any"
        assert parse_config([*arguments[1:], "--out", out]).out == Path(out), line
        unmade.add(out)
        return
    if any_method and arguments[0] == "train" and "--out" in arguments:
        parse_config(arguments[1:])
        arguments = replace_values(drop_representation(arguments), {"--method": "vmpo"})
    if folder:
        monkeypatch.syspath_prepend(ROOT / folder.split()[1])
    missing = "--help" not in arguments and (
        is_missing(line) or (arguments[0] != "train" and any(word in unmade for word in arguments))
    )
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    errors = capsys.readouterr().err
    if not missing:
        assert code == 0, f"{line}\n{errors}"
        return
    assert code == 2, f"{line}\n{errors}"
    assert re.search(REFUSED, errors), errors
    unmade.update(word for flag, word in pairwise(arguments) if flag == "--out")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_block_is_found(file: Path) -> None:
    """Also indented ones, and those with more than a language behind the fence."""
    fences = re.findall(r"^\s*(?:```|~~~).*$", file.read_text(encoding="utf-8"), re.M)
    blocks = list(find_blocks(file))
    assert len(fences) == 2 * len(blocks)
    assert all(block.code.strip() for block in blocks)
    if file.name in WITH_PYTHON:
        assert any(block.language == "python" for block in blocks)


@pytest.mark.parametrize(
    "thorough", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["quick", "thorough"]
)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_blocks_run(
    file: Path,
    thorough: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    pretended = {
        name: study._replace(run=f"{__name__}:pretend_study") for name, study in studies.STUDIES.items()
    }
    monkeypatch.setattr(studies, "STUDIES", pretended)
    if find_spec("gymnasium") is not None:  # the example is registered by a block, and by its own test
        registry = importlib.import_module("gymnasium").registry
        monkeypatch.delitem(registry, "Hallway-v0", raising=False)
    names = make_names()
    if file.name == "training.md":  # there it is what the exported agent sees
        names["observation"] = np.zeros(16, np.float32)
    unmade: set[str] = set()
    for block in find_blocks(file):
        if block.language in NOT_CODE:
            continue
        if block.language == "python":
            if match := re.match(r"# (\w+\.py):", block.code):
                Path(match.group(1)).write_text(block.code)
            exec(find_imports(block.code), names)
            code = compile(shrink(block.code), f"{file.name}:{block.line}", "exec")
            exec(code, names)
            continue
        assert block.language in ("", "sh", "bash"), (
            f"{file.name}:{block.line}: unknown language {block.language}"
        )
        for line in block.code.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                about_environments = file.name == "environments.md" and not thorough
                run_command(line.strip(), monkeypatch, capsys, unmade, thorough, about_environments)


def test_the_quick_start_prints_what_the_readme_shows(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = list(find_blocks(ROOT / "README.md"))
    shown = next(block for block in blocks if block.language == "text")
    start = next(block for block in blocks if block.language == "python")
    exec(compile(start.code, "README.md", "exec"), {})
    printed = [float(number) for number in re.findall(r"\d+\.\d+", capsys.readouterr().out)]
    expected = [float(number) for number in re.findall(r"\d+\.\d+", shown.code)]
    np.testing.assert_allclose(printed, expected, rtol=0.02)
