"""Cost of computing a token in this run, by ordinary least squares over its steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FEWEST_STEPS = 8
"""Fits over fewer steps are not made: three coefficients would explain anything."""

OUTLIER_DEVIATIONS = 6.0
_MAD_TO_SIGMA = 1.4826

_STEPS = """
SELECT s.engine_id, s.scheduled_tokens = s.decode_tokens AS decode_only, s.scheduled_tokens::DOUBLE AS tokens,
    r.contexts, t.own_ns::DOUBLE AS own_ns
FROM step s JOIN step_time t USING (engine_id, step) JOIN (
    SELECT engine_id, step, sum(scheduled_tokens::DOUBLE * computed_tokens
        + scheduled_tokens::DOUBLE * (scheduled_tokens::DOUBLE + 1) / 2) AS contexts
    FROM step_request GROUP BY engine_id, step
) r USING (engine_id, step)
WHERE t.own_ns IS NOT NULL
ORDER BY s.engine_id, s.step
"""
"""Steps with the wall time that was their own."""


class Fit(NamedTuple):
    """Coefficients in ns, and how well they explain the steps. Coefficients are None where no fit is possible."""

    steps: int
    left_out_steps: int
    intercept_ns: float | None = None
    ns_per_token: float | None = None
    ns_per_token_context: float | None = None
    r2: float | None = None
    rmse_ns: float | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None

    @property
    def usable(self) -> bool:
        """Return whether prices can be taken from it."""
        return self.ns_per_token is not None and self.ns_per_token > 0


def insert_cost_model(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill table `cost_model`: up to three fits an engine, of which one is marked as used."""
    columns: dict[str, Any] = connection.execute(_STEPS).fetchnumpy()
    engines = columns["engine_id"]
    decode_only = np.asarray(columns["decode_only"], bool)
    tokens, contexts, own = (np.asarray(columns[name], float) for name in ("tokens", "contexts", "own_ns"))
    for engine in np.unique(engines).tolist():
        mine = engines == engine
        chosen = {"with_prefill": mine & ~decode_only, "all": mine, "decode_only": mine & decode_only}
        fits = {name: fit(tokens[rows], contexts[rows], own[rows]) for name, rows in chosen.items() if rows.any()}
        used = next((name for name in ("with_prefill", "all") if name in fits and fits[name].usable), None)
        for name, found in fits.items():
            row = [engine, name, *found, name == used]
            connection.execute(f"INSERT INTO cost_model VALUES ({', '.join('?' * len(row))})", row)


def fit(tokens: Floats, contexts: Floats, interval: Floats) -> Fit:
    """Fit wall time to tokens and token contexts, once over all steps and again without the outliers of that.

    A coefficient that comes out negative means nothing as a price: the context's is then dropped, and the fit repeated
    with tokens alone.
    """
    kept = _kept(tokens, contexts, interval)
    left_out = int((~kept).sum())
    tokens, contexts, interval = tokens[kept], contexts[kept], interval[kept]
    steps = len(tokens)
    found = _coefficients(tokens, contexts, interval)
    if found is None:
        return Fit(steps, left_out)
    residual = interval - _predict(found, tokens, contexts)
    spread = float(((interval - interval.mean()) ** 2).sum())
    unexplained = float((residual**2).sum())
    return Fit(
        steps,
        left_out,
        *found,
        1 - unexplained / spread if spread else None,
        (unexplained / steps) ** 0.5,
        int(tokens.min()),
        int(tokens.max()),
    )


def _kept(tokens: Floats, contexts: Floats, interval: Floats) -> npt.NDArray[np.bool_]:
    found = _coefficients(tokens, contexts, interval)
    if found is None:
        return np.ones(len(tokens), bool)
    residual = interval - _predict(found, tokens, contexts)
    distance = np.abs(residual - np.median(residual))
    bound = OUTLIER_DEVIATIONS * _MAD_TO_SIGMA * float(np.median(distance))
    kept = distance <= bound if bound else np.ones(len(tokens), bool)
    return np.asarray(kept)


def _coefficients(tokens: Floats, contexts: Floats, interval: Floats) -> tuple[float, float, float] | None:
    """Intercept, per token and per token context; None if the steps do not differ, or are too few."""
    if len(tokens) < FEWEST_STEPS or tokens.min() == tokens.max():
        return None
    both = _least_squares([tokens, contexts], interval)
    if both is not None and both[1] > 0 and both[2] >= 0:
        return both[0], both[1], both[2]
    alone = _least_squares([tokens], interval)
    return None if alone is None else (alone[0], alone[1], 0.0)


def _least_squares(features: list[Floats], interval: Floats) -> list[float] | None:
    scales = [1.0, *(float(np.abs(feature).max()) or 1.0 for feature in features)]
    columns = [np.ones(len(interval)), *features]
    scaled = np.column_stack([column / scale for column, scale in zip(columns, scales, strict=True)])
    solution, _, rank, _ = np.linalg.lstsq(scaled, interval, rcond=1e-9)
    if rank < len(columns):
        return None
    return [float(value) / scale for value, scale in zip(solution, scales, strict=True)]


def _predict(found: tuple[float, float, float], tokens: Floats, contexts: Floats) -> Floats:
    return found[0] + found[1] * tokens + found[2] * contexts
