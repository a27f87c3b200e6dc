"""Fused steps on a GPU: CUDA graphs, GradScaler, memory, checkpoints, FSDP2 (`make test-gpu`).

tests/kernels/test_cuda.py has the arithmetic of the kernels. Needs torch, Triton, NumPy, pytest.
"""

import copy
import math

import pytest
import torch

from reference import FORMS, OPTIMIZERS
from sgdf import SGDF, FilterAdam, Momentum, WienerFilter
from sgdf.optim import wait_until_compiled
from stepping import assert_bitwise, copies
from stepping import normal as drawn

pytestmark = pytest.mark.gpu
FILTERS = [{}, {"gain_scale": 0.1, "gain_power": 0}, {"state_dtype": torch.int8}]
each_filter = pytest.mark.parametrize("settings", FILTERS, ids=str)


@pytest.fixture(autouse=True, scope="module")
def _detector_in_cpp():
    """From the first step on, and not only once it has been compiled."""
    wait_until_compiled()


def normal(shapes, dtype=torch.float32):
    return drawn(shapes, dtype, device="cuda")


def set_gradients(parameters, seed, scale=1.0):
    """Random gradients, laid out like their parameters."""
    generator = torch.Generator("cuda").manual_seed(seed)
    for p in parameters:
        g = scale * torch.randn(p.shape, generator=generator, device="cuda")
        p.grad = torch.empty_like(p).copy_(g)


