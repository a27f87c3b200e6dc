"""Every optimizer by name: its published update, its checkpoints, and a user's own."""

import inspect
import io
import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from sgdf import FilterAdam, Momentum, WienerFilter
from sgdf.optim.settings import STATE_DTYPES
from sgdf_lab import optimizers, plugins
from sgdf_lab.optimizers.adam_variants import EAdam
from sgdf_lab.optimizers.sophia import SophiaG
from sgdf_lab.registry.optimizers import (
    FILTER_KINDS,
    kinds_from,
    signature_kinds,
)
from sgdf_lab.registry.optimizers import STATE_DTYPES as DTYPE_NAMES
from sgdf_lab.support import palette
from sgdf_lab.support.errors import UserError

CPU = torch.device("cpu")
CUDA = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


# --- the published updates, in float64 -----------------------------------------------------------
# Each is given the weights p, the gradient g, the number t of the step from 1, a memory s that
# starts empty, and the settings; it returns the new weights. L2 weight decay is in g already.


def moments(s, g, b1, b2, start=0.0):
    s.m = b1 * getattr(s, "m", torch.full_like(g, start)) + (1 - b1) * g
    s.v = b2 * getattr(s, "v", torch.full_like(g, start)) + (1 - b2) * g**2
    return s.m, s.v


def msvag(p, g, t, s, *, lr, betas):
    b = betas[0]
    m, v = (x / (1 - b**t) for x in moments(s, g, b, b))
    if t == 1:
        return p - lr * m  # no variance from one gradient: gamma is 1
    rho = (1 - b) * (1 + b**t) / ((1 + b) * (1 - b**t))
    variance = (v - m**2) / (1 - rho)
    gamma = (m**2 / (m**2 + rho * variance)).nan_to_num(0.0)
    return p - lr * gamma * m


def adabound(p, g, t, s, *, lr, betas, final_lr, gamma, eps, first_lr):
    m, v = moments(s, g, *betas)
    final = final_lr * lr / first_lr
    low, high = final * (1 - 1 / (gamma * t + 1)), final * (1 + 1 / (gamma * t))
    size = lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
    return p - (size / (v.sqrt() + eps)).clamp(low, high) * m


def adabelief(p, g, t, s, *, lr, betas, eps):
    b1, b2 = betas
    s.m = b1 * getattr(s, "m", torch.zeros_like(g)) + (1 - b1) * g
    s.s = b2 * getattr(s, "s", torch.zeros_like(g)) + (1 - b2) * (g - s.m) ** 2 + eps
    return p - lr * s.m / (1 - b1**t) / ((s.s / (1 - b2**t)).sqrt() + eps)


def yogi(p, g, t, s, *, lr, betas, eps, initial_accumulator):
    """The publication has no bias correction, and starts m from 0."""
    start = torch.full_like(g, initial_accumulator)
    s.m = betas[0] * getattr(s, "m", start) + (1 - betas[0]) * g
    v = getattr(s, "v", start)
    s.v = v - (1 - betas[1]) * (v - g**2).sign() * g**2
    m, v = s.m / (1 - betas[0] ** t), s.v / (1 - betas[1] ** t)
    return p - lr * m / (v.sqrt() + eps)


def padam(p, g, t, s, *, lr, betas, partial, eps):
    """The publication takes the running maximum of v, and corrects no bias."""
    m, v = moments(s, g, *betas)
    size = lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
    return p - size * m / (v.sqrt() + eps) ** (2 * partial)


def fromage(p, g, t, s, *, lr):
    ratio = p.norm() / g.norm() if p.norm() > 0 and g.norm() > 0 else 1.0
    return (p - lr * ratio * g) / math.sqrt(1 + lr**2)


def lion(p, g, t, s, *, lr, betas, decoupled):
    m = getattr(s, "m", torch.zeros_like(g))
    update = (betas[0] * m + (1 - betas[0]) * g).sign()
    s.m = betas[1] * m + (1 - betas[1]) * g
    return p - lr * (update + decoupled * p)


