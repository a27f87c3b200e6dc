"""step_in_backward: the bits of ordinary steps, one gradient at a time, and clear refusals."""

import copy
import gc
import socket
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from optim.in_backward import (
    RANDOM,
    STEPS,
    WIDTH,
    Twins,
    assert_draws_the_bits_of_ordinary_steps,
    frozen,
    loss_of,
    new_net,
)
from reference import CASES, OPTIMIZERS
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum, WienerFilter, step_in_backward
from sgdf.kernels import cuda
from sgdf.kernels.plan import Plan
from stepping import PATHS, assert_bitwise, each_path

pytestmark = pytest.mark.usefixtures("one_thread")

each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS)


# --- the bits of ordinary steps -------------------------------------------------------------------


@each_path
@pytest.mark.parametrize(("make", "settings"), CASES)
def test_it_equals_ordinary_steps(make, settings, path):
    twins = Twins(make, **settings, **PATHS[path])
    assert twins.optimizers[1].implementation == path
    twins.train(*range(STEPS))
    assert not torch.equal(twins.models[0].first.weight, new_net().first.weight)
    twins.assert_equal()


@pytest.mark.parametrize("path", ["loop", "fused"])
@pytest.mark.parametrize("case", RANDOM)
@pytest.mark.parametrize("make", [SGDF, FilterAdam, FilterAdamW])
def test_it_draws_the_random_bits_of_ordinary_steps(make, case, path):
    assert_draws_the_bits_of_ordinary_steps(make, case, **PATHS[path])


@each_optimizer
def test_settings_of_groups_and_schedules_are_read_at_each_step(make):
    def groups(model):
        heads = [*model.head.parameters(), *model.other_head.parameters()]
        body = [*model.first.parameters(), *model.shared.parameters()]
        return [{"params": body, "weight_decay": 0.1}, {"params": heads, "lr": 0.01}]

    twins = Twins(make, groups=groups, lr=0.1)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5) for o in twins.optimizers]
    for seed in range(STEPS):
        twins.train(seed)
        for scheduler in schedulers:
            scheduler.step()
    assert twins.optimizers[1].param_groups[1]["lr"] == 0.01 * 0.5**STEPS
    twins.assert_equal()


@each_optimizer
def test_a_parameter_without_a_gradient_is_left_alone(make):
    twins = Twins(make, frozen(new_net(), "shared"))
    twins.train(0)
    assert twins.models[1].other_head.weight not in twins.optimizers[1].state
    for other in (True, False, True):
        twins.train(1, other=other)
    twins.assert_equal()
    if make is not Momentum:
        steps = [
            twins.optimizers[1].state[head.weight]["step"].item()
            for head in (twins.models[1].head, twins.models[1].other_head)
        ]
        assert steps == [2, 2]


LATE = [*((make, {}) for make in OPTIMIZERS), (SGDF, {"stochastic_rounding": True})]


@pytest.mark.parametrize(("make", "settings"), LATE)
def test_parameters_may_be_unfrozen_and_added(make, settings):
    model = frozen(new_net(dtype=torch.bfloat16 if settings else torch.float32))
    groups = lambda m: [*m.first.parameters(), *m.shared.parameters()]  # noqa: E731
    twins = Twins(make, model, groups, **settings)
    twins.train(0)
    for model, optimizer in zip(twins.models, twins.optimizers, strict=True):
        model.first.requires_grad_()
        optimizer.add_param_group({"params": [*model.head.parameters()], "lr": 0.3})
    twins.train(1)  # updated by step(), which has no hook on them yet
    for model in twins.models:
        model.zero_grad()
        loss_of(model, 2).backward()
    assert all(p.grad is None for p in twins.models[1].parameters())  # now in backward
    for optimizer in twins.optimizers:
        optimizer.step()
    twins.assert_equal()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers(reentrant):
    def loss(model, seed):
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)
        x = checkpoint(model.first, x, use_reentrant=reentrant)
        x = checkpoint(lambda x: model.shared(model.shared(x).tanh()), x, use_reentrant=reentrant)
        return model.head(x).square().mean()

    twins = Twins(SGDF)
    twins.train(*range(STEPS), loss=loss)
    twins.assert_equal()


