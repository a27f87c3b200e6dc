"""Mean squared errors of the filter and of other estimators about a known signal.

    python benchmarks/tracking.py

Prints the two tables of docs/filter.md and writes results/tracking.json.
"""

import platform
from pathlib import Path

import numpy as np

from sgdf.filter import Filter, FilterSettings
from sgdf_lab.support import provenance
from sgdf_lab.support.files import write_json
from sgdf_lab.support.pages import markdown_table

GAINS = {"EMA": (0.0, 1.0), "K": (1.0, 1.0), "2K": (2.0, 1.0), "K^0.5": (1.0, 0.5)}
ESTIMATORS = {
    name: FilterSettings((0.9, 0.999), 1e-8, scale, power) for name, (scale, power) in GAINS.items()
}


def gaussian(rng, size):
    return rng.normal(size=size)


def heavy_tailed(rng, size):
    """Student's t with 2.5 degrees of freedom, scaled to variance 1."""
    return rng.standard_t(2.5, size=size) / np.sqrt(5)


def walking_signal(q, noise=gaussian, coordinates=4000, steps=400, burn_in=100, seed=0):
    """Errors of g and every estimator about a signal that walks by q per step, noise variance 1."""
    rng = np.random.default_rng(seed)
    signal = np.zeros(coordinates)
    estimators = {name: Filter(settings) for name, settings in ESTIMATORS.items()}
    squares = {name: [] for name in ("g", *ESTIMATORS)}
    for t in range(steps):
        signal = signal + q * rng.normal(size=coordinates)
        g = signal + noise(rng, coordinates)
        estimates = {"g": g} | {name: estimate(g) for name, estimate in estimators.items()}
        if t >= burn_in:
            for name, estimate in estimates.items():
                squares[name].append(np.mean((estimate - signal) ** 2))
    return {name: float(np.mean(values)) for name, values in squares.items()}


def noisy_quadratic(lr, coordinates=4000, steps=300, seed=0):
    """The same while each estimator descends theta^2 / 2 from 10, noise variance 1."""
    errors = {"g": 1.0}  # the variance of the noise, whatever the path
    for name, settings in ESTIMATORS.items():
        rng = np.random.default_rng(seed)
        estimator, theta, squares = Filter(settings), np.full(coordinates, 10.0), []
        for _ in range(steps):
            estimate = estimator(theta + rng.normal(size=coordinates))
            squares.append(np.mean((estimate - theta) ** 2))
            theta = theta - lr * estimate
        errors[name] = float(np.mean(squares))
    return errors


def main():
    size = {"coordinates": 20_000}
    tables = {
        "walking signal": {f"q = {q}": walking_signal(q, **size) for q in (0, 0.03, 0.1, 0.3, 1)}
        | {"q = 0.1, heavy tails": walking_signal(0.1, heavy_tailed, **size)},
        "noisy quadratic": {
            f"lr = {lr}": noisy_quadratic(lr, **size) for lr in (0.005, 0.05, 0.2, 0.5, 1, 2)
        },
    }
    for title, rows in tables.items():
        lines = [[row, *(f"{e:.3g}" for e in errors.values())] for row, errors in rows.items()]
        print(f"\n{markdown_table([title, 'g', *ESTIMATORS], lines)}")
    record = {
        "command": "python benchmarks/tracking.py",
        "commit": provenance.commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "numpy": np.__version__,
        "mean squared error": tables,
    }
    target = Path(__file__).parent.parent / "results" / "tracking.json"
    write_json(target, record, indent=2)
    print(f"\nwrote {target}")


if __name__ == "__main__":
    main()
