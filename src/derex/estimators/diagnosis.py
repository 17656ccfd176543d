"""What a finished fit can be trusted with: `FitReport`, and the warning of a fit whose norm is no count.

The bonus ‖f(x)‖ stands for a visit count where its ranking of the training rows is that of their rarity. Rarity is
known where rows recur, 1 / (how often the row occurs), and estimated elsewhere by the distance to the tenth nearest
neighbour among the training rows, each coordinate in units of its deviation.

Shapes: n rows, k features.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import spearmanr

from derex.estimators.data import find_distinct_rows, sample_indices

NEAR_ONE = 0.99
LEARNT_ERRORS = 3.0  # σ_i has to exceed this many of its sampling errors
CONFIRMED = 0.5  # and so has this share of it, on rows that the functions were not computed from
COUNT_CORRELATION = 0.8  # of the bonus with rarity, from which on the norm is called a count
MEAN_VISITS = 4.0  # rows recur if their distinct values occur this often on average
NEIGHBOURS = 10
NEIGHBOUR_ROWS, NEIGHBOUR_QUERIES = 20_000, 2_000
ID_ROWS = 1 << 22  # counted, at most
NEIGHBOUR_DIMENSIONS = 16  # of larger inputs, their leading principal components
FLAT = 0.3  # relative deviation of visits beyond chance, below which there is little to rank

Rarity = Literal["visits", "neighbours"]


class FitWarning(UserWarning):
    """A fit succeeded, but its singular functions or its bonus are less than they seem."""


@dataclass(frozen=True, eq=False)
class FitReport:
    """How far a fit can be trusted; `print(model.report_)` shows it as a table.

    Attributes:
        singular_values: (k,), σ of the learnt functions over all training rows.
        errors: (k,), their standard errors.
        confirmed: (k,), correlations of functions that one half of the rows gave on the other half.
        learnt: (k,), whether σ_i stands out from its error and is confirmed; others weigh nothing in the bonus.
        energy: captured energy of the same functions on the other half; Σ σ_i² if they hold there.
        training_energy: Σ σ_i² over the training rows.
        effective_features: how many functions the bonus averages: (Σ w_i²)² / Σ w_i⁴ with its weights w.
        rarity: what the bonus was compared with: "visits", "neighbours", or None where neither is defined.
        count_correlation: Spearman's correlation of the bonus with rarity; NaN where it could not be measured.
        messages: the warnings of the fit, each with what to do.
    """

    singular_values: Float[np.ndarray, " k"]
    errors: Float[np.ndarray, " k"]
    confirmed: Float[np.ndarray, " k"]
    learnt: Bool[np.ndarray, " k"]
    energy: float
    training_energy: float
    effective_features: float
    rarity: Rarity | None
    count_correlation: float
    messages: tuple[str, ...]

    @property
    def is_count(self) -> bool:
        """Whether the norm can be read as a count here."""
        return bool(self.count_correlation >= COUNT_CORRELATION)

    def __str__(self) -> str:
        lines = ["   i      σ   error  on the other half"]
        for i, row in enumerate(zip(self.singular_values, self.errors, self.confirmed, strict=True)):
            note = "" if self.learnt[i] else "   not learnt"
            lines.append(f"{i:4d}  {row[0]:.3f}   {row[1]:.3f}          {row[2]:.3f}{note}")
        lines.append(
            f"captured energy: {self.energy:.3f} on the other half of the rows, {self.training_energy:.3f} on all"
        )
        lines.append(f"effective number of features in the bonus: {self.effective_features:.1f}")
        if self.rarity is not None:
            verdict = "a count" if self.is_count else "no count"
            lines.append(
                f"rank correlation of the bonus with rarity ({self.rarity}): {self.count_correlation:.2f}: "
                f"the norm is {verdict} here"
            )
        return "\n".join([*lines, *(f"warning: {message}" for message in self.messages)])


class RarityMeasure(NamedTuple):
    """Rarity of some training rows."""

    kind: Rarity
    indices: np.ndarray  # of the rows
    rarity: Float[np.ndarray, " m"]
    flat: bool  # visits differ hardly more than by chance


def find_learnt(
    singular_values: Float[np.ndarray, " k"],
    errors: Float[np.ndarray, " k"],
    confirmed: Float[np.ndarray, " k"],
) -> Bool[np.ndarray, " k"]:
    """Which σ_i stand out from their errors and hold on other rows."""
    return (singular_values > LEARNT_ERRORS * errors) & (confirmed > CONFIRMED * singular_values)


def count_effective_features(weights: Float[np.ndarray, " k"]) -> float:
    """(Σ w_i²)² / Σ w_i⁴ of the weights of functions of unit variance: the participation ratio of their shares."""
    squares = np.square(weights)
    total = float(np.sum(squares**2))
    return float(np.sum(squares) ** 2 / total) if total > 0.0 else 0.0


def measure_rarity(rows: np.ndarray, rng: np.random.Generator) -> RarityMeasure | None:
    """Rarity of training rows, or None where it is not defined: rows are not numbers, or are all the same.

    Args:
        rows: ids, vectors or images of the training rows, (n, …).
        rng: draws the rows that are compared.
    """
    if rows.dtype.kind not in "biuf" or len(rows) < 10 * NEIGHBOURS:
        return None
    ids = rows.ndim == 1
    used = sample_indices(rng, len(rows), ID_ROWS if ids else NEIGHBOUR_ROWS)
    rows = np.asarray(rows[used])
    distinct = find_distinct_rows(rows, most=len(rows) if ids else int(len(rows) / MEAN_VISITS))
    if distinct is not None:
        visits = np.bincount(distinct.inverse)
        if len(visits) < 3:
            return None
        beyond_chance = max(visits.var() - visits.mean(), 0.0) / visits.mean() ** 2
        return RarityMeasure("visits", used[distinct.first], 1.0 / visits, beyond_chance < FLAT**2)
    from sklearn.decomposition import PCA
    from sklearn.neighbors import NearestNeighbors

    values = rows.reshape(len(rows), -1).astype(np.float32)
    deviation = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(deviation > 0.0, deviation, 1.0)
    if values.shape[1] > NEIGHBOUR_DIMENSIONS:
        values = PCA(NEIGHBOUR_DIMENSIONS, random_state=0).fit_transform(values)
    queries = np.sort(rng.choice(len(values), min(NEIGHBOUR_QUERIES, len(values)), replace=False))
    neighbours = NearestNeighbors(n_neighbors=NEIGHBOURS + 1).fit(values)
    distance = neighbours.kneighbors(values[queries])[0][:, -1]
    return RarityMeasure("neighbours", used[queries], distance, False)


def correlate_with_rarity(bonus: Float[np.ndarray, " m"], rarity: Float[np.ndarray, " m"]) -> float:
    """Spearman's correlation; NaN when either is constant."""
    if np.ptp(bonus) == 0.0 or np.ptp(rarity) == 0.0:
        return float("nan")
    return float(spearmanr(bonus, rarity)[0])


