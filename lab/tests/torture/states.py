"""State of the optimizers: formats and layouts, other devices, conversions, foreign and damaged
checkpoints.
"""

import contextlib
import copy
import functools
import importlib
import inspect
import io
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sgdf import SGDF, FilterAdam, FilterAdamW, FilterMuon, FilterSOAP, Momentum
from sgdf.optim import read_moment
from sgdf.optim.closed_gain import CHECKED
from torture.bench import Bench
from torture.gradients import ONE_AT_A_TIME
from torture.outcome import CLOSE, DIFFERENT, SAME, SENTENCE, TRACEBACK, Bug, Case, Outcome

KIND = "states"
LR = 1e-3
STEPS = 6
LONGEST = 10.0  # steps after a load or a conversion, in lr
REFUSALS = (ValueError, RuntimeError)  # that name what they refuse

ADAMS: dict[str, Any] = {
    **{f"FilterAdam {kind}": functools.partial(FilterAdam, second_moment=kind)
       for kind in ("separate", "derived", "fluctuation")},
    "FilterAdamW": FilterAdamW,
    "FilterAdamW constant": functools.partial(FilterAdamW, gain_scale=0.05, gain_power=0),
    "FilterAdam constant derived": functools.partial(
        FilterAdam, second_moment="derived", gain_scale=0.05, gain_power=0),
}  # fmt: skip
OURS: dict[str, Any] = {
    "SGDF": SGDF,
    "SGDF constant": functools.partial(SGDF, gain_scale=0.1, gain_power=0),
    "Momentum": Momentum,
    **ADAMS,
}
MATRIX: dict[str, Any] = {
    "FilterMuon": FilterMuon,
    "FilterMuon eigen": functools.partial(FilterMuon, eigenbasis=True),
    "FilterSOAP": FilterSOAP,
}
TORCHS: dict[str, Any] = {
    "torch SGD": functools.partial(torch.optim.SGD, momentum=0.9),
    "torch Adam": torch.optim.Adam,
    "torch AdamW amsgrad": functools.partial(torch.optim.AdamW, amsgrad=True),
}
FORMATS = {"float32": None, "bf16": torch.bfloat16, "int8": torch.int8}
PATHS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x.clone(),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda x: torch.stack([x, x], dim=-1)[..., 0],
}
SHAPE = (32, 16, 3, 3)  # 4,608 elements in rows of 144: large enough for 8 bits
FOREIGN = ("torch.optim", "pytorch_optimizer", "timm.optim")
#: Classes whose state means what it means in torch's SGD, Adam and AdamW, or in ours.
KNOWN = {("torch.optim", name) for name in ("SGD", "Adam", "AdamW", "Muon")}


def cases(round_: int) -> Iterator[Case]:
    def case(row: str, name: str, run: Callable[[random.Random], Outcome]) -> Case:
        name = f"{row}: {name} {round_}"

        def seeded(bench: Bench | None, folder: Path | None) -> Outcome:
            with ONE_AT_A_TIME, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return run(random.Random(name))

        return Case(KIND, row, name, seeded)

    for kind, make in (OURS | MATRIX).items():
        for form, dtype in FORMATS.items():
            if dtype == torch.int8 and kind == "Momentum":
                continue
            for path in ("loop",) if kind in MATRIX else PATHS:
                if path == "foreach" and dtype == torch.int8:
                    continue
                flags = {} if kind in MATRIX else PATHS[path]
                built = functools.partial(make, lr=LR, state_dtype=dtype, **flags)
                yield case(
                    "a default device",
                    f"{kind} {form} {path}",
                    functools.partial(default_device, built),
                )
                for layout in LAYOUTS:
                    yield case("layouts and formats", f"{kind} {form} {path} {layout}",
                               functools.partial(layouts, built, layout))  # fmt: skip
    for source, old in (OURS | MATRIX | TORCHS).items():
        for target, new in (ADAMS | MATRIX).items():
            live = source in ADAMS and target in ADAMS
            yield case("conversions", f"{source} to {target}",
                       functools.partial(converted, old, new, live))  # fmt: skip
    for kind, make in (OURS | MATRIX).items():
        for form, dtype in FORMATS.items():
            if dtype != torch.int8 or kind != "Momentum":
                built = functools.partial(make, lr=LR, state_dtype=dtype)
                yield case("tensors without values", f"{kind} {form}",
                           functools.partial(without_values, built))  # fmt: skip
            if dtype is not None and not (dtype == torch.int8 and kind == "Momentum"):
                built = functools.partial(make, lr=LR, weight_decay=0.0)
                for what, gradient in UNEVEN.items():
                    yield case("length of steps", f"{kind} {form} {what}",
                               functools.partial(lengths, built, dtype, gradient))  # fmt: skip
    for module in FOREIGN:
        with contextlib.suppress(ModuleNotFoundError):
            for name, theirs in classes_of(module):
                yield case("foreign checkpoints", f"{module} {name}",
                           functools.partial(foreign, module, name, theirs))  # fmt: skip
    for kind, make in (OURS | MATRIX).items():
        built = functools.partial(make, lr=LR)
        for what, damage in DAMAGES.items():
            run = functools.partial(damaged, built, damage)
            yield case("damaged states", f"{kind} {what}", run)


