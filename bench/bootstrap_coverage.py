"""Coverage of `kvtrace compare`'s 95% intervals, on simulated pairs of latencies.

    python bench/bootstrap_coverage.py [TRIALS]

A pair shares a lognormal part; each run adds an exponential one, and the second run is 1 slower. `sessions`: the turns
of a session share half of their difference's variance, and sessions are drawn.
"""

from __future__ import annotations

import sys

import numpy as np

from kvtrace.queries.statistics import interval

SIZES = (10, 20, 40, 100, 400)


def pairs(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    shared = random.lognormal(size=(count, 1))
    base, other = (shared + random.exponential(size=(count, 1)) for _ in range(2))
    return base, other + 1


def ratios(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Hits over lengths: 40% in the one run, 50% in the other."""
    lengths = random.lognormal(6, 1, size=count)
    hits = [np.clip(random.normal(share, 0.15, size=count), 0, 1) * lengths for share in (0.4, 0.5)]
    return np.column_stack([hits[0], lengths]), np.column_stack([hits[1], lengths])


def covered(name: str, count: int, trials: int) -> tuple[float, float]:
    """Share of intervals that hold the truth, and their mean width."""
    random = np.random.default_rng(count)
    true = 0.1 if name == "ratio" else 1.0
    hits, widths = 0, []
    for _ in range(trials):
        clusters = None
        if name == "sessions":
            clusters = np.repeat(np.arange(count), 4)
            base = random.lognormal(size=(4 * count, 1))
            other = base + 1 + random.normal(size=count)[clusters][:, None] + random.normal(size=(4 * count, 1))
        else:
            base, other = ratios(random, count) if name == "ratio" else pairs(random, count)
        found = interval("mean" if name == "sessions" else name, base, other, clusters)
        if found is None:
            return float("nan"), float("nan")
        hits += found.low <= true <= found.high
        widths.append(found.high - found.low)
    return hits / trials, float(np.mean(widths))


def main() -> None:
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    print(f"{trials} trials; share of 95% intervals that hold the truth (mean width)")
    print("pairs or sessions", *SIZES, sep="\t")
    for name in ("mean", "p50", "p95", "ratio", "sessions"):
        cells = [covered(name, count, trials) for count in SIZES]
        print(name, *(f"{share:.3f} ({width:.2f})" if share == share else "-" for share, width in cells), sep="\t")


if __name__ == "__main__":
    main()