def test_a_checkpointed_segment_that_reads_a_parameter_without_a_gradient_sees_its_update():
    """The documented exception: were it noticed or prevented, the docstring would be wrong."""
    results = []
    for in_backward in (False, True):
        w, v = (torch.ones(3, requires_grad=True) for _ in range(2))
        optimizer = SGDF([w, v], lr=0.5)
        if in_backward:
            step_in_backward(optimizer)
        segment = checkpoint(
            lambda x, w=w, v=v: x * w.detach() * v, torch.ones(3), use_reentrant=False
        )
        (segment + (w * w)).cos().sum().backward()
        optimizer.step()
        results.append(torch.stack([w.detach(), v.detach()]))
    ordinary, ours = results
    assert torch.equal(ordinary[0], ours[0])
    assert not torch.equal(ordinary[1], ours[1])


@each_optimizer
def test_checkpoints_are_interchangeable(make):
    settings = {} if make is Momentum else {"state_dtype": torch.int8}
    twins = Twins(make, new_net(width=WIDTH), **settings)
    twins.train(0, 1)
    saved = [copy.deepcopy(optimizer.state_dict()) for optimizer in twins.optimizers]
    twins.train(2)
    twins.optimizers[0].load_state_dict(saved[1])
    twins.optimizers[1].load_state_dict(saved[0])
    twins.train(3, 4)
    twins.assert_equal()


# --- what is alive, and what a step costs ---------------------------------------------------------


def test_one_gradient_is_alive_at_a_time():
    model = nn.Sequential(*(nn.Linear(5, 5, bias=False) for _ in range(6)))
    gradients = []
    alive = []

    def count(p):  # registered first, so it runs before the update
        gradients.append(weakref.ref(p.grad))
        alive.append(sum(gradient() is not None for gradient in gradients))

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(count)
    optimizer = SGDF(model.parameters())
    model(torch.ones(2, 5)).sum().backward()
    assert alive == [1, 2, 3, 4, 5, 6]
    optimizer.step()
    optimizer.zero_grad()
    alive.clear()
    with step_in_backward(optimizer):
        for _ in range(2):
            model(torch.ones(2, 5)).sum().backward()
            optimizer.step()
    assert alive == [1] * 12


@pytest.mark.parametrize("make", [SGDF, FilterAdam, Momentum])
def test_plans_of_triton_are_made_once_and_free_their_gradients(make, monkeypatch):
    """On a GPU the tables are made at the first step, and refreshed without a search after it."""
    monkeypatch.setattr(cuda, "DEVICES", ("cuda", "cpu"))
    made = []
    adapted = []
    init, adapt = Plan.__init__, Plan.adapt_to
    monkeypatch.setattr(Plan, "__init__", lambda s, *a: (made.append(s), init(s, *a))[1])
    monkeypatch.setattr(Plan, "adapt_to", lambda s, c: (adapted.append(s), adapt(s, c))[1])
    layers = [nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 1)]
    twins = Twins(make, nn.Sequential(*layers), fused=True)
    twins.train(0)
    assert len(made) == 1 + 6  # of the ordinary group, and of each parameter
    twins.train(1, 2)
    assert len(made) == 7
    assert not adapted
    twins.assert_equal()
    ours = twins.optimizers[1]._plans.groups
    assert all(plan.columns[1] == [] for group in ours.values() for plan in group.plans)
    twins.handle.remove()
    assert not ours
    twins.train(3)
    assert_bitwise(*(model.parameters() for model in twins.models))


def test_triton_draws_the_random_bits_of_ordinary_steps(monkeypatch):
    monkeypatch.setattr(cuda, "DEVICES", ("cuda", "cpu"))
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Linear(WIDTH, 32))
    twins = Twins(
        SGDF, model.bfloat16(), fused=True, stochastic_rounding=True, state_dtype=torch.int8
    )
    twins.train(0, 1)
    twins.assert_equal()