def assert_near(ours, theirs):
    torch.testing.assert_close(list(ours), list(theirs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("optimizer_class", "settings"), [(SGDF, {}), (FilterAdam, {"state_dtype": torch.float64})]
)
def test_the_kernels_are_the_default(optimizer_class, settings):
    parameters = normal([(i % 50, i % 7 + 1) for i in range(400)])
    loop = optimizer_class(parameters, foreach=False, fused=False, eps=1e-3, **settings)
    kernels = optimizer_class(copies(parameters), eps=1e-3, **settings)
    assert (loop.implementation, kernels.implementation) == ("loop", "fused")
    ours, theirs = (o.param_groups[0]["params"] for o in (kernels, loop))
    for seed in range(5):
        for optimizer, params in ((loop, theirs), (kernels, ours)):
            set_gradients(params, seed)
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    wanted = settings.get("state_dtype", torch.float32)
    assert kernels.state[ours[1]]["exp_avg"].dtype == wanted


def test_a_tensor_past_2_to_the_31_elements():
    p = torch.ones(2**31 + 1000, device="cuda", dtype=torch.bfloat16)
    p.grad = torch.ones_like(p)
    optimizer = SGDF([p], lr=0.5, state_dtype=torch.bfloat16)
    optimizer.step()
    assert p[:1000].eq(0.5).all()
    assert p[-1000:].eq(0.5).all()


# --- CUDA graphs --------------------------------------------------------------------------------


WARM_UP, REPLAYS = 3, 100


def train(build, captured):
    """Complete steps, with backward, under a cosine schedule that fills a tensor lr."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 300), torch.nn.ReLU(), torch.nn.Linear(300, 8)
    ).cuda()
    inputs = torch.randn(WARM_UP + REPLAYS, 16, 64, device="cuda")
    batch, lr = inputs[0].clone(), torch.tensor(0.0, device="cuda")
    optimizer, state = build(model.parameters(), lr)

    def step():
        optimizer.zero_grad(set_to_none=True)
        model(batch).square().mean().backward()
        optimizer.step()

    def prepare(t):
        lr.fill_(0.005 * (1 + math.cos(math.pi * t / len(inputs))))
        batch.copy_(inputs[t])

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for t in range(WARM_UP):
            prepare(t)
            step()
    torch.cuda.current_stream().wait_stream(side)
    run = step
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        run = graph.replay
    for t in range(WARM_UP, len(inputs)):
        prepare(t)
        run()
    torch.cuda.synchronize()
    assert {s["step"].item() for s in state.values()} == {float(len(inputs))}
    return list(model.parameters())


CAPTURED = [
    (cls, settings, options)
    for cls, settings in [(SGDF, {}), (FilterAdam, {}), *FORMS.values()]
    for options in ({}, {"state_dtype": torch.int8}, {"foreach": True})
]


@pytest.mark.parametrize(("optimizer_class", "settings", "options"), CAPTURED)
def test_100_replays_under_a_cosine_schedule_are_100_steps(optimizer_class, settings, options):
    def build(params, lr):
        optimizer = optimizer_class(params, lr=lr, capturable=True, **settings, **options)
        return optimizer, optimizer.state

    assert_replays_are_steps(build)


@each_filter
def test_100_replays_of_a_filtered_step_are_100_steps(settings):
    def build(params, lr):
        optimizer = torch.optim.Adam(params, lr=lr, capturable=True, fused=True)
        return optimizer, WienerFilter(optimizer, **settings).state

    assert_replays_are_steps(build)


def assert_replays_are_steps(build):
    eager, replayed = (train(build, captured) for captured in (False, True))
    assert_bitwise(eager, replayed)


def test_capturing_a_first_step_is_refused_by_name():
    p = torch.ones(10, device="cuda")
    p.grad = torch.ones_like(p)
    optimizer = SGDF([p], capturable=True)
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(RuntimeError, match="run one step before capturing")
    with refused, torch.cuda.graph(graph):
        optimizer.step()


# --- GradScaler, memory, checkpoints, FSDP2 -----------------------------------------------------


class Scaled:
    """The same run with and without a scaler: twin optimizers, each perhaps with a filter."""

    def __init__(self, make, unscale=False):
        self.params, self.plain = normal([(300,), (64, 512)]), normal([(300,), (64, 512)])
        (self.optimizer, *self.filters), self.reference = make(self.params), make(self.plain)
        self.scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2)
        self.unscale = unscale

    def step(self, seed, overflow=False):
        set_gradients(self.params, seed, scale=self.scaler.get_scale())
        if overflow:
            self.params[1].grad[0] = torch.inf
        self.scaler.scale(torch.zeros((), device="cuda"))  # as a loss would have been
        if self.unscale:
            self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def assert_scaled_steps_are_plain_and_skipped_ones_nothing(self):
        for seed in range(6):
            set_gradients(self.plain, seed)
            self.reference[0].step()
            self.step(seed)
        assert_near(self.params, self.plain)
        before = copy.deepcopy(self.everything())
        self.step(9, overflow=True)
        assert_bitwise(self.everything(), before)

    def everything(self):
        states = [each.state_dict()["state"] for each in (self.optimizer, *self.filters)]
        return [*states, self.params]


@pytest.mark.parametrize(
    ("optimizer_class", "settings"), [*((cls, {}) for cls in OPTIMIZERS), *FORMS.values()]
)
def test_grad_scaler_inside_the_kernel(optimizer_class, settings):
    run = Scaled(lambda params: [optimizer_class(params, lr=0.01, **settings)])
    run.assert_scaled_steps_are_plain_and_skipped_ones_nothing()


@pytest.mark.parametrize("fused", [False, True])
@each_filter
def test_grad_scaler_and_the_filter(settings, fused):
    """After unscale_; a skipped step leaves gradients, state and counters as they are."""

    def make(params):
        optimizer = torch.optim.Adam(params, lr=0.01, fused=fused)
        return [optimizer, WienerFilter(optimizer, **settings)]

    Scaled(make, unscale=True).assert_scaled_steps_are_plain_and_skipped_ones_nothing()


MEMORY = [
    (cls, settings, state_dtype)
    for cls, settings in [(SGDF, {}), (FilterAdam, {}), (Momentum, {}), *FORMS.values()]
    for state_dtype in (None, torch.bfloat16, torch.int8)
    if (cls, state_dtype) != (Momentum, torch.int8)  # which it has not
]


@pytest.mark.parametrize(("optimizer_class", "settings", "state_dtype"), MEMORY)
def test_a_step_needs_no_memory_of_its_own(optimizer_class, settings, state_dtype):
    parameters = normal([(4096, 4096), (4096,)])
    optimizer = optimizer_class(parameters, lr=0.01, state_dtype=state_dtype, **settings)
    assert_needs_no_memory(optimizer, parameters)


@each_filter
def test_a_filtered_step_needs_no_memory_of_its_own(settings):
    parameters = normal([(4096, 4096), (4096,)])
    optimizer = torch.optim.SGD(parameters, lr=0.01, fused=True)
    wiener = WienerFilter(optimizer, **settings)
    assert_needs_no_memory(optimizer, parameters)
    kept = sum(t.nbytes for t in wiener.state[parameters[0]].values()) / parameters[0].numel()
    assert kept < (2.04 if "state_dtype" in settings else 8.01 if not settings else 4.01)


def assert_needs_no_memory(optimizer, parameters):
    set_gradients(parameters, 0)
    optimizer.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    optimizer.step()
    extra = torch.cuda.max_memory_allocated() - before
    assert extra <= 0.01 * sum(p.nbytes for p in parameters)


def test_a_checkpoint_from_the_cpu_is_resumed_on_the_gpu():
    cpu = [torch.randn(64, 512).requires_grad_()]
    optimizer = SGDF(cpu, lr=0.1)
    cpu[0].grad = torch.randn(64, 512)
    optimizer.step()
    gpu = [cpu[0].detach().cuda().requires_grad_()]
    moved = SGDF(gpu, lr=0.1)
    moved.load_state_dict(optimizer.state_dict())
    for _ in range(3):
        cpu[0].grad = torch.randn(64, 512)
        gpu[0].grad = cpu[0].grad.cuda()
        optimizer.step(), moved.step()
    torch.testing.assert_close(gpu[0].cpu(), cpu[0], rtol=1e-5, atol=1e-5)


@each_filter
def test_the_filter_before_another_optimizer(settings):
    """In place, also where a gradient is laid out otherwise than its parameter, or has gaps."""
    shapes = [(500,), (64, 512), (16, 32, 3, 3)]
    p, q = normal(shapes), normal(shapes)
    for parameters in (p, q):
        parameters[2] = parameters[2].detach().to(memory_format=torch.channels_last)
        parameters[2].requires_grad_()
        parameters.append(torch.ones(400, device="cuda")[::3].requires_grad_())
    filtered = torch.optim.SGD(p, lr=0.1, foreach=False)  # fused refuses such layouts
    wiener, ours = WienerFilter(filtered, **settings), SGDF(q, lr=0.1, **settings)
    assert wiener._path(wiener._params()) == "cuda"
    for seed in range(5):
        set_gradients(p, seed), set_gradients(q, seed)
        if seed in (1, 3):
            p[2].grad = p[2].grad.contiguous()
        addresses = [x.grad.data_ptr() for x in p]
        filtered.step(), ours.step()
        assert [x.grad.data_ptr() for x in p] == addresses
    assert_near(p, q)
    for a, b in zip(p, q, strict=True):
        assert set(wiener.state[a]) == set(ours.state[b])
        torch.testing.assert_close(wiener.state[a]["step"], ours.state[b]["step"])


@pytest.mark.parametrize("state_dtype", [None, torch.int8])
def test_fsdp2_shards(state_dtype, tmp_path):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.Linear(64, 3)).cuda()
        twin = copy.deepcopy(model)
        fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
        sharded = SGDF(model.parameters(), lr=0.1, state_dtype=state_dtype)
        plain = SGDF(twin.parameters(), lr=0.1, state_dtype=state_dtype)
        assert sharded.implementation == "fused"
        for _ in range(4):
            x = torch.randn(8, 256, device="cuda")
            for m, optimizer in ((model, sharded), (twin, plain)):
                optimizer.zero_grad()
                m(x).square().mean().backward()
                optimizer.step()
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.full_tensor(), q, rtol=1e-5, atol=1e-6)
        (group,) = sharded._plans.groups.values()
        assert len(group.plans) == 1
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("set_to_none", [True, False])
def test_memory_of_gradients_is_released(set_to_none):
    """A plan keeps no gradient, and one at another address is found."""
    parameters = normal([(1 << 20,), (300, 70)])
    optimizer = SGDF(parameters)
    set_gradients(parameters, 0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated()
    for seed in range(3):
        set_gradients(parameters, seed)
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
    optimizer.zero_grad(set_to_none=True)
    assert torch.cuda.memory_allocated() <= before + 4096


def test_a_graph_captured_with_gradients_that_stay_outlives_other_steps():
    """Its table of addresses is its own, also when an eager step in between makes a new one."""
    parameters, twins = normal([(5000,), (33, 7)]), normal([(5000,), (33, 7)])
    captured, eager = SGDF(parameters, lr=0.1), SGDF(twins, lr=0.1)
    set_gradients(parameters, 0)
    set_gradients(twins, 0)
    static = [p.grad for p in parameters]
    for optimizer in (captured, eager):
        optimizer.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step()
    graph.replay()
    eager.step()
    for seed in range(1, 4):
        set_gradients(parameters, seed)  # at other addresses, by an eager step
        set_gradients(twins, seed)
        captured.step()
        eager.step()
        junk = [torch.full((64,), -1, dtype=torch.int64, device="cuda") for _ in range(64)]
        for p, g in zip(parameters, static, strict=True):
            p.grad = g
        graph.replay()  # with the gradients of seed 0
        for p, g in zip(twins, static, strict=True):
            p.grad = g.clone()
        eager.step()
        del junk
    assert_near(parameters, twins)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_captured_step_counts_as_a_change_of_its_parameters(optimizer_class):
    """On the host, which is allowed while a graph captures the step."""
    (p,) = normal([(5,)])
    optimizer = optimizer_class([p])
    set_gradients([p], 0)
    optimizer.step()
    torch.cuda.synchronize()
    version, graph = p._version, torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    assert p._version > version
    graph.replay()
    assert p.isfinite().all()


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_first_step_of_zeros_creates_state_and_does_not_count(optimizer_class):
    parameters = normal([(5,), (3, 4)])
    others = copies(parameters)
    optimizer, twin = optimizer_class(parameters, lr=0.0), optimizer_class(others, lr=0.1)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert not any(v.any() for state in optimizer.state.values() for v in state.values())
    assert len(optimizer.state) == 2
    optimizer.param_groups[0]["lr"] = 0.1
    for seed in range(3):
        for each, params in ((optimizer, parameters), (twin, others)):
            set_gradients(params, seed)
            each.step()
    assert_bitwise(parameters, others)
