"""`derex doctor`: reports installed packages, JAX's devices, and whether the core works.

Package versions and derex's extras are read from package metadata, without importing the packages.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import textwrap
import time
import timeit
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from derex._text import install_command
from derex._version import __version__

ROOMS = ("derex.decomposition", "derex.estimators", "derex.envs", "derex.report")  # imported as a check
CUDA13_DRIVER = 580  # the oldest NVIDIA driver that runs CUDA 13
HIDES_GPUS: dict[str, Callable[[str], bool]] = {  # environment variables, and the values that hide every GPU
    "JAX_PLATFORMS": lambda value: value != "" and not {"cuda", "gpu"} & set(value.split(",")),
    "CUDA_VISIBLE_DEVICES": lambda value: value in ("", "-1"),
}


@dataclass(frozen=True)
class Doctor:
    """Versions, devices and optional suites; does compilation work?

    Exit code 0 when the core works, otherwise 1 with what is broken.
    """

    json: bool = False
    """print JSON, for machines and bug reports"""


@dataclass(frozen=True)
class Extra:
    """One of derex's extras with the versions of its packages; None if a package is missing."""

    name: str
    packages: dict[str, str | None]
    install: str

    @property
    def missing(self) -> list[str]:
        return [package for package, version in self.packages.items() if version is None]


@dataclass(frozen=True)
class Host:
    """Resources of the machine; None if unknown."""

    cores: int | None
    ram_bytes: int | None
    disk_free_bytes: int | None


@dataclass(frozen=True)
class Device:
    """One JAX device; the memory fields are None if the backend does not report them."""

    name: str
    platform: str
    kind: str
    bytes_limit: int | None
    bytes_in_use: int | None


@dataclass(frozen=True)
class Compilation:
    """Time of a 2×2 matrix product including compilation, then of a larger one without."""

    first_seconds: float
    size: int
    seconds: float
    gflops: float


@dataclass(frozen=True)
class Diagnosis:
    """Everything that `derex doctor` reports."""

    python: str
    system: str
    versions: dict[str, str | None]
    host: Host
    devices: tuple[Device, ...]
    x64: bool | None
    compilation: Compilation | None
    extras: tuple[Extra, ...]
    advice: tuple[str, ...]
    problems: tuple[str, ...]


def run(options: Doctor) -> int:
    """Prints the diagnosis; returns 0 if the core works, otherwise 1."""
    diagnosis = diagnose()
    if options.json:
        print(json.dumps({"ok": not diagnosis.problems} | asdict(diagnosis), indent=1))
    else:
        show(diagnosis)
    return 1 if diagnosis.problems else 0