# --- the handle -----------------------------------------------------------------------------------


@each_optimizer
def test_removing_the_handle_gives_ordinary_steps_back(make):
    twins = Twins(make)
    twins.train(0, 1)
    twins.handle.remove()
    twins.handle.remove()
    before = copy.deepcopy(twins.models[1].state_dict())
    loss_of(twins.models[1], 2).backward()
    assert twins.models[1].head.weight.grad is not None
    assert_bitwise(dict(twins.models[1].state_dict()), dict(before))
    twins.optimizers[1].zero_grad()
    twins.train(2, 3)
    twins.optimizers[1].zero_grad()
    twins.assert_equal()
    with step_in_backward(twins.optimizers[1]) as handle:
        twins.train(4)
        twins.assert_equal()
        with pytest.raises(RuntimeError, match="already active"):
            step_in_backward(twins.optimizers[1])
    assert handle is not None
    twins.optimizers[1].step(lambda: loss_of(twins.models[1], 2).backward())  # closures again


def test_the_handle_may_be_thrown_away_and_keeps_nothing_alive():
    model = new_net()
    optimizer = SGDF(model.parameters())
    step_in_backward(optimizer)
    gc.collect()
    loss_of(model, 0).backward()
    assert model.head.weight.grad is None
    watched = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert watched() is None
    loss_of(model, 0).backward()  # nobody is there to update
    assert model.head.weight.grad is not None


def test_a_copy_of_the_optimizer_takes_ordinary_steps():
    model = new_net()
    optimizer = SGDF(model.parameters())
    step_in_backward(optimizer)
    model, optimizer = copy.deepcopy((model, optimizer))
    loss_of(model, 0).backward()
    assert model.head.weight.grad is not None
    optimizer.step(lambda: None)
    assert len(optimizer.state) == 6


# --- refusals -------------------------------------------------------------------------------------


def test_it_refuses_gradient_accumulation():
    twins = Twins(SGDF)
    twins.train(0)
    model, optimizer = twins.models[1], twins.optimizers[1]
    loss_of(model, 1).backward()
    after_one = copy.deepcopy((dict(model.state_dict()), optimizer.state_dict()))
    with pytest.raises(RuntimeError, match=r"accumulation: .* call optimizer\.step\(\) once after"):
        loss_of(model, 2).backward()
    optimizer.step()  # nothing is left of the second backward
    assert_bitwise((dict(model.state_dict()), optimizer.state_dict()), after_one)
    loss_of(model, 3).backward()


def test_it_refuses_a_parameter_of_two_reentrant_checkpoints():
    model = new_net()
    step_in_backward(SGDF(model.parameters()))
    x = torch.ones(2, 6, requires_grad=True)
    for _ in range(2):
        x = checkpoint(model.shared, x, use_reentrant=True)
    with pytest.raises(RuntimeError, match="accumulation"):
        x.sum().backward()


@each_path
@pytest.mark.parametrize("unscale", [False, True])
def test_it_refuses_a_grad_scaler(path, unscale):
    model = new_net()
    optimizer = SGDF(model.parameters(), **PATHS[path])
    handle = step_in_backward(optimizer)
    scaler = GradScaler("cpu")
    scaler.scale(loss_of(model, 0)).backward()
    if unscale:
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="does not support GradScaler"):
        scaler.step(optimizer)
    assert not hasattr(optimizer, "grad_scale")
    handle.remove()
    assert optimizer._step_supports_amp_scaling == (path == "fused")