def make_report(
    singular_values: Float[np.ndarray, " k"],
    errors: Float[np.ndarray, " k"],
    confirmed: Float[np.ndarray, " k"],
    learnt: Bool[np.ndarray, " k"],
    energy: float,
    weights: Float[np.ndarray, " k"],
    rarity: RarityMeasure | None,
    bonus: Float[np.ndarray, " m"] | None,
    steps: Any,
) -> FitReport:
    """The report of a fit; `bonus` is that of the rows of `rarity`."""
    correlation = float("nan")
    if rarity is not None and bonus is not None:
        correlation = correlate_with_rarity(bonus, rarity.rarity)
    report = FitReport(
        singular_values,
        errors,
        confirmed,
        learnt,
        energy,
        float(np.sum(singular_values**2)),
        count_effective_features(weights),
        None if rarity is None else rarity.kind,
        correlation,
        (),
    )
    return replace(report, messages=explain(report, steps, rarity))


def describe_report(report: FitReport) -> dict[str, Any]:
    """The report as plain JSON."""
    return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in asdict(report).items()}


def read_report(stored: Any) -> FitReport | None:
    """The report that `describe_report` described; None where there is none."""
    if stored is None:
        return None
    arrays = {"singular_values": float, "errors": float, "confirmed": float, "learnt": bool}
    values: dict[str, Any] = {
        name: np.asarray(v, arrays[name]) if name in arrays else v for name, v in stored.items()
    }
    return FitReport(**values | {"messages": tuple(map(str, stored["messages"]))})


def explain(report: FitReport, steps: Any, measured: RarityMeasure | None) -> tuple[str, ...]:
    """The warnings of a fit: what was found, what it means, and what to do."""
    messages = []
    sigma, k = report.singular_values, len(report.singular_values)
    if sigma.min() >= NEAR_ONE:
        messages.append(
            f"all {k} singular values are near 1 (the smallest is {sigma.min():.3f}): these transitions are almost "
            "deterministic or slow, and k functions cannot tell which structure matters most. Raise k, or decompose "
            "pairs that are further apart (x_t, x_t+τ)."
        )
    if not report.learnt.all():
        missing = np.flatnonzero(~report.learnt)
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        messages.append(
            f"{len(missing)} of {k} functions are not learnt ({shown}): their singular values do not stand out from "
            f"chance, and they weigh nothing in the bonus. Raise steps (now {steps}), give more rows, or lower k to "
            f"{int(report.learnt.sum()) or 1}."
        )
    if report.energy < 0.9 * report.training_energy:
        messages.append(
            f"functions of one half of the rows capture an energy of {report.energy:.2f} on the other half, and "
            f"{report.training_energy:.2f} on their own: they fit the noise of these rows. Give more rows, or lower k."
        )
    if measured is not None and not measured.flat and not report.is_count:
        messages.append(_explain_no_count(report, measured))
    return tuple(messages)


def _explain_no_count(report: FitReport, measured: RarityMeasure) -> str:
    correlation = f"its rank correlation with rarity ({measured.kind}) is {report.count_correlation:.2f}"
    found = f"the norm is no visit count here: {correlation}"
    if not report.learnt.all():
        return f"{found}, because not all functions are learnt. Raise steps, or lower k."
    if report.singular_values.min() >= NEAR_ONE:
        return f"{found}, because k is too small for these transitions. Raise k."
    return (
        f"{found}. The norm of few functions follows their structure more than the density. Raise k (the effective "
        f"number of features is {report.effective_features:.1f}), or use a count or a density model for exploration."
    )
