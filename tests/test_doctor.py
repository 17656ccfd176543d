"""`derex doctor`: true about what is there, and exact about what to type for what is not."""

import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest

from derex import doctor
from derex.doctor import Device, Extra, gpu_advice

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
CPU = Device("cpu:0", "cpu", "cpu", None, None)
GPU = Device("cuda:0", "gpu", "NVIDIA H100", 80 * 2**30, 2**30)
H100 = [("NVIDIA H100", "580.65.06")]
NO_CUDA = (Extra("cuda13", {"jax-cuda13-plugin": None}, "pip install 'derex[cuda13]'"),)
WITH_CUDA = (Extra("cuda13", {"jax-cuda13-plugin": "0.10.2"}, "pip install 'derex[cuda13]'"),)


@pytest.fixture(scope="module")
def diagnosis() -> doctor.Diagnosis:
    """Of this machine, looked at once."""
    return doctor.diagnose()


def test_the_core_works_here(diagnosis: doctor.Diagnosis) -> None:
    assert diagnosis.problems == ()
    assert diagnosis.versions["jax"] == importlib.metadata.version("jax")
    assert diagnosis.versions["jaxlib"] == importlib.metadata.version("jaxlib")
    assert len(diagnosis.devices) >= 1
    assert diagnosis.x64 in (True, False)
    assert diagnosis.compilation is not None
    assert diagnosis.compilation.gflops > 0.1
    assert diagnosis.host.ram_bytes is None or diagnosis.host.ram_bytes > 2**28


def test_extras_are_those_of_pyproject(diagnosis: doctor.Diagnosis) -> None:
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    assert {extra.name for extra in diagnosis.extras} == set(project["optional-dependencies"])
    required = {line.split(">")[0] for line in project["dependencies"]}
    assert required | {"derex", "jaxlib"} == set(diagnosis.versions)


def test_packages_of_an_extra_are_followed_through_jax_and_bundles(diagnosis: doctor.Diagnosis) -> None:
    packages = {extra.name: set(extra.packages) for extra in diagnosis.extras}
    assert packages["cuda13"] == {"jax-cuda13-plugin"}
    assert packages["atari"] == {"ale-py", "gymnasium"}
    assert packages["gymnax"] | packages["vizdoom"] <= packages["envs"]


def test_self_references_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = {
        "derex": [
            "jax>=0.10",
            "derex[a, b]; extra == 'all'",
            "one>=1; extra == 'a'",
            "jax[gpu]; extra == 'b'",
        ],
        "jax": ['plugin[with-cuda]<=2; extra == "gpu"', "numpy"],
    }
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines[name])
    assert doctor.extra_packages("derex", "all") == {"derex", "one", "jax", "plugin"}
    assert doctor.requirements("derex", None) == [("jax", ())]


def test_an_extra_says_what_to_type_until_all_of_it_is_there() -> None:
    command = "pip install 'derex[gymnax]'"
    assert doctor.extra_row(Extra("gymnax", {"gymnax": None, "six": None}, command)) == ("gymnax", command)
    partly = doctor.extra_row(Extra("gymnax", {"gymnax": "1.0.1", "six": None}, command))
    assert partly == ("gymnax", f"{command}  (missing: six)")
    there = doctor.extra_row(Extra("gymnax", {"gymnax": "1.0.1", "six": "1.17"}, command))
    assert there == ("gymnax", "gymnax 1.0.1, six 1.17")


def test_no_metadata_means_no_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "metadata", absent)
    assert doctor.find_extras() == ()


@pytest.mark.parametrize(
    ("gpus", "devices", "extras", "environment", "says"),
    [
        ([], (CPU,), NO_CUDA, {}, None),
        (H100, (GPU,), WITH_CUDA, {}, None),
        (H100, (CPU,), NO_CUDA, {}, "[cuda13]"),
        ([("Tesla T4", "535.183.01")], (CPU,), NO_CUDA, {}, "[cuda12]"),
        (H100, (CPU,), NO_CUDA, {"JAX_PLATFORMS": "", "CUDA_VISIBLE_DEVICES": "0"}, "[cuda13]"),
        (H100, (CPU,), WITH_CUDA, {}, "JAX_PLATFORMS=cuda python -c"),
        (H100, (CPU,), WITH_CUDA, {"JAX_PLATFORMS": "cpu"}, "JAX_PLATFORMS='cpu' hides it"),
        (H100, (CPU,), WITH_CUDA, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES='' hides it"),
    ],
)
def test_gpu_advice(
    gpus: list[tuple[str, str]],
    devices: tuple[Device, ...],
    extras: tuple[Extra, ...],
    environment: dict[str, str],
    says: str | None,
) -> None:
    advice = gpu_advice(gpus, devices, extras, environment)
    assert len(advice) == (says is not None)
    if says is not None:
        assert says in advice[0]


def test_the_driver_is_asked_for_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA H100, 80GB, 580.65.06'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.nvidia_gpus() == [("NVIDIA H100, 80GB", "580.65.06")]
    program.write_text("#!/bin/sh\nexit 9\n")
    assert doctor.nvidia_gpus() == []
    program.unlink()
    assert doctor.nvidia_gpus() == []


def test_what_is_broken_is_named_and_the_code_is_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise RuntimeError("no\n  compiler")

    monkeypatch.setattr(doctor, "ROOMS", ())
    monkeypatch.setattr(doctor, "time_compilation", fails)
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "optax" else "1.0")
    assert doctor.run(doctor.Doctor(json=True)) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["compilation"] is None
    assert answer["problems"] == [
        "optax is missing: pip install optax",
        "compilation failed: RuntimeError: no compiler",
    ]


def test_what_people_read(
    diagnosis: doctor.Diagnosis, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: diagnosis)
    assert doctor.run(doctor.Doctor()) == 0
    text = capsys.readouterr().out
    assert (
        text.index("Versions")
        < text.index("Machine")
        < text.index("Optional")
        < text.index("The core works.")
    )
    absent = [extra for extra in diagnosis.extras if extra.missing]
    assert all(extra.install in text for extra in absent)  # brackets are text, not markup


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert doctor.find_memory(limit) == 2**20
    limit.write_text("max\n")
    physical = doctor.find_memory(limit)
    assert physical == doctor.find_memory(tmp_path / "absent")
    assert physical is None or physical > 2**28


@pytest.mark.parametrize(
    ("count", "text"), [(None, "unknown"), (3 * 2**30 // 2, "1.5 GiB"), (5 * 2**20, "5 MiB")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert doctor.size_text(count) == text