def diagnose() -> Diagnosis:
    """Runs all checks; failures are listed in `problems` instead of raised."""
    core, extras = core_versions(), find_extras()
    problems = [f"{name} is missing: pip install {name}" for name, version in core.items() if version is None]

    def attempt(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # every failure is reported
            message = textwrap.shorten(str(error), 300, placeholder=" ...")
            problems.append(f"{what} failed: {type(error).__name__}: {message}")
            return None

    for room in ROOMS:
        attempt(f"import {room}", importlib.import_module, room)
    devices = attempt("JAX's devices", find_devices) or ()
    x64 = attempt("JAX's configuration", lambda: importlib.import_module("jax").config.read("jax_enable_x64"))
    return Diagnosis(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        versions={"derex": __version__} | core,
        host=find_host(),
        devices=devices,
        x64=x64,
        compilation=attempt("compilation", time_compilation),
        extras=extras,
        advice=tuple(gpu_advice(nvidia_gpus(), devices, extras, os.environ)),
        problems=tuple(problems),
    )


# --- packages


def core_versions() -> dict[str, str | None]:
    """Returns the version of each package that derex requires; None if missing."""
    names = [name for name, _ in requirements("derex", None)] or ["jax", "numpy"]
    names.insert(names.index("jax") + 1, "jaxlib")
    return {name: installed(name) for name in names}


def find_extras() -> tuple[Extra, ...]:
    """Returns each extra of derex, with the packages that it adds to the core."""
    try:
        names = importlib.metadata.metadata("derex").get_all("Provides-Extra") or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    core = {"derex", *core_versions()}
    extras = []
    for name in names:
        packages = {package: installed(package) for package in sorted(extra_packages("derex", name) - core)}
        extras.append(Extra(name, packages, install_command(name)))
    return tuple(extras)


def extra_packages(package: str, extra: str) -> set[str]:
    """Returns the names of the requirements of `package[extra]`, resolving nested extras of derex and jax.

    Other packages are not resolved: a CUDA plugin's libraries may also come from the system.
    """
    found = set()
    for name, nested in requirements(package, extra):
        found.add(name)
        if name in ("derex", "jax"):
            found |= set().union(*(extra_packages(name, inner) for inner in nested))
    return found


def requirements(package: str, extra: str | None) -> list[tuple[str, tuple[str, ...]]]:
    """Returns (name, extras) of each requirement of `package[extra]`; of `package` itself if None."""
    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        marker = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", line)
        name = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", line)
        if name is not None and (marker and marker[1]) == extra:
            nested = tuple(part.strip() for part in (name[2] or "").split(",") if part.strip())
            found.append((name[1], nested))
    return found


def installed(package: str) -> str | None:
    """Returns the version of a package without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# --- machine


def find_host() -> Host:
    """Returns the cores, memory and free disk space available to this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Host(cores, find_memory(Path("/sys/fs/cgroup/memory.max")), shutil.disk_usage(Path.cwd()).free)


def find_memory(limit: Path) -> int | None:
    """Returns the physical memory in bytes, or the container's limit if that is smaller."""
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        return min(physical, int(limit.read_text()))
    except (OSError, ValueError):  # no such file, or "max"
        return physical


def find_devices() -> tuple[Device, ...]:
    """Returns JAX's local devices, with their memory if the backend reports it."""
    import jax

    devices = []
    for device in jax.local_devices():
        try:
            memory = device.memory_stats() or {}
        except (NotImplementedError, RuntimeError):
            memory = {}
        sizes = memory.get("bytes_limit"), memory.get("bytes_in_use")
        devices.append(Device(str(device), device.platform, device.device_kind, *sizes))
    return tuple(devices)


def time_compilation() -> Compilation:
    """Compiles and checks a small matrix product, then times a larger one."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    product = jax.jit(jnp.matmul)
    start = time.perf_counter()
    small = np.asarray(product(*[jnp.array([[1.0, 2.0], [3.0, 4.0]])] * 2))
    first = time.perf_counter() - start
    if small.tolist() != [[7.0, 10.0], [15.0, 22.0]]:
        raise ArithmeticError(f"[[1, 2], [3, 4]] squared came out as {small.tolist()}")
    size = 1024 if jax.default_backend() == "cpu" else 4096
    ones = jnp.ones((size, size), jnp.float32)
    corner = float(product(ones, ones)[-1, -1])
    if corner != size:
        raise ArithmeticError(f"a row of {size} ones times a column of ones came out as {corner}")
    seconds = min(timeit.repeat(lambda: product(ones, ones).block_until_ready(), number=1, repeat=3))
    return Compilation(first, size, seconds, 2 * size**3 / seconds / 1e9)


def nvidia_gpus() -> list[tuple[str, str]]:
    """Returns (name, driver version) of each GPU listed by nvidia-smi; empty without a driver."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):  # no such program, or no driver
        return []
    rows = [line.rsplit(",", 1) for line in answer.stdout.splitlines() if "," in line]
    return [(name.strip(), driver.strip()) for name, driver in rows]


def gpu_advice(
    gpus: list[tuple[str, str]],
    devices: tuple[Device, ...],
    extras: tuple[Extra, ...],
    environment: Mapping[str, str],
) -> list[str]:
    """Returns advice if the driver lists a GPU that JAX does not use."""
    if not gpus or any(device.platform in ("gpu", "cuda") for device in devices):
        return []
    name, driver = gpus[0]
    there = f"The driver ({driver}) lists a GPU, {name}, that JAX does not use."
    for variable, hides in HIDES_GPUS.items():
        value = environment.get(variable)
        if value is not None and hides(value):
            return [f"{there} {variable}={value!r} hides it: unset {variable}"]
    cuda = [extra.name for extra in extras if extra.name.startswith("cuda") and not extra.missing]
    if cuda:
        return [
            f"{there} derex[{cuda[0]}] is installed; this shows why it fails: "
            "JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()'"
        ]
    major = driver.split(".")[0]
    wheel = "cuda12" if major.isdigit() and int(major) < CUDA13_DRIVER else "cuda13"
    return [f"{there} {install_command(wheel)}"]


# --- printing


def show(diagnosis: Diagnosis) -> None:
    """Prints the diagnosis as tables."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    versions = [(name, version or "missing") for name, version in diagnosis.versions.items()]
    sections = {
        "Versions": [("python", f"{diagnosis.python} ({diagnosis.system})"), *versions],
        "Machine": machine_rows(diagnosis),
        "Optional": [extra_row(extra) for extra in diagnosis.extras],
        "Advice": [("-", line) for line in diagnosis.advice],
        "Broken": [("-", line) for line in diagnosis.problems],
    }
    console = Console()
    for title, rows in sections.items():
        if not rows:
            continue
        table = Table.grid(padding=(0, 2))
        table.add_column(min_width=12)
        for left, right in rows:
            table.add_row(Text(f"  {left}"), Text(right))
        console.print(Text(title, style="bold"))
        console.print(table)
        console.print()
    if not diagnosis.problems:
        console.print(Text("The core works.", style="bold green"))


def machine_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Returns rows for host, devices, precision and compilation."""
    host, speed = diagnosis.host, diagnosis.compilation
    memory, disk = size_text(host.ram_bytes), size_text(host.disk_free_bytes)
    rows = [("host", f"{host.cores or 'unknown'} cores, {memory} memory, {disk} disk free here")]
    for device in diagnosis.devices:
        used, limit = size_text(device.bytes_in_use), size_text(device.bytes_limit)
        known = "" if device.bytes_limit is None else f", {used} of {limit} in use"
        kind = device.kind if device.kind == device.platform else f"{device.kind} ({device.platform})"
        rows.append((device.name, kind + known))
    rows.append(("64-bit", {True: "on", False: "off (JAX's default)", None: "unknown"}[diagnosis.x64]))
    if speed is None:
        return [*rows, ("compilation", "fails")]
    large = f"{speed.size}×{speed.size} product {1e3 * speed.seconds:.1f} ms, {speed.gflops:,.0f} GFLOP/s"
    return [*rows, ("compilation", f"works (first {speed.first_seconds:.2f} s); {large}")]


def extra_row(extra: Extra) -> tuple[str, str]:
    """Returns the extra's versions if it is complete, otherwise its install command."""
    if not extra.missing:
        return extra.name, ", ".join(f"{name} {version}" for name, version in extra.packages.items())
    partly = len(extra.missing) < len(extra.packages)
    return extra.name, extra.install + (f"  (missing: {', '.join(extra.missing)})" if partly else "")


def size_text(count: int | None) -> str:
    """Formats a number of bytes as GiB or MiB."""
    if count is None:
        return "unknown"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