def eadam(p, g, t, s, *, lr, betas, eps):
    b1, b2 = betas
    s.m = b1 * getattr(s, "m", torch.zeros_like(g)) + (1 - b1) * g
    s.v = b2 * getattr(s, "v", torch.zeros_like(g)) + (1 - b2) * g**2 + eps
    return p - lr * s.m / (1 - b1**t) / (s.v / (1 - b2**t)).sqrt()


USUAL = (0.9, 0.999)
PUBLISHED = {
    # name: the update, its settings, and those of the check that are not the optimizer's own
    "msvag": (msvag, {"lr": 0.1, "betas": USUAL}, {}),
    "adabound": (
        adabound,
        {"lr": 1e-3, "betas": USUAL, "final_lr": 0.1, "gamma": 0.05, "eps": 1e-8},
        {"first_lr": 1e-3},
    ),
    "adabelief": (adabelief, {"lr": 1e-3, "betas": USUAL, "eps": 1e-8}, {}),
    "yogi": (
        yogi,
        {"lr": 1e-2, "betas": USUAL, "eps": 1e-3, "initial_accumulator": 1e-6},
        {},
    ),
    "padam": (padam, {"lr": 0.1, "betas": USUAL, "partial": 0.125, "eps": 1e-8}, {}),
    "fromage": (fromage, {"lr": 1e-2}, {}),
    "lion": (lion, {"lr": 1e-2, "betas": (0.9, 0.99)}, {"decoupled": 0.1}),
    "eadam": (eadam, {"lr": 1e-3, "betas": USUAL, "eps": 1e-8}, {}),
}
L2 = {name: 0.05 for name in PUBLISHED if name not in ("fromage", "lion")}