# --- steps ----------------------------------------------------------------------------------------


def gradients(chance: random.Random, shape: tuple[int, ...], steps: int) -> list[Tensor]:
    """Noise about a mean, of any scale, at times sparse."""
    generator = torch.Generator().manual_seed(chance.getrandbits(40))
    mean = chance.choice([0.0, 0.1, 1.0, 3.0])
    scale = 10.0 ** chance.uniform(-6, 4)
    kept = chance.choice([1.0, 1.0, 0.1])
    found = []
    for _ in range(steps):
        g = scale * (mean + torch.randn(shape, generator=generator))
        found.append(g * (torch.rand(shape, generator=generator) < kept))
    return found


def advance(optimizer: Any, grads: list[Tensor]) -> float:
    """Step along the gradients; the longest move of an element, in lr."""
    (p,) = optimizer.param_groups[0]["params"]
    longest = 0.0
    for g in grads:
        before = p.detach().clone()
        p.grad = torch.empty_like(p).copy_(g)
        optimizer.step()
        move = (p.detach() - before).abs().max().item() / LR
        if not move < float("inf"):
            raise Bug(DIFFERENT, "a parameter is not finite")
        longest = max(longest, move)
    return longest


def parameter(values: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values)


def through_a_file(state_dict: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state_dict, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def without_strides(state_dict: dict[str, Any]) -> dict[str, Any]:
    """As tools keep it that store only shapes and values."""
    result = copy.deepcopy(state_dict)
    for state in result["state"].values():
        for key, value in state.items():
            if isinstance(value, Tensor):
                state[key] = value.contiguous()
    return result


# --- layouts, formats, devices --------------------------------------------------------------------


def layouts(make: Any, layout: str, chance: random.Random) -> Outcome:
    """State resumes to the bit, and means the same for each element in any other layout."""
    values = torch.randn(SHAPE, generator=torch.Generator().manual_seed(chance.getrandbits(40)))
    grads = gradients(chance, SHAPE, 2 * STEPS)
    optimizer = make([parameter(LAYOUTS[layout](values))])
    advance(optimizer, grads[:STEPS])
    saved = through_a_file(optimizer.state_dict())
    (p,) = optimizer.param_groups[0]["params"]
    moments = moments_of(optimizer)
    for other in LAYOUTS:
        again = make([parameter(LAYOUTS[other](p.detach()))])
        again.load_state_dict(without_strides(saved) if other != layout else saved)
        for key, moment in moments_of(again).items():
            check_moment(key, moments[key], moment, other == layout)
        if other == layout:
            resumed = again
    advance(optimizer, grads[STEPS:]), advance(resumed, grads[STEPS:])
    (q,) = resumed.param_groups[0]["params"]
    if not torch.equal(p, q):
        raise Bug(DIFFERENT, "a resumed optimizer takes other steps")
    return Outcome(SAME, 2 * STEPS)


def moments_of(optimizer: Any) -> dict[str, Tensor]:
    """Each moment as a number per element, whatever its format."""
    (p,) = optimizer.param_groups[0]["params"]
    state = optimizer.state[p]
    found = {}
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == p.shape:
            found[key] = read_moment(state, key)
    return found


def check_moment(key: str, before: Tensor, after: Tensor, same: bool) -> None:
    """8-bit state may be coded anew in another order of its blocks."""
    if same or before.dtype != torch.float32:
        near = torch.equal(before, after)
    else:
        apart = (before - after).abs()
        near = bool((apart <= 0.15 * before.abs() + 0.01 * before.abs().max()).all())
    if not near:
        raise Bug(DIFFERENT, f"{key} belongs to other elements after loading")


def default_device(make: Any, chance: random.Random) -> Outcome:
    """What is the default for new tensors changes nothing."""
    grads, found = gradients(chance, SHAPE, STEPS), []
    for device in ("cpu", "meta"):
        p = parameter(torch.ones(SHAPE))
        optimizer = make([p])
        with torch.device(device):
            for g in grads:
                p.grad = g.clone()
                optimizer.step()
        found.append([p.detach(), *moments_of(optimizer).values()])
    if not all(map(torch.equal, *found)):
        raise Bug(DIFFERENT, "a default device changes the steps")
    return Outcome(SAME, STEPS)


def without_values(make: Any, chance: random.Random) -> Outcome:
    """Steps of meta tensors, as trainers that plan memory take them, up to the first check."""
    with torch.device("meta"):
        p = parameter(torch.empty(SHAPE))
        optimizer = make([p])
        for _ in range(CHECKED[0] + 1):
            p.grad = torch.empty(SHAPE)
            optimizer.step()
    return Outcome(SAME, CHECKED[0] + 1)


Gradient = Callable[[torch.Generator], Tensor]
ROWS, COLUMNS = 64, 256


def low_rank(generator: torch.Generator) -> Tensor:
    sides = torch.Generator().manual_seed(0)
    g = torch.randn(ROWS, 1, generator=sides) @ torch.randn(1, COLUMNS, generator=sides)
    g = g * (1 + 0.1 * torch.randn(1, generator=generator))
    return g + 1e-3 * torch.randn(ROWS, COLUMNS, generator=generator)


def noise(generator: torch.Generator) -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=generator)


