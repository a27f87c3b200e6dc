"""Compare 8-bit codes for the moments by the error that they add to the estimated gradient.

    python benchmarks/codes.py

The filter runs on blocks of 256 coordinates whose noise differs in scale by e^(spread z), z normal,
and stores its moments in the code after each of 2500 steps. The error is the root mean square
difference of g^ from that with unrounded moments, in units of the coordinate's noise. Prints a
table and writes results/codes.json.
"""

import platform
from pathlib import Path

import numpy as np

from sgdf.filter import bias_corrections, wiener_filter
from sgdf_lab.support import provenance
from sgdf_lab.support.files import write_json
from sgdf_lab.support.pages import markdown_table

BLOCKS, SIZE, STEPS, LAST = 64, 256, 2500, 100
SPREADS = (0.5, 1.0, 1.5, 2.0, 3.0)


def exact(x, chance):
    return x


def power(n, levels, nearest=False):
    """(c / levels)^n of the block's largest, rounded stochastically without bias, or to nearest."""

    def code(x, chance):
        largest = np.abs(x).max(-1, keepdims=True) + 1e-38
        t = np.abs(x) / largest
        below = np.minimum(np.floor(levels * t ** (1 / n)), levels - 1)
        low, high = (below / levels) ** n, ((below + 1) / levels) ** n
        up = (0.5 if nearest else chance) < (t - low) / (high - low)
        return np.sign(x) * ((below + up) / levels) ** n * largest

    return code


def leading_bits(mantissa, floor):
    """The leading bits of t + floor, as in sgdf.kernels.quantized."""
    dropped = 23 - mantissa

    def code(x, chance):
        largest = np.abs(x).max(-1, keepdims=True) + 1e-38
        t = (np.abs(x) / largest + floor).astype(np.float32)
        bits = t.view(np.uint32).astype(np.int64) + (chance * 2**dropped).astype(np.int64)
        kept = ((bits >> dropped) << dropped).astype(np.uint32).view(np.float32)
        return np.sign(x) * np.maximum(kept.astype(np.float64) - floor, 0) * largest

    return code


#: name: (code of exp_avg, code of exp_var)
CODES = {
    "m linear": (power(1, 127), exact),
    "m square": (power(2, 127), exact),
    "m fourth power": (power(4, 127), exact),
    "m fourth power, nearest": (power(4, 127, nearest=True), exact),
    "m 4 + 3 bits": (leading_bits(3, 2.0**-15), exact),
    "m 3 + 4 bits": (leading_bits(4, 2.0**-7), exact),
    "s linear": (exact, power(1, 255)),
    "s fourth power": (exact, power(4, 255)),
    "s eighth power": (exact, power(8, 255)),
    "s eighth power, nearest": (exact, power(8, 255, nearest=True)),
    "s 5 + 3 bits": (exact, leading_bits(3, 2.0**-31)),
    "s 4 + 4 bits": (exact, leading_bits(4, 2.0**-15)),
    "both, powers 4 and 8": (power(4, 127), power(8, 255)),
    "both, 4 + 3 and 5 + 3 bits (in use)": (
        leading_bits(3, 2.0**-15),
        leading_bits(3, 2.0**-31),
    ),
}


def last_estimates(spread, store_m, store_s):
    """The last estimates g^, divided by the noise of their coordinates."""
    rng, chances = np.random.default_rng(0), np.random.default_rng(1)
    scale = np.exp(spread * rng.normal(size=(BLOCKS, SIZE)))
    mean = 0.3 * scale * rng.normal(size=(BLOCKS, SIZE))
    m, s, estimates = np.zeros((BLOCKS, SIZE)), np.zeros((BLOCKS, SIZE)), []
    for t in range(1, STEPS + 1):
        g = mean + scale * rng.standard_t(4, size=(BLOCKS, SIZE)) / np.sqrt(2)
        estimate, m, s = wiener_filter(
            g, m, s, bias_corrections(t, 0.9, 0.999), beta1=0.9, beta2=0.999, eps=1e-8
        )
        if t > STEPS - LAST:
            estimates.append(estimate / scale)
        m, s = store_m(m, chances.random(m.shape)), store_s(s, chances.random(s.shape))
    return np.array(estimates)


def main():
    table = {name: [] for name in CODES}
    for spread in SPREADS:
        reference = last_estimates(spread, exact, exact)
        for name, codes in CODES.items():
            difference = last_estimates(spread, *codes) - reference
            table[name].append(float(np.sqrt(np.mean(difference**2))))
    rows = [[name, *(f"{error:.3g}" for error in errors)] for name, errors in table.items()]
    print(markdown_table(["code", *(f"spread {spread}" for spread in SPREADS)], rows))
    record = {
        "command": "python benchmarks/codes.py",
        "commit": provenance.commit(),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "numpy": np.__version__,
        "spreads": SPREADS,
        "error of the estimate, in units of the noise": table,
    }
    target = Path(__file__).parent.parent / "results" / "codes.json"
    write_json(target, record, indent=2)
    print(f"\nwrote {target}")


if __name__ == "__main__":
    main()
