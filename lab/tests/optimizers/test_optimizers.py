"""Every optimizer by name: its row, its checkpoints, and a user's own."""

import inspect
import io
import math
import sys

import pytest
import torch
from torch import nn

from sgdf import FilterAdam, Momentum, WienerFilter
from sgdf.optim.settings import STATE_DTYPES
from sgdf_lab import optimizers, plugins
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
ON_GPU = pytest.param(CUDA, marks=[needs_gpu, pytest.mark.gpu])


# --- every name ----------------------------------------------------------------------------------


def train(model, optimizer, steps, *, lr=None):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(32, 6, generator=generator)
    y = x @ torch.randn(6, 3, generator=generator)
    device = next(model.parameters()).device
    x, y = x.to(device), y.to(device)
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


@pytest.mark.parametrize("device", [CPU, ON_GPU], ids=str)
@pytest.mark.parametrize("name", EVERY)
def test_every_optimizer_learns_and_resumes_bit_for_bit(name, device):
    settings = {"lr": 0.01, **SETTINGS.get(name, {})}

    def start():
        model = linear().to(device)
        return model, optimizers.build_optimizer(name, model.parameters(), settings, device=device)

    model, optimizer = start()
    losses = train(model, optimizer, 30)
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < 0.98 * losses[0]
    train(model, optimizer, 2, lr=0.001)  # the schedule has moved when the checkpoint is written
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    train(model, optimizer, 4)

    other, resumed = start()
    checkpoint = torch.load(file, weights_only=True, map_location="cpu")
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
    for attribute in ("update_hessian", "hessian_every"):
        assert hasattr(build(name), attribute) == row.needs_hessian


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_on_cuda_the_step_is_made_capturable(name):
    groups = optimizers.build_optimizer(name, linear().parameters(), {}, device=CUDA).param_groups
    row = optimizers.find(name)
    for group in groups:
        for flag in ("capturable", "fused", "foreach"):
            assert (group.get(flag) is True) == (flag in row.on_cuda)
        if "capturable" in row.setting_names:
            assert group["capturable"]


def test_no_two_optimizers_look_the_same():
    styles = [optimizers.style(name) for name in optimizers.OPTIMIZERS]
    assert len(set(styles)) == len(styles)
    assert {dash for _, dash in styles} <= set(palette.DASHES)
    assert optimizers.style("sgdf") == ("#D55E00", "solid")
    assert optimizers.style("theirs.Mine") == optimizers.style("theirs.Mine")
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
        ("lion", {"cautious": True}, "no setting of lion 'cautious'; there are betas"),
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
        kinds = signature_kinds(row.load())
        kinds.pop("process_group", None)  # an object, which no run can record
        if row.groups is not None:  # a matrix step, which the lab captures in no CUDA graph
            kinds.pop("capturable", None)
        assert kinds_from(row.takes) == kinds
    assert not set(row.settings) - set(row.kinds)
    betas = {"beta1", "beta2", "beta3"} if "betas" in row.kinds else set()
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
        assert optimizers.find("sgdf_lab.optimizers.variants.SophiaG").needs_hessian
        assert not optimizers.find("mine").needs_hessian

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