#: What state in few bits rounds away: the small in a block, or in the directions of a basis.
UNEVEN: dict[str, Gradient] = {
    "wide block": lambda generator: torch.logspace(-9, 0, COLUMNS) * noise(generator),
    "low rank": low_rank,
    "sparse": lambda generator: (
        noise(generator) * (torch.rand(ROWS, COLUMNS, generator=generator) < 0.01)
    ),
}


def lengths(make: Any, dtype: torch.dtype, gradient: Gradient, chance: random.Random) -> Outcome:
    """State in few bits makes no step much longer than in float32."""
    generator = torch.Generator().manual_seed(chance.getrandbits(40))
    scale = 10.0 ** chance.uniform(-3, 3)
    grads = [scale * gradient(generator) for _ in range(60)]
    moved, usual = (
        advance(make([parameter(torch.zeros(ROWS, COLUMNS))], state_dtype=kept), grads)
        for kept in (dtype, None)
    )
    check_length(moved, usual)
    return Outcome(CLOSE, len(grads))


# --- conversions and foreign checkpoints ----------------------------------------------------------


def check_length(moved: float, fresh: float) -> None:
    """A new optimizer of the same form on the same gradients may take long steps, too."""
    if moved > 1.001 * max(LONGEST, 3 * fresh):  # a clipped step of 10 lr is rounded
        raise Bug(DIFFERENT, f"a step of {moved:.3g} lr; from scratch at most {fresh:.3g}")


def converted(old: Any, new: Any, live: bool, chance: random.Random) -> Outcome:
    """From one form to another by a checkpoint, and between forms of a class while running."""
    steps = chance.choice([1, 2, 5, 30])
    grads = gradients(chance, (10, 20), steps + 20)
    options = {"state_dtype": chance.choice([None, None, torch.bfloat16])}
    source, target, fresh = (
        make([parameter(torch.zeros(10, 20))], lr=LR, **more)
        for make, more in ((old, {}), (new, options), (new, options))
    )
    advance(source, grads[:steps])
    try:
        target.load_state_dict(copy.deepcopy(source.state_dict()))
    except ValueError as error:
        return Outcome(SENTENCE, detail=str(error))
    usual = advance(fresh, grads)
    check_length(advance(target, grads[steps:]), usual)
    if live:
        names = ("second_moment", "gain_power", "gain_scale")
        source.param_groups[0].update({n: target.param_groups[0][n] for n in names})
        check_length(advance(source, grads[steps:]), usual)
    return Outcome(CLOSE, steps + 20)


def classes_of(module: str) -> Iterator[tuple[str, Any]]:
    found = importlib.import_module(module)
    for name in sorted(dir(found)):
        kind = getattr(found, name)
        if (
            inspect.isclass(kind)
            and issubclass(kind, torch.optim.Optimizer)
            and kind is not torch.optim.Optimizer
            and (kind.__module__.startswith("torch.")) == (module == "torch.optim")
        ):
            yield name, kind


def foreign(module: str, name: str, theirs: Any, chance: random.Random) -> Outcome:
    """State that means something else is refused, and the optimizer stays as it was."""
    source = trained_foreign(theirs, chance)
    if source is None:
        return Outcome(SAME, 0, "it cannot be built or stepped plainly")
    word = SENTENCE
    for make in (SGDF, FilterAdam, FilterAdamW, Momentum, FilterMuon, FilterSOAP):
        optimizer = make([parameter(torch.zeros(16, 16))], lr=LR)
        before = copy.deepcopy(optimizer.state_dict())
        try:
            optimizer.load_state_dict(source)
        except ValueError as error:
            if optimizer.state_dict() != before:
                raise Bug(DIFFERENT, f"{make.__name__} was changed: {error}") from None
            continue
        except Exception as error:
            raise Bug(TRACEBACK, f"{make.__name__}: {error!r}") from None
        if (module, name) not in KNOWN and source["state"]:
            raise Bug(DIFFERENT, f"{make.__name__} took the state of {module}.{name}")
        optimizer.param_groups[0]["lr"] = LR
        advance(optimizer, gradients(chance, (16, 16), 3))
        word = CLOSE
    return Outcome(word)