def problem(steps):
    """Two tensors in float64 with random gradients; one coordinate's gradient is always 0."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    weights = [draw(4, 3), draw(3)]
    grads = [[draw(4, 3), draw(3)] for _ in range(steps)]
    for first, _ in grads:
        first[0, 0] = 0
    return weights, grads


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_update_is_the_published_one(name):
    statement, settings, more = PUBLISHED[name]
    steps = 10 if name == "eadam" else 5
    weights, grads = problem(steps)
    given = dict(settings)
    if name in L2:
        given["weight_decay"] = L2[name]
    if "decoupled" in more:
        given["weight_decay"] = more["decoupled"]
    params = [nn.Parameter(w.clone()) for w in weights]
    optimizer = optimizers.build_optimizer(name, params, given, device=CPU)
    memories = [SimpleNamespace() for _ in weights]
    for t, step_grads in enumerate(grads, 1):
        settings = {**settings, "lr": settings["lr"] * (0.1 if t == 4 else 1.0)}  # a schedule
        optimizer.param_groups[0]["lr"] = settings["lr"]
        for i, g in enumerate(step_grads):
            params[i].grad = g.clone()
            penalised = g + L2.get(name, 0.0) * weights[i]
            weights[i] = statement(weights[i], penalised, t, memories[i], **settings, **more)
        optimizer.step()
        for p, w in zip(params, weights, strict=True):
            # AdaBound's class adds 1e-15 to v; M-SVAG's first gamma is 1 up to rounding.
            torch.testing.assert_close(p.detach(), w, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["adabelief", "adabound", "yogi", "padam", "fromage", "lion"])
def test_defaults_are_the_published_ones(name):
    """What a user gets without settings is the published algorithm, with the published numbers."""
    _, settings, _ = PUBLISHED[name]
    (group,) = optimizers.build_optimizer(
        name, [nn.Parameter(torch.ones(2))], {}, device=CPU
    ).param_groups
    expected = {**settings, "gamma": 1e-3} if name == "adabound" else settings
    for key in expected.keys() - {"lr"}:
        assert group[key] == expected[key]
    assert group.get("weight_decay", 0.0) == 0.0


def test_sophia_follows_the_published_update():
    lr, (b1, b2), rho, decay, eps, batch = 0.01, (0.965, 0.99), 0.04, 0.1, 1e-12, 7
    weights, grads = problem(10)
    _, sampled = problem(20)
    params = [nn.Parameter(w.clone()) for w in weights]
    optimizer = SophiaG(params, lr)
    means = [torch.zeros_like(w) for w in weights]
    curvatures = [torch.zeros_like(w) for w in weights]
    clipped = []
    for t in range(10):
        if t in (2, 7):
            for i, g in enumerate(sampled[10 + t]):
                params[i].grad = g.clone()
                curvatures[i] = b2 * curvatures[i] + (1 - b2) * batch * g**2
            optimizer.update_hessian(batch)
        for i, g in enumerate(grads[t]):
            params[i].grad = g.clone()
            means[i] = b1 * means[i] + (1 - b1) * g
            ratio = means[i] / (rho * curvatures[i]).clamp(min=eps)
            clipped.append((ratio.abs() > 1).double().mean().item())
            weights[i] = weights[i] * (1 - lr * decay) - lr * ratio.clamp(-1, 1)
        optimizer.step()
        for p, w in zip(params, weights, strict=True):
            torch.testing.assert_close(p.detach(), w, rtol=1e-12, atol=1e-14)
    assert any(0 < share < 1 for share in clipped)  # the check saw both sides of the clip


def test_sophia_without_curvature_is_sign_descent():
    p = nn.Parameter(torch.tensor([1.0, 1.0, 1.0]))
    optimizer = SophiaG([p], lr=0.1, weight_decay=0.0)
    p.grad = torch.tensor([3.0, -1e-3, 0.0])
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([0.9, 1.1, 1.0]))
    assert optimizer.hessian_every == 10


@pytest.mark.parametrize("make", [EAdam, SophiaG])
def test_ours_return_the_loss_and_skip_what_has_no_gradient(make):
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    groups = [{"params": [used, unused]}, {"params": [nn.Parameter(torch.ones(1))]}]
    optimizer = make(groups, weight_decay=0.1)

    def closure():
        optimizer.zero_grad()
        loss = used.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert torch.equal(unused, torch.ones(2))
    assert not torch.equal(used, torch.ones(2))
    assert torch.equal(used.grad, torch.full((2,), 2.0))  # the gradient is the caller's


@pytest.mark.parametrize("make", [EAdam, SophiaG])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "Invalid learning rate: -1.0"),
        ({"betas": (0.9, 1.0)}, "Invalid beta parameter at index 1: 1.0"),
        ({"betas": (0.9,)}, "Invalid betas value"),
        ({"eps": -1.0}, "Invalid epsilon value: -1.0"),
        ({"weight_decay": -1.0}, "Invalid weight_decay value: -1.0"),
    ],
)
def test_ours_answer_bad_values_as_torch_does(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make([nn.Parameter(torch.ones(1))], **settings)


# --- every name ----------------------------------------------------------------------------------


def train(model, optimizer, steps, *, lr=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 6, generator=generator)
    y = x @ torch.randn(6, 3, generator=generator)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        for group in optimizer.param_groups if lr is not None else ():
            group["lr"] = lr
        optimizer.step()
        losses.append(loss.item())
    return losses


def linear():
    torch.manual_seed(0)
    return nn.Linear(6, 3)


SETTINGS = {
    # A little of everything that is kept between steps.
    "sgdf": {"weight_decay": 1e-3},
    "sgd": {"nesterov": True},
    "rmsprop": {"momentum": 0.9},
    "adam": {"amsgrad": True},
    "msvag": {"weight_decay": 1e-3},
    "lion": {"weight_decay": 0.1},
    "prodigy": {"lr": 1.0, "d0": 1e-2},
    "wiener-lion": {"weight_decay": 0.1, "filter_gain_scale": 1.0},
}
FILTERED = [f"wiener-{name}" for name in ("lion", "adamw", "muon", "soap", "schedule-free-adamw")]
EVERY = [*optimizers.OPTIMIZERS, *FILTERED]


@pytest.mark.parametrize("name", EVERY)
def test_every_optimizer_learns(name):
    model = linear()
    settings = {"lr": 0.01, **SETTINGS.get(name, {})}
    losses = train(
        model, optimizers.build_optimizer(name, model.parameters(), settings, device=CPU), 30
    )
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.98 * losses[0]


@pytest.mark.parametrize("name", EVERY)
def test_every_optimizer_resumes_from_its_checkpoint_bit_for_bit(name):
    settings = {"lr": 0.01, **SETTINGS.get(name, {})}

    def start():
        model = linear()
        return model, optimizers.build_optimizer(name, model.parameters(), settings, device=CPU)

    model, optimizer = start()
    train(model, optimizer, 3)
    train(model, optimizer, 2, lr=0.001)  # the schedule has moved when the checkpoint is written
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    train(model, optimizer, 4)

    other, resumed = start()
    checkpoint = torch.load(file, weights_only=True)
    other.load_state_dict(checkpoint["model"])
    resumed.load_state_dict(checkpoint["optimizer"])
    train(other, resumed, 4)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", EVERY)
def test_the_learning_rate_may_be_a_tensor(name):
    number, tensor = linear(), linear()
    train(
        number, optimizers.build_optimizer(name, number.parameters(), {"lr": 0.01}, device=CPU), 3
    )
    settings = {"lr": torch.tensor(0.01)}
    train(tensor, optimizers.build_optimizer(name, tensor.parameters(), settings, device=CPU), 3)
    for ours, theirs in zip(number.parameters(), tensor.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def build(name, **settings):
    return optimizers.build_optimizer(name, linear().parameters(), settings, device=CPU)


@pytest.mark.parametrize("name", EVERY)
def test_rows_describe_themselves(name):
    row = optimizers.find(name)
    assert row.name == name
    assert row.about
    assert "lr" in row.setting_names
    assert not {"params", "args", "kwargs", "settings"} & set(row.setting_names)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_on_cuda_the_step_is_made_capturable(name):
    groups = optimizers.build_optimizer(name, linear().parameters(), {}, device=CUDA).param_groups
    row = optimizers.find(name)
    for group in groups:
        for flag in ("capturable", "fused", "foreach"):
            assert (group.get(flag) is True) == (flag in row.on_cuda)
        if "capturable" in row.setting_names:
            assert group["capturable"]


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_rows_say_what_needs_a_hessian(name):
    """The training loop calls what the row announces, and nothing else."""
    optimizer, row = build(name), optimizers.find(name)
    for attribute in ("update_hessian", "hessian_every"):
        assert hasattr(optimizer, attribute) == row.needs_hessian


def test_no_two_optimizers_look_the_same():
    styles = [optimizers.style(name) for name in optimizers.OPTIMIZERS]
    assert len(set(styles)) == len(styles)
    assert {dash for _, dash in styles} <= set(palette.DASHES)
    assert optimizers.style("sgdf") == ("#D55E00", "solid")


def test_an_unknown_optimizer_always_looks_the_same():
    colour, dash = optimizers.style("theirs.Mine")
    assert (colour, dash) == optimizers.style("theirs.Mine")
    assert dash in palette.DASHES
    assert len({optimizers.style(f"theirs.{n}") for n in range(100)}) > 10


def test_what_the_names_stand_for():
    sgd = build("sgd").param_groups[0]
    assert (sgd["lr"], sgd["momentum"]) == (0.1, 0.9)
    assert build("sgd", momentum=0).param_groups[0]["momentum"] == 0
    ema, cm = (build(name, beta=0.8) for name in ("sgd-ema", "sgd-cm"))
    assert isinstance(ema, Momentum)
    assert ema.param_groups[0]["mu"] == pytest.approx(0.2)
    assert cm.param_groups[0]["mu"] == 1.0
    assert build("filter-adamw").param_groups[0]["decoupled_weight_decay"]
    assert type(build("filter-adam", gain_scale=1.0)) is FilterAdam
    assert build("lion", betas=[0.5, 0.9]).param_groups[0]["betas"] == (0.5, 0.9)  # from JSON
    assert not build("adabelief").param_groups[0]["weight_decouple"]
    assert build("lion").param_groups[0]["weight_decouple"]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sgfd", {}, "no optimizer 'sgfd': did you mean .*sgdf"),
        ("sgdf", {"gain_scal": 1}, "no setting of sgdf 'gain_scal': did you mean gain_scale"),
        ("filter-adam", {"gain_powr": 1}, "did you mean gain_power"),
        (
            "lion",
            {"cautious": True},
            "no setting of lion 'cautious'; there are betas, decay_",
        ),
        ("sgdf", {"lr": -1.0}, "^sgdf cannot be built with lr=-1.0: Invalid learning rate: -1.0$"),
        ("lion", {"lr": -1.0}, "^lion cannot be built with lr=-1.0: learning rate must be"),
        ("msvag", {"weight_decay": -1.0}, "^msvag cannot .*: Invalid weight_decay value: -1.0$"),
        ("adam", {"betas": 0.9}, "^betas is 2 numbers, not 0.9$"),
        ("adam", {"lr": "fast"}, "^lr is a number, not 'fast'$"),
    ],
)
def test_mistakes_are_one_sentence(name, settings, message):
    with pytest.raises(UserError, match=message):
        optimizers.build_optimizer(name, linear().parameters(), settings, device=CPU)


def test_a_missing_extra_is_not_a_mistake_of_the_user(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ModuleNotFoundError, match="pytorch_optimizer"):
        optimizers.build_optimizer("lion", linear().parameters(), {}, device=CPU)


# --- a new one -----------------------------------------------------------------------------------


def half_sgd(params, lr=0.1, weight_decay=0.0):
    return torch.optim.SGD(params, lr / 2, weight_decay=weight_decay)


@pytest.fixture
def new_row(monkeypatch):
    """A row added to the registry, as an edit of registry.py would."""
    row = optimizers.OptimizerRow(
        name="half-sgd",
        builder=half_sgd,
        about="SGD with half the learning rate",
        colour="#123456",
        dash="longdashdot",
        settings={"lr": 0.2},
    )
    monkeypatch.setitem(optimizers.OPTIMIZERS, row.name, row)
    return row


def test_a_new_row_is_found_checked_and_coloured(new_row):
    assert optimizers.find("half-sgd") is new_row
    assert optimizers.style("half-sgd") == ("#123456", "longdashdot")
    assert build("half-sgd", lr=0.3).param_groups[0]["lr"] == 0.15
    with pytest.raises(UserError, match="no optimizer 'half-sdg': did you mean half-sgd"):
        optimizers.find("half-sdg")
    with pytest.raises(UserError, match="no setting of half-sgd 'weight_decy': did you mean"):
        build("half-sgd", weight_decy=0.1)


def test_a_new_row_is_in_the_help(new_row, capsys):
    from sgdf_lab.cli.main import main

    with pytest.raises(SystemExit):
        main(["train", "--help"])
    assert new_row.name in capsys.readouterr().out


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_a_row_has_the_settings_of_its_builder(name):
    """The table states them so that settings are checked without torch."""
    row = optimizers.find(name)
    parameters = inspect.signature(row.load()).parameters
    assert {row.renamed.get(n, n) for n in (*kinds_from(row.takes), *row.fixed)} - {
        "cautious"
    } <= set(parameters)
    if not row.builder.startswith("pytorch_optimizer:"):  # whose annotations are names of its own
        assert kinds_from(row.takes) == signature_kinds(row.load())
    assert not set(row.settings) - set(row.kinds)
    betas = {"beta1", "beta2"} if "betas" in row.kinds else set()
    assert not set(row.space) - set(row.kinds) - betas


def test_the_settings_of_the_filter_in_front_are_those_of_its_class():
    own = {f"filter_{n}": kind for n, kind in signature_kinds(WienerFilter).items()}
    own.pop("filter_fused")  # without it the filter could not be captured in a CUDA graph
    assert own == FILTER_KINDS
    assert [getattr(torch, name) for name in DTYPE_NAMES] == list(STATE_DTYPES[1:])


def test_installed_packages_are_scanned_once_and_not_for_our_own_names(monkeypatch):
    scans = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: scans.append(group) or ())
    plugins._scan.cache_clear()
    for name in ("sgdf", "adamw"):
        optimizers.find(name)
    assert scans == []
    for _ in range(3):
        optimizers.find("wiener-lion")
        optimizers.find("torch.optim.SGD")
    assert scans == ["sgdf.optimizers"]
    plugins._scan.cache_clear()


@pytest.mark.usefixtures("new_row")
def test_a_new_row_trains(tmp_path):
    pytest.importorskip("rich")
    from sgdf_lab.cli.main import main

    common = ["--data", "synthetic", "--epochs", "2", "--device", "cpu", "--out", str(tmp_path)]
    assert main(["train", "digits", "--optimizer", "half-sgd", *common]) == 0
    (metrics,) = tmp_path.glob("digits-mlp-half-sgd-s0-*/metrics.jsonl")
    first, last = map(json.loads, metrics.read_text().splitlines())
    assert first["lr"] == 0.2
    assert last["train_loss"] < first["train_loss"]


# --- a user's own --------------------------------------------------------------------------------

MODULE = '''
import torch

number = 3

class Mine(torch.optim.SGD):
    """Descends.

    More words.
    """

class Graphs(torch.optim.Adam):
    def __init__(self, params, lr=1e-3, *, capturable=False):
        super().__init__(params, lr, capturable=capturable)

def build(params, **settings: float | None):
    return torch.optim.SGD(params, **settings)

def wrong(params):
    return params
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed distribution with a module `theirs` and entry points, and one that collides."""
    (tmp_path / "theirs.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import nothing_of_that_name")
    info = tmp_path / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sgdf.optimizers]\nmine = theirs:Mine\nopen = theirs:build\nlost = theirs:Absent\n"
        "adam = theirs:Mine\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("theirs", None)


