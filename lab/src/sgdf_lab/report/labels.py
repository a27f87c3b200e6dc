"""Settings and names in words that are safe to show: the labels of runs."""

from collections.abc import Sequence
from typing import Any

from sgdf_lab.runs.config import Config, frozen, three_quarters
from sgdf_lab.support.errors import NO_BREAK as NO_BREAK
from sgdf_lab.support.errors import visible as visible
from sgdf_lab.support.numbers import is_number


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
        at = " and ".join(str(m * config.interval) for m in config.milestones)
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
