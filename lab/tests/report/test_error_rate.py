"""How often comparisons of equals get a verdict: at most 1 %, whatever the choice and the seeds.

Several names of one optimizer are tuned: the same settings, with the same true quality, but every
run with noise of its own, beside the noise of a seed that all share. Spreads are those of the
recorded comparisons, in units of the noise of a run: settings up to three times as far apart, runs
that diverge, noise that differs by setting.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from sgdf_lab import tasks
from sgdf_lab.reports import choice
from sgdf_lab.reports.choice import Choice
from sgdf_lab.reports.numbers import SIGNIFICANCE, Outcome, PairedDifference, compare, with_verdicts

METRIC = tasks.find("text").metric  # a loss
COMPARISONS = 400
NAMES = 4
ROOT = Path(__file__).parents[3]
World = Callable[[np.random.Generator], list[Outcome]]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "DRAWS", 300)


def tuned(
    rng: np.random.Generator,
    quality: np.ndarray,
    *,
    finalists: int,
    seeds: int,
    lost: float = 0.0,
    lead: float = 0.0,
) -> list[Outcome]:
    """A tuned sweep of several names; the first one is better by `lead`.

    The quality of the settings is the same for all names, or has a row for each.
    """
    again = 3
    shared = [rng.standard_normal(n) for n in (1, again, seeds)]
    qualities = np.broadcast_to(quality, (NAMES, quality.shape[-1]))
    scale = np.exp(0.3 * rng.standard_normal(quality.shape[-1]))
    outcomes = []
    for name in range(NAMES):
        own = qualities[name] - lead * (name == 0)
        trials = own + scale * rng.standard_normal(len(own)) + shared[0]
        trials[rng.random(len(own)) < lost] = np.inf
        order = [int(i) for i in trials.argsort() if np.isfinite(trials[i])]
        finals = {
            i: own[i] + scale[i] * rng.standard_normal(again) + shared[1] for i in order[:finalists]
        }
        best = min(finals, key=lambda i: finals[i].mean()) if finals else order[0]
        ends = own[best] + scale[best] * rng.standard_normal(seeds) + shared[2]
        ended = {i: float(ends[i]) for i in range(seeds) if rng.random() >= lost}
        outcomes.append(
            Outcome(
                ended,
                lost=set(range(seeds)) - ended.keys(),
                choice=Choice(
                    [[float(trials[i])] for i in order],
                    order.index(best),
                    {order.index(i): [*map(float, values)] for i, values in finals.items()},
                    [*ended.values()],
                ),
            )
        )
    return outcomes


def grid(
    rng: np.random.Generator,
    quality: np.ndarray,
    *,
    seeds: int,
    lost: float = 0.0,
    names: int = NAMES,
) -> list[Outcome]:
    """A grid: every setting with every seed, the best chosen by validation on the same runs."""
    shared = rng.standard_normal(seeds)
    outcomes = []
    for _ in range(names):
        validation = quality[:, None] + rng.standard_normal((len(quality), seeds)) + shared
        test = validation + rng.standard_normal(validation.shape)
        ended = rng.random(validation.shape) >= lost
        counts = ended.sum(axis=1)
        able = [i for i in range(len(quality)) if counts[i] == counts.max()]
        values = [validation[i][ended[i]] for i in able]
        best = int(np.argmin([own.mean() for own in values]))
        place = able[best]
        outcomes.append(
            Outcome(
                {i: float(test[place, i]) for i in range(seeds) if ended[place, i]},
                lost=[i for i in range(seeds) if not ended[place, i]],
                choice=Choice([[*map(float, own)] for own in values], best),
            )
        )
    return outcomes


def normal(rng: np.random.Generator, far: float, trials: int) -> np.ndarray:
    return far * rng.standard_normal(trials)


def recorded_profiles(sweeps: str = "*") -> Iterator[np.ndarray]:
    """The trials of every contestant in units of the noise of its seeds."""
    for file in sorted((ROOT / "results" / "evidence").glob(f"{sweeps}/summary.json")):
        summary = json.loads(file.read_text())
        sign = 1 if summary["metric"]["lower_is_better"] else -1
        for contestant in summary["contestants"]:
            if contestant["final"]["std"] is None:  # one seed, as where only a rate was wanted
                continue
            values = [t["value"] for t in contestant["trials"] if t["value"] is not None]
            yield sign * np.array(values) / contestant["final"]["std"]


PROFILES = [*recorded_profiles()]
CONTEST = [*recorded_profiles("contest-*")]


def recorded(rng: np.random.Generator) -> np.ndarray:
    return PROFILES[rng.integers(len(PROFILES))]


def comparisons(world: World, count: int = COMPARISONS) -> Iterator[list[PairedDifference]]:
    rng = np.random.default_rng(28)
    for _ in range(count):
        first, *others = world(rng)
        yield with_verdicts([compare(other, first) for other in others], METRIC)


def share_with_verdict(world: World) -> float:
    found = [any(d.verdict for d in compared) for compared in comparisons(world)]
    return sum(found) / len(found)


WORLDS: dict[str, World] = {
    "tuned, settings alike": lambda rng: tuned(rng, normal(rng, 0, 8), finalists=0, seeds=8),
    "tuned": lambda rng: tuned(rng, normal(rng, 1, 16), finalists=0, seeds=16),
    "tuned, settings far apart": lambda rng: tuned(rng, normal(rng, 3, 8), finalists=0, seeds=8),
    "finalists": lambda rng: tuned(rng, normal(rng, 1, 16), finalists=4, seeds=16),
    "finalists, far apart": lambda rng: tuned(rng, normal(rng, 3, 8), finalists=3, seeds=4),
    "as recorded": lambda rng: tuned(rng, recorded(rng), finalists=0, seeds=16),
    "as recorded, finalists": lambda rng: tuned(rng, recorded(rng), finalists=3, seeds=8),
    "diverging": lambda rng: tuned(rng, normal(rng, 1, 16), finalists=0, seeds=8, lost=0.1),
    "half diverging": lambda rng: tuned(rng, normal(rng, 1, 16), finalists=3, seeds=8, lost=0.4),
    "grid, settings alike": lambda rng: grid(rng, normal(rng, 0, 6), seeds=5),
    "grid": lambda rng: grid(rng, normal(rng, 1, 6), seeds=8),
    "grid of eleven": lambda rng: grid(rng, normal(rng, 0.3, 3), seeds=3, names=11),
    "grid, diverging": lambda rng: grid(rng, normal(rng, 1, 6), seeds=5, lost=0.1),
}


@pytest.mark.parametrize("world", WORLDS)
def test_equals_get_a_verdict_in_one_of_a_hundred_comparisons_at_most(world: str) -> None:
    assert share_with_verdict(WORLDS[world]) <= SIGNIFICANCE


def drawn_anew(rng: np.random.Generator) -> np.ndarray:
    """For each name other settings, drawn from one contestant's of the map's contest."""
    quality = CONTEST[rng.integers(len(CONTEST))]
    return rng.choice(quality, (NAMES, len(quality)))


def test_the_luck_of_which_settings_were_tried_is_not_in_the_p_value() -> None:
    """What docs/evidence-protocol.md says: about a quarter of such comparisons have a verdict."""
    world = partial(tuned, finalists=3, seeds=8)
    assert 0.15 < share_with_verdict(lambda rng: world(rng, drawn_anew(rng))) < 0.35


Noise = Callable[[np.random.Generator, int], np.ndarray]
NOISE: dict[str, Noise] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "heavy tails": lambda rng, n: rng.standard_t(3, n),
    "skewed": lambda rng, n: rng.exponential(size=n),
}


def by_seeds(rng: np.random.Generator, noise: Noise, *, seeds: int, common: float) -> list[Outcome]:
    """Settings that nobody chose; a part of the noise is that of the seed, which all share."""
    shared = common * noise(rng, seeds)
    return [Outcome(dict(enumerate((shared + noise(rng, seeds)).tolist()))) for _ in range(NAMES)]


@pytest.mark.parametrize("common", [0.0, 3.0], ids=["own noise", "common noise"])
@pytest.mark.parametrize("noise", NOISE)
def test_nor_do_equals_that_nobody_chose(noise: str, common: float) -> None:
    """With normal noise the rate is 1 % exactly, so what is found may be more by chance."""
    found = []
    for seeds in (4, 6, 8, 10, 16):
        world = partial(by_seeds, noise=NOISE[noise], seeds=seeds, common=common)
        found += [any(d.verdict for d in compared) for compared in comparisons(world)]
    assert sum(found) <= scipy.stats.binom.ppf(0.999, len(found), SIGNIFICANCE)


def test_the_seeds_only_would_find_a_difference_in_many() -> None:
    """What the luck of the choice is: the test of the two settings that were chosen."""
    world = WORLDS["tuned"]
    found = [min(d.p_holm or 1 for d in compared) < 0.01 for compared in comparisons(world)]
    assert sum(found) / len(found) > 0.2


def test_a_large_difference_is_found() -> None:
    world = partial(tuned, quality=np.linspace(0, 20, 8), finalists=3, seeds=8, lead=6.0)
    compared = [*comparisons(lambda rng: world(rng), 50)]
    assert np.mean([d.verdict == "behind" for found in compared for d in found]) > 0.8


def test_survivors_are_never_ahead() -> None:
    """Who loses its bad seeds looks better by the others."""
    rng = np.random.default_rng(0)
    reference = Outcome({seed: 10 + 0.1 * rng.standard_normal() for seed in range(10)})
    for left in (3, 9):
        own = Outcome({seed: 8 + 0.1 * rng.standard_normal() for seed in range(left)},
                      lost=range(left, 10))  # fmt: skip
        (found,) = with_verdicts([compare(own, reference)], METRIC)
        assert (found.p_verdict < 0.01, found.verdict) == (True, "")
        (found,) = with_verdicts([compare(reference, own)], METRIC)
        assert found.verdict == ""
        worse = Outcome({seed: value + 4 for seed, value in own.values.items()}, lost=own.lost)
        (found,) = with_verdicts([compare(worse, reference)], METRIC)
        assert found.verdict == "behind"


def test_incomplete_comparisons_have_no_verdict() -> None:
    values = {seed: 8 + 0.01 * seed**1.5 for seed in range(3)}
    own = Outcome(values, missing=range(3, 10))
    reference = Outcome(dict.fromkeys(range(10), 10.0))
    unplanned = Outcome(values)  # a folder of runs without their sweep-*.json
    for one in (own, unplanned):
        for pair in ((one, reference), (reference, one)):
            (found,) = with_verdicts([compare(*pair)], METRIC)
            assert (found.p_verdict < 0.01, found.verdict) == (True, "")
            assert found.missing == tuple(range(3, 10))


def test_both_sides_of_a_comparison_have_the_same_p_value() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        one, other, *_ = tuned(rng, normal(rng, 1, 8), finalists=3, seeds=8)
        assert compare(one, other).p_choice == pytest.approx(compare(other, one).p_choice)
        assert compare(one, other).p_choice > 0.99 * compare(one, other).p


def test_without_a_choice_there_is_no_luck() -> None:
    own, reference = Outcome({0: 1.0, 1: 2.0, 2: 3.5}), Outcome({0: 2.0, 1: 2.5, 2: 4.0})
    found = compare(own, reference)
    assert found.p_choice == found.p
    only = Choice([[1.0]], 0, seeds=[1.0, 2.0])
    again = compare(Outcome(own.values, choice=only), reference)
    assert again.p_choice == pytest.approx(found.p)