@pytest.mark.usefixtures("package")
class TestUsersOwn:
    def build(self, name, device=CPU, **settings):
        return optimizers.build_optimizer(name, linear().parameters(), settings, device=device)

    @pytest.mark.parametrize("name", ["mine", "theirs.Mine", "theirs:Mine"])
    def test_by_entry_point_and_by_path(self, name):
        optimizer = self.build(name, lr=0.3)
        assert type(optimizer).__name__ == "Mine"
        assert optimizer.param_groups[0]["lr"] == 0.3
        row = optimizers.find(name)
        assert (row.name, row.about, row.capturable) == (name, "Descends.", False)
        with pytest.raises(UserError, match=f"no setting of {name} 'momentom': .* momentum"):
            self.build(name, momentom=0.9)

    def test_a_class_with_capturable_gets_it_on_cuda(self):
        assert self.build("theirs.Graphs", CUDA).param_groups[0]["capturable"]
        assert not self.build("theirs.Graphs").param_groups[0]["capturable"]

    def test_a_step_that_cannot_be_captured_gets_the_learning_rate_as_a_number(self):
        assert self.build("mine", lr=torch.tensor(0.5)).param_groups[0]["lr"] == 0.5
        assert isinstance(self.build("mine", lr=torch.tensor(0.5)).param_groups[0]["lr"], float)

    def test_a_function_may_take_any_setting(self):
        assert self.build("open", lr=0.1, momentum=0.5).param_groups[0]["momentum"] == 0.5

    def test_a_class_that_needs_a_hessian_is_recognised(self):
        assert optimizers.find("sgdf_lab.optimizers.sophia.SophiaG").needs_hessian
        assert not optimizers.find("mine").needs_hessian

    def test_typed_keywords_are_settings_of_a_path_too(self):
        row = optimizers.find("sgdf.FilterAdam")
        assert not row.any_setting
        assert row.capturable
        assert "gain_scale" in row.setting_names

    def test_our_name_wins_with_a_warning(self):
        with pytest.warns(UserWarning, match="the optimizer 'adam' of theirs has the name of"):
            assert type(self.build("adam")) is torch.optim.Adam

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("minne", "no optimizer 'minne': did you mean mine"),
            ("lost", r"'lost' cannot be loaded from theirs:Absent .*: mend or remove"),
            (
                "nowhere.Mine",
                r"'nowhere.Mine' cannot be loaded \(No module named 'nowhere'\): inst",
            ),
            ("broken.Mine", r"cannot be loaded \(No module named 'nothing_of_that_name'\)"),
            (".Mine", r"'.Mine' cannot be loaded"),
            ("theirs.Mien", "no optimizer in theirs 'Mien': did you mean Mine"),
            ("theirs.number", "there is no optimizer in theirs 'number'"),
            ("theirs.wrong", "^theirs.wrong built a generator, not a torch optimizer"),
        ],
    )
    def test_mistakes_are_one_sentence(self, name, message):
        with pytest.raises(UserError, match=message):
            self.build(name)


