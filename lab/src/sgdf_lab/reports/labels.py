"""Settings and names in words that are safe to show: of runs, and of contestants.

A cell of a grid is labelled with what it differs in from the others: "sgdf, lr 0.5", and so are
single runs. A contestant of a tuned sweep, whose settings are searched, has a short name:
"FilterAdamW, K, derived".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sgdf_lab.registry.optimizers import PREFIX, title_of
from sgdf_lab.runs.config import Config, frozen, three_quarters
from sgdf_lab.support.errors import NO_BREAK as NO_BREAK
from sgdf_lab.support.errors import visible as visible
from sgdf_lab.support.numbers import is_number

GAIN = ("gain_scale", "gain_power")
ROUNDED = 0.01  # of a share: the gain of a trial has four digits


# --- runs ----------------------------------------------------------------------------------------


def setting_words(value: Any) -> str:
    """A setting's value as a person would write it."""
    if is_number(value):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(setting_words, value)) + ")"
    return str(value)


def settings_words(config: Config, rivals: Sequence[Config]) -> list[str]:
    """The optimizer's settings that are not the same in all of the rivals."""
    names = dict.fromkeys(name for rival in rivals for name in rival.settings)
    words = []
    for name in names:
        values = {frozen(rival.settings.get(name, "default")) for rival in rivals}
        if len(values) > 1:
            words.append(f"{name} {setting_words(config.settings.get(name, 'default'))}")
    return words


def run_names(configs: Sequence[Config]) -> list[str]:
    """The optimizer of each run, and as many of its settings as distinguish the runs."""
    words = [[c.optimizer] for c in configs]
    for more in (
        lambda c: settings_words(c, [rival for rival in configs if rival.optimizer == c.optimizer]),
        lambda c: [f"seed {c.seed}"],
        lambda c: [c.task, c.model],
        lambda c: [c.name.rpartition("-")[2]],
    ):
        if len({tuple(label) for label in words}) == len(words):
            break
        words = [[*label, *more(c)] for label, c in zip(words, configs, strict=True)]
    return [", ".join(label) for label in words]


def protocol_words(config: Config, *, on_cpu: bool = False) -> dict[str, str]:
    """Everything but the optimizer's settings; an empty string for what is switched off.

    A CPU computes in float32, whatever precision is asked for.
    """
    options = {
        f"option {name}": f"{name} {setting_words(config.options[name])}"
        for name in sorted(config.options)
    }
    return {
        "epochs": config.length,
        "batch": f"batch {config.batch}",
        "schedule": schedule_words(config),
        "warmup": warmup_words(config),
        "clip": f"clipped to {config.clip:g}" if config.clip else "",
        "accumulate": f"in {config.accumulate} pieces" if config.accumulate > 1 else "",
        "precision": "fp32" if on_cpu else config.precision,
        "data": f"{config.data} data",
        "validation": f"{config.validation} held out" if config.validation else "",
        "norms": "with norms" if config.norms else "",
        **options,
    }


def schedule_words(config: Config) -> str:
    """The schedule; the lab's default milestone reads the same for runs of any length."""
    if config.schedule == "wsd":
        return f"wsd lr, decay {config.decay:g}"
    if config.schedule != "step":
        return f"{config.schedule} lr"
    if not config.milestones:
        return "constant lr"
    by_rule = config.milestones == (three_quarters(config.epochs),)
    at = f"3/4 of the {config.unit}s"
    if not by_rule:
        at = " and ".join(str(config.at(m)) for m in config.milestones)
    return f"lr × {config.drop:g} after {at}"


def warmup_words(config: Config) -> str:
    """
    >>> from sgdf_lab.runs.config import make
    >>> [warmup_words(make("digits", overrides={"warmup": length})) for length in (0, 0.05, 200)]
    ['', 'warm-up over 0.05 of the run', 'warm-up over 200 steps']
    """
    if not config.warmup:
        return ""
    unit = "steps" if isinstance(config.warmup, int) else "of the run"
    return f"warm-up over {config.warmup:g} {unit}"


# --- contestants ---------------------------------------------------------------------------------


def contestant_names(turns: Sequence[Sequence[Config]]) -> list[str]:
    """A name for each contestant, given the settings of its trials; no two are the same."""
    fixed = [fixed_settings(configs) for configs in turns]
    names = []
    for configs, own in zip(turns, fixed, strict=True):
        rivals = [
            other
            for their, other in zip(turns, fixed, strict=True)
            if their[0].optimizer == configs[0].optimizer
        ]
        parts = [title_of(configs[0].optimizer), gain_words(configs)]
        parts += [
            value if isinstance(value, str) else f"{name} {setting_words(value)}"
            for name, value in own.items()
            if name.removeprefix(PREFIX) not in GAIN
            and len({frozen(other.get(name)) for other in rivals}) > 1
        ]
        names.append(visible(", ".join(filter(None, parts))))
    total, seen = Counter(names), Counter[str]()
    for i, name in enumerate(names):
        if total[name] > 1:  # they differ in something else than settings
            seen[name] += 1
            names[i] = f"{name} ({seen[name]})"
    return names


def fixed_settings(configs: Sequence[Config]) -> dict[str, Any]:
    """What all trials have in common."""
    first = configs[0].settings
    return {
        name: value
        for name, value in first.items()
        if all(frozen(config.settings.get(name)) == frozen(value) for config in configs)
    }


def gain_words(configs: Sequence[Config]) -> str:
    """The form of the filter: "2K", "K", "√K", "(1-β₁)/2"; "" without one or if it is searched.

    >>> from sgdf_lab.runs.config import make
    >>> makes = [{"gain_scale": 1.0}, {}, {"gain_scale": 0.05, "gain_power": 0.0}]
    >>> [gain_words([make("digits", overrides=gain)]) for gain in makes]
    ['K', '', '(1-β₁)/2']
    """
    gains = [gain_of(config.settings) for config in configs]
    if None in gains:
        return ""
    scales, powers = zip(*(gain for gain in gains if gain is not None), strict=True)
    if len({*powers}) > 1:
        return ""
    if powers[0] == 0:
        betas = [config.settings.get("betas", (0.9,)) for config in configs]
        shares = [scale / (1 - beta[0]) for scale, beta in zip(scales, betas, strict=True)]
        if max(shares) - min(shares) <= ROUNDED * max(shares):
            return share_words(round(shares[0], 2))
    if len({*scales}) > 1:
        return ""
    if powers[0] == 0:
        return f"gain {scales[0]:g}"
    letter = {1: "K", 0.5: "√K"}.get(powers[0], f"K^{powers[0]:g}")
    return letter if scales[0] == 1 else f"{scales[0]:g}{letter}"


def gain_of(settings: Mapping[str, Any]) -> tuple[float, float] | None:
    """Scale and power; None if the scale is not among the settings."""
    for prefix in ("", PREFIX):
        if f"{prefix}gain_scale" in settings:
            return settings[f"{prefix}gain_scale"], settings.get(f"{prefix}gain_power", 1.0)
    return None


def share_words(share: float) -> str:
    """
    >>> share_words(0.5), share_words(1.0), share_words(0.3)
    ('(1-β₁)/2', '1-β₁', '0.3(1-β₁)')
    """
    return {0.5: "(1-β₁)/2", 1.0: "1-β₁"}.get(share, f"{share:g}(1-β₁)")