def test_a_disabled_scaler_is_accepted():
    twins = Twins(SGDF)
    scaler = GradScaler("cpu", enabled=False)
    for _ in range(2):
        scaler.scale(loss_of(twins.models[1], 0)).backward()
        scaler.step(twins.optimizers[1])
        twins.optimizers[0].zero_grad()
        loss_of(twins.models[0], 0).backward()
        twins.optimizers[0].step()
    twins.assert_equal()


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_it_refuses_what_it_cannot_do():
    model = new_net()
    with pytest.raises(TypeError, match=r"but got Adam; .*register_post_accumulate_grad_hook"):
        step_in_backward(torch.optim.Adam(model.parameters()))
    with pytest.raises(TypeError, match="but got WienerFilter"):
        step_in_backward(WienerFilter(SGDF(model.parameters())))
    with pytest.raises(RuntimeError, match="does not support `differentiable`"):
        step_in_backward(SGDF(model.parameters(), differentiable=True))
    optimizer = FilterAdamW(model.parameters())
    wiener = WienerFilter(optimizer)
    with pytest.raises(RuntimeError, match="does not support a WienerFilter"):
        step_in_backward(optimizer)
    wiener.detach()
    step_in_backward(optimizer)
    with pytest.raises(RuntimeError, match="does not support closures"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(RuntimeError, match="does not support closures"):
        optimizer.step(closure=lambda: 0.0)
    with pytest.raises(RuntimeError, match=r"does not support backward\(create_graph=True\)"):
        loss_of(model, 0).backward(create_graph=True)


def test_sparse_gradients_are_refused_as_ever():
    table = nn.Embedding(4, 3, sparse=True)
    step_in_backward(SGDF(table.parameters()))
    with pytest.raises(RuntimeError, match="SGDF does not support sparse gradients"):
        table(torch.tensor([1])).sum().backward()


@pytest.mark.parametrize("triton", [False, True])
def test_torch_notices_a_value_that_backward_still_needs(triton, monkeypatch):
    if triton:
        monkeypatch.setattr(cuda, "DEVICES", ("cuda", "cpu"))
    x = torch.ones(3, requires_grad=True)
    w = torch.ones(3, requires_grad=True)
    optimizer = SGDF([w], fused=True)
    with step_in_backward(optimizer), pytest.raises(RuntimeError, match="inplace operation"):
        ((x * w.detach()).cos() * w).sum().backward()


@pytest.fixture
def process_group(monkeypatch):
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", loopback)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_it_refuses_distributed_data_parallel():
    alone, model, later = new_net(), new_net(), new_net()
    parallel = DistributedDataParallel(model)
    with pytest.raises(RuntimeError, match="does not support DistributedDataParallel"):
        step_in_backward(SGDF(parallel.parameters()))
    # A module that is none of its own is accepted, and one that is wrapped later is noticed.
    step_in_backward(SGDF(alone.parameters()))
    loss_of(alone, 0).backward()
    optimizer = SGDF(later.parameters())
    step_in_backward(optimizer)
    wrapped = DistributedDataParallel(later, find_unused_parameters=True)
    before = copy.deepcopy(later.state_dict())
    with pytest.raises(RuntimeError, match="does not support DistributedDataParallel"):
        loss_of(wrapped, 0).backward()
    assert_bitwise(dict(later.state_dict()), dict(before))


@each_optimizer
@pytest.mark.usefixtures("process_group")
def test_sharded_parameters_are_updated_in_backward(make):
    """`fully_shard` calls the hooks itself, once the gradients are reduced."""
    models = [new_net(), new_net()]
    mesh = init_device_mesh("cpu", (1,))
    for module in (models[1].first, models[1].shared, models[1]):
        fully_shard(module, mesh=mesh)
    optimizers = [make(model.parameters()) for model in models]
    step_in_backward(optimizers[1])
    for seed in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(model, seed).backward()
            assert (model.first.weight.grad is None) == (model is models[1])
            optimizer.step()
    assert_bitwise(models[0].parameters(), (q.to_local() for q in models[1].parameters()))


def test_a_compiled_model_equals_ordinary_steps():
    def loss(model, seed):
        return loss_of(compiled[model], seed)

    twins = Twins(SGDF)
    # Without a compiler, but with the one node for backward that compiled models have.
    compiled = {model: torch.compile(model, backend="aot_eager") for model in twins.models}
    twins.train(0, 1, loss=loss)
    twins.assert_equal()