# --- on a GPU ------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", [n for n in EVERY if optimizers.find(n).capturable])
def test_a_cuda_graph_holds_the_step(name):
    """Replays follow the learning rate in its tensor and end where the plain loop ends."""
    rates = [0.01, 0.01, 0.01, 0.01, 0.002, 0.002]
    settings = (
        {"weight_decay": 0.01} if "weight_decay" in optimizers.find(name).setting_names else {}
    )
    grads = [torch.randn(6, 40, 30, device="cuda"), torch.randn(6, 30, device="cuda")]

    def start(lr, device):
        torch.manual_seed(0)
        params = [nn.Parameter(torch.randn(g.shape[1:], device="cuda")) for g in grads]
        for p in params:
            p.grad = torch.zeros_like(p)
        return params, optimizers.build_optimizer(
            name, params, {**settings, "lr": lr}, device=device
        )

    def feed(params, t):
        for p, g in zip(params, grads, strict=True):
            p.grad.copy_(g[t])

    plain, optimizer = start(0.01, CPU)
    for t, rate in enumerate(rates):
        feed(plain, t)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()

    lr = torch.tensor(0.01, device="cuda")
    params, optimizer = start(lr, CUDA)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for t in range(2):  # state, and what a first step compiles, before the capture
            feed(params, t)
            optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        optimizer.step()
    for t in range(2, 6):
        feed(params, t)
        lr.fill_(rates[t])
        graph.replay()
    for ours, theirs in zip(params, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("name", EVERY)
def test_every_optimizer_learns_and_resumes_on_a_gpu(name):
    def start():
        model = linear().cuda()
        return model, optimizers.build_optimizer(
            name, model.parameters(), {"lr": 0.01, **SETTINGS.get(name, {})}, device=CUDA
        )

    def run(model, optimizer, steps):
        x = torch.ones(4, 6, device="cuda")
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
        return loss.item()

    model, optimizer = start()
    first = run(model, optimizer, 1)  # before any step: Prodigy overshoots in its fourth
    run(model, optimizer, 2)
    saved = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    saved.seek(0)
    assert run(model, optimizer, 3) < first
    other, resumed = start()
    checkpoint = torch.load(saved, weights_only=True, map_location="cpu")
    other.load_state_dict(checkpoint["model"])
    resumed.load_state_dict(checkpoint["optimizer"])
    run(other, resumed, 3)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)
