"""Options of a training run, `TrainConfig`: plain data that imports no JAX, checked against its type hints.

Without the check `streams = 8.0`, from an edited config.json or a caller, fails far from its cause, or not at all.
"""

from __future__ import annotations

import math
import numbers
import types
import typing
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass, replace
from typing import Any

from derex._text import PathOption, convert_path
from derex.agents.config import AgentConfig

_NUMBERS = {
    int: numbers.Integral,
    float: numbers.Real,
}  # a whole number is a float too, and numpy has its own
_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    tuple: "a list",
    type(None): "none",
}
LINES = 100  # of metrics in a run, about, unless `log_every` is given
LARGEST_SEED = 2**31
MOST_STEPS = 10**15  # thirty years at a million a second
MOST_OTHERS = 2**24
LONGEST_TIMEOUT = 1_000_000  # seconds, as in derex.envs.host


def check_types(options: Any, prefix: str = "") -> None:
    """Refuses a dataclass, and nested ones, with a value of another type than its field's."""
    for part in fields(options):
        value = getattr(options, part.name)
        check_type(type(options), part.name, value, prefix)
        if is_dataclass(value):
            check_types(value, f"{prefix}{part.name}.")


def check_type(owner: type, name: str, value: Any, prefix: str = "") -> None:
    """Refuses a value that is not of the type of the field `name` of the dataclass `owner`."""
    try:
        expected = typing.get_type_hints(owner).get(name, Any)
    except (NameError, TypeError, AttributeError):  # of a user's class, with names for type checkers only
        return
    if not fits(value, expected):
        raise ValueError(f"{prefix}{name}: expected {_words(expected)}, got {value!r}.")


def fits(value: Any, expected: Any) -> bool:
    """Whether a value is of a type; types that are not understood accept anything."""
    origin, inside = typing.get_origin(expected), typing.get_args(expected)
    if origin is typing.Annotated:
        return fits(value, inside[0])
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in inside)
    if origin is typing.Literal:
        return value in inside
    if origin is tuple and inside[1:] == (...,):
        return isinstance(value, tuple) and all(fits(part, inside[0]) for part in value)
    if expected in _NUMBERS:
        return isinstance(value, _NUMBERS[expected]) and not isinstance(value, bool)
    if is_dataclass(expected):
        return is_dataclass(value)  # which one is for others to say
    return expected is Any or not isinstance(expected, type) or isinstance(value, expected)


def _words(expected: Any) -> str:
    """A type as users know it."""
    origin, inside = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(one) for one in inside if not (one is int and float in inside))
    plain = origin or expected
    return _WORDS.get(plain, getattr(plain, "__name__", str(plain)))