def trained_foreign(theirs: Any, chance: random.Random) -> Any:
    """A state dict after two steps; None for what needs more than parameters and gradients."""
    p = parameter(torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))
    try:
        source = theirs([p], **({"lr": 0.01} if takes_lr(theirs) else {}))
        for g in gradients(chance, (16, 16), 2):
            p.grad = g
            source.step()
        return copy.deepcopy(source.state_dict())
    except Exception:
        return None


def takes_lr(theirs: Any) -> bool:
    return "lr" in inspect.signature(theirs).parameters


# --- damaged states -------------------------------------------------------------------------------

Damage = Callable[[dict[str, Any], random.Random], None]


def moment(change: Callable[[Tensor], Any]) -> Damage:
    """Change one moment of the first parameter."""

    def damage(saved: dict[str, Any], chance: random.Random) -> None:
        state = saved["state"][0]
        key = chance.choice([k for k, v in state.items() if isinstance(v, Tensor) and v.ndim])
        state[key] = change(state[key])

    return damage


def entry(name: str, value: Any) -> Damage:
    def damage(saved: dict[str, Any], _: random.Random) -> None:
        saved["state"][0][name] = value

    return damage


def setting(name: str, value: Any) -> Damage:
    def damage(saved: dict[str, Any], _: random.Random) -> None:
        saved["param_groups"][0][name] = value

    return damage


def without_a_moment(saved: dict[str, Any], chance: random.Random) -> None:
    state = saved["state"][0]
    del state[chance.choice([k for k in state if k != "step"])]


DAMAGES: dict[str, Damage] = {
    "a moment that is None": moment(lambda m: None),
    "a moment that is text": moment(lambda m: "text"),
    "a moment that is a list": moment(lambda m: [1.0]),
    "a moment of another shape": moment(lambda m: m.new_zeros(3)),
    "a moment of integers": moment(lambda m: m.to(torch.int64)),
    "a sparse moment": moment(lambda m: m.float().to_sparse()),
    "a moment without values": moment(lambda m: m.to("meta")),
    "a moment less": without_a_moment,
    "no step": lambda saved, _: saved["state"][0].pop("step", None),
    "a step of 0": entry("step", torch.tensor(0.0)),
    "a step of NaN": entry("step", torch.tensor(float("nan"))),
    "a negative step": entry("step", torch.tensor(-3.0)),
    "an endless step": entry("step", torch.tensor(float("inf"))),
    "a step that is text": entry("step", "three"),
    "a step of two numbers": entry("step", torch.ones(2)),
    "a step that is an integer": entry("step", torch.tensor(3)),
    "an entry more": entry("surprise", torch.ones(3)),
    "a rate of text": setting("lr", "fast"),
    "a rate of None": setting("lr", None),
    "a negative rate": setting("lr", -1.0),
    "betas of one number": setting("betas", (0.9,)),
    "betas of 1": setting("betas", (1.0, 1.0)),
    "betas of text": setting("betas", "ab"),
    "a state dtype of text": setting("state_dtype", "int3"),
    "a gain of None": setting("gain_scale", None),
    "a gain of NaN": setting("gain_scale", float("nan")),
    "a second moment that there is not": setting("second_moment", "third"),
    "no groups": lambda saved, _: saved.update(param_groups=[]),
    "a group of text": lambda saved, _: saved.update(param_groups=["group"]),
    "a state of text": lambda saved, _: saved["state"].update({0: "state"}),
    "a state for a parameter that there is not": lambda saved, _: saved["state"].update(
        {7: dict(saved["state"][0])}),
}  # fmt: skip


def damaged(make: Any, damage: Damage, chance: random.Random) -> Outcome:
    """Refused, with the optimizer as it was; or loaded, and the next steps are as short as ever."""
    shape = (24, 8)
    grads = gradients(chance, shape, 12)
    source, fresh, optimizer = (make([parameter(torch.zeros(shape))]) for _ in range(3))
    advance(source, grads[:6])
    usual = advance(fresh, grads)
    advance(optimizer, grads[:2])
    saved = copy.deepcopy(source.state_dict())
    damage(saved, chance)
    before = copy.deepcopy(optimizer.state_dict())
    try:
        optimizer.load_state_dict(saved)
        check_length(advance(optimizer, grads[6:]), usual)
    except REFUSALS as error:
        if not same(optimizer.state_dict(), before):
            raise Bug(DIFFERENT, f"the optimizer was changed: {error}") from None
        return Outcome(SENTENCE, detail=str(error))
    except Bug:
        raise
    except Exception as error:
        raise Bug(TRACEBACK, repr(error)) from None
    return Outcome(CLOSE)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