@dataclass(frozen=True)
class TrainConfig:
    """Train an agent on an environment.

    One environment step is one step of one stream, the resets between episodes included. Every seed takes `steps` of
    them, rounded up to whole iterations of streams × agent.unroll.
    """

    env: str
    """name of the environment: rooms-chain-8, four-rooms, key-rooms-3, deep-sea-20, catch, ...; several: a,b,c"""
    out: PathOption
    """folder for metrics.jsonl, config.json, checkpoints and the map of visits; a run in it is resumed"""
    method: str = "derex"
    """vmpo, laplacian, rnd, derex-rep, derex, or your own as package.module:Class"""
    form: str = ""
    """form of the method, if it has several: histories, states or belief; none: its first"""
    steps: int | float = 10_000_000
    """environment steps of each seed"""
    seeds: int = 1
    """number of seeds, trained in parallel"""
    seed: int = 0
    """the first seed"""
    streams: int = 256
    """parallel environments of each seed"""
    log_every: int | float | None = None
    """environment steps between lines of metrics, rounded to whole iterations; none: a hundredth of the run"""
    loggers: tuple[str, ...] = ()
    """loggers besides metrics.jsonl: tensorboard, wandb (each an extra)"""
    save_every: float = 300.0
    """seconds between checkpoints; the first is saved at the start, the last at the end or when stopped"""
    keep: int = 3
    """number of latest checkpoints that are kept, besides the best by success or return"""
    max_skipped: int = 5
    """updates with non-finite values are skipped; after this many in a row the run stops"""
    workers: int | None = None
    """processes that step host environments; none: one for each core"""
    worker_timeout: float = 60.0
    """seconds without an answer after which a worker is restarted"""
    worker_restarts: int = 10
    """how often a worker may be restarted in a row; every 50 steps of it give one back"""
    deterministic: bool = False
    """bit-equal results on a GPU too, by slower operations"""
    overwrite: bool = False
    """start again in a folder that holds an earlier run"""
    agent: AgentConfig = field(default_factory=AgentConfig)
    representation: Any = None
    """options of the form; none: its own defaults"""

    def __post_init__(self) -> None:
        convert_path(self, "out")
        check_types(self)
        for name in ("steps", "log_every"):
            value = getattr(self, name)
            good = value is None or (1 <= value <= MOST_STEPS and float(value).is_integer())
            self._check(name, good, f"a whole number of steps, at least 1 and at most {MOST_STEPS:g}")
        for name in ("seeds", "streams", "keep", "max_skipped"):
            good = 1 <= getattr(self, name) <= MOST_OTHERS
            self._check(name, good, f"at least 1 and at most {MOST_OTHERS}")
        good = self.workers is None or self.workers >= 1
        self._check("workers", good, "at least 1, or none for one on each core")
        good = 0 < self.worker_timeout <= LONGEST_TIMEOUT
        self._check("worker_timeout", good, f"seconds, more than 0 and at most {LONGEST_TIMEOUT}")
        self._check("worker_restarts", self.worker_restarts >= 0, "0 or more")
        self._check("save_every", 0.0 <= self.save_every < math.inf, "seconds, 0 or more")
        good = 0 <= self.seed <= LARGEST_SEED - self.seeds
        self._check("seed", good, f"0 or more, and all seeds below {LARGEST_SEED}")
        parts = self.agent.minibatches
        expected = f"a multiple of agent.minibatches = {parts}, since each holds whole streams"
        self._check("streams", self.streams % parts == 0, expected)

    def _check(self, name: str, good: bool, expected: str) -> None:
        if not good:
            raise ValueError(f"{name}: expected {expected}, got {getattr(self, name)}.")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(range(self.seed, self.seed + self.seeds))

    @property
    def iteration_steps(self) -> int:
        """Environment steps of an iteration, for each seed."""
        return self.streams * self.agent.unroll

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return math.ceil(self.steps / self.iteration_steps)

    @property
    def log_interval(self) -> int:
        """Iterations between lines of metrics."""
        if self.log_every is None:
            return max(round(self.iterations / LINES), 1)
        return max(round(self.log_every / self.iteration_steps), 1)

    def next_line(self, done: int) -> int:
        """Returns the iteration after which the next line is written.

        At multiples of the interval, wherever the run ends, so that a resumed run has the lines of one
        that was never stopped; and after the last iteration.
        """
        return min((done // self.log_interval + 1) * self.log_interval, self.iterations)

    def resolved(self) -> TrainConfig:
        """Returns the same options with all defaults filled in."""
        from derex.representations.methods import METHODS, find_representation

        default = find_representation(self.method, self.form)
        chosen = default if self.representation is None else self.representation
        forms = METHODS.get(self.method, {self.form: default})
        if self.form:
            forms = {self.form: forms[self.form]}
        named = [name for name, form in forms.items() if type(form) is type(chosen)]
        if not named:
            expected = " or ".join(type(form).__name__ for form in forms.values())
            raise ValueError(
                f"representation: expected {expected} for method {self.method!r}, got {type(chosen).__name__}."
            )
        least = getattr(chosen, "shortest_unroll", 1)
        if self.agent.unroll < least:
            raise ValueError(
                f"agent.unroll: expected at least {least}, since tests of the representation are as long and would not "
                f"fit; got {self.agent.unroll}. Or shorter tests: representation.tests."
            )
        given = {option.name: getattr(self, option.name) for option in fields(TrainConfig)}
        given |= {"form": named[0], "representation": chosen, "steps": int(self.steps)}
        return TrainConfig(**given | {"log_every": self.log_interval * self.iteration_steps})


def config_type(method: str, form: str, preset: str = "", env: str = "") -> type[TrainConfig]:
    """Makes a `TrainConfig` with the options of one form, for a command line that shows them.

    Its defaults are those of the preset for the environment, if one is named.
    """
    if preset:
        from derex.training.presets import find_preset

        found = find_preset(preset)
        agent, representation = found.agent(env, method, form), found.form(env, method, form)
    else:
        from derex.representations.methods import find_representation

        agent, representation = AgentConfig(), find_representation(method, form)
    defaults: dict[str, Any] = {"agent": agent, "representation": representation}
    return make_dataclass(
        "TrainConfig",
        [
            (name, type(value), field(default_factory=lambda value=value: value))
            for name, value in defaults.items()
        ],
        bases=(TrainConfig,),
        frozen=True,
        namespace={"__module__": __name__, "__doc__": TrainConfig.__doc__},
    )


def from_plain(default: Any, values: dict[str, Any], prefix: str = "") -> Any:
    """The dataclass `default` with the values that `to_plain(default, "text")` gave.

    A value of another type than its field's is refused, with `prefix` before the name: files can be edited.
    """
    given = {name: _like(getattr(default, name), value, f"{prefix}{name}.") for name, value in values.items()}
    for name, value in given.items():
        check_type(type(default), name, value, prefix)
    return replace(default, **given)


def _like(default: Any, value: Any, prefix: str) -> Any:
    if isinstance(value, dict) and hasattr(default, "__dataclass_fields__"):
        return from_plain(default, value, prefix)
    if isinstance(default, float) and value in ("inf", "-inf"):
        return float(value)
    return tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value
