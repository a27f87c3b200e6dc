"""The Triton kernels compiled, on a GPU: `make test-gpu`. Needs torch, Triton, NumPy, pytest."""

import copy
import math

import numpy as np
import pytest
import torch

from agreement import assert_steps_round_the_statement
from kernels.problems import assert_finite, spiky
from reference import CASES, FORMS, OPTIMIZERS, Reference, numpy
from sgdf import SGDF, FilterAdam, Momentum, WienerFilter
from sgdf.optim import wait_until_compiled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
each_form = pytest.mark.parametrize(("optimizer_class", "settings"), FORMS.values(), ids=FORMS)
FILTERS = [{}, {"gain_scale": 0.1, "gain_power": 0}, {"state_dtype": torch.int8}]
each_filter = pytest.mark.parametrize("settings", FILTERS, ids=str)


@pytest.fixture(autouse=True, scope="module")
def _detector_in_cpp():
    """From the first step on, and not only once it has been compiled."""
    wait_until_compiled()


def normal(shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [
        torch.randn(s, generator=generator, device="cuda").to(dtype).requires_grad_()
        for s in shapes
    ]


def set_gradients(parameters, seed, scale=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    for p in parameters:
        g = scale * torch.randn(p.shape, generator=generator, device="cuda")
        p.grad = torch.empty_like(p).copy_(g)


def twins(optimizer_class, parameters, steps=5, **kwargs):
    """The same run by the loop and by the kernels, which are the default here."""
    copies = [torch.empty_like(p).copy_(p).detach().requires_grad_() for p in parameters]
    loop = optimizer_class(parameters, foreach=False, fused=False, **kwargs)
    kernels = optimizer_class(copies, **kwargs)
    assert (loop.implementation, kernels.implementation) == ("loop", "fused")
    for seed in range(steps):
        for optimizer, params in ((loop, parameters), (kernels, copies)):
            set_gradients(params, seed)
            optimizer.step()
    return loop, kernels, parameters, copies


@pytest.mark.parametrize(("optimizer", "settings"), CASES)
def test_it_follows_the_statement(optimizer, settings):
    parameters = normal([(4, 3), (1025,), (), (0,), (300, 70)])
    on_device = {
        key: value.cuda() if isinstance(value, torch.Tensor) else value
        for key, value in settings.items()
    }
    for chosen in (settings, on_device):
        optimizer_ = optimizer(parameters, **{"lr": 0.05, **chosen})
        assert optimizer_.implementation == "fused"
        references = noisy_run_on_gpu(parameters, optimizer_)
        for p in parameters:
            np.testing.assert_allclose(numpy(p), references[p].p, rtol=3e-5, atol=3e-5)


def noisy_run_on_gpu(parameters, optimizer, steps=6):
    references = {p: Reference(optimizer, numpy(p)) for p in parameters}
    for seed in range(steps):
        set_gradients(parameters, seed)
        before = [p.grad.clone() for p in parameters]
        optimizer.step()
        for p, g in zip(parameters, before, strict=True):
            assert torch.equal(p.grad, g)
            references[p].step(numpy(g))
    return references


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
@pytest.mark.parametrize("gradients", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtype_pairings_round_once_a_step(dtype, gradients, optimizer_class):
    p = torch.randn(5000, device="cuda").to(dtype).requires_grad_()
    p.grad_dtype = gradients
    optimizer = optimizer_class([p], lr=0.01, weight_decay=0.1)
    reference = Reference(optimizer, numpy(p))
    steps = 5
    for _ in range(steps):
        p.grad = torch.randn(5000, device="cuda").to(gradients)
        optimizer.step()
        reference.step(numpy(p.grad))
    unit = torch.finfo(dtype).eps
    np.testing.assert_allclose(numpy(p), reference.p, rtol=steps * unit, atol=2 * steps * unit)
    key = optimizer.moments_of(optimizer.param_groups[0])[0]
    assert optimizer.state[p][key].dtype == torch.float32


def test_state_in_float64():
    _, kernels, a, b = twins(FilterAdam, normal([(5000,)]), state_dtype=torch.float64, eps=1e-3)
    torch.testing.assert_close(a[0], b[0], rtol=1e-4, atol=1e-3)
    assert kernels.state[b[0]]["exp_avg"].dtype == torch.float64


@each_form
def test_bfloat16_state_is_rounded_with_the_bits_of_rounding_py(optimizer_class, settings):
    parameters = normal([(5000,), (7, 9)], torch.bfloat16)
    options = {"state_dtype": torch.bfloat16, "stochastic_rounding": True, "weight_decay": 0.0}
    optimizer = optimizer_class(parameters, lr=0.01, **options, **settings)
    assert_steps_round_the_statement(optimizer, set_gradients)


@pytest.mark.parametrize("optimizer_class", [SGDF, FilterAdam])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 512), (50, 300), (100, 129), (32, 16, 3, 3)])
def test_8_bit_state_is_rounded_with_the_bits_of_rounding_py(shape, dtype, optimizer_class):
    parameters = normal([shape, (7,)], dtype)
    optimizer = optimizer_class(
        parameters, state_dtype=torch.int8, lr=0.01, stochastic_rounding=True, rounding_seed=1
    )
    assert_steps_round_the_statement(optimizer, set_gradients)
    large, small = (optimizer.state[p] for p in parameters)
    assert all(
        large[key].dtype in (torch.int8, torch.uint8)
        for key in optimizer.moments_of(optimizer.param_groups[0])
    )
    assert small["exp_avg"].dtype == torch.float32


@each_form
def test_8_bit_state_of_every_form(optimizer_class, settings):
    """The scales of blocks differ by 10^4: what a program keeps from one must not reach others."""
    parameters = normal([(64, 512), (50, 300), (7,)], torch.bfloat16)
    options = {"state_dtype": torch.int8, "stochastic_rounding": True, "rounding_seed": 7}
    optimizer = optimizer_class(
        parameters, **options, **{"lr": 0.01, "weight_decay": 0, **settings}
    )

    def growing(params, seed):
        set_gradients(params, seed)
        for p in params[:2]:
            p.grad *= torch.logspace(-2, 2, len(p), device="cuda")[:, None]

    assert_steps_round_the_statement(optimizer, growing)


@pytest.mark.parametrize("state_dtype", [None, torch.int8, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("optimizer_class", "settings"), [*FORMS.values(), (FilterAdam, {})])
def test_finite_gradients_give_finite_parameters_and_state(optimizer_class, settings, state_dtype):
    p, still = (torch.ones(16, 256, device="cuda", requires_grad=True) for _ in range(2))
    options = {"state_dtype": state_dtype, "weight_decay": 0.0, **settings}
    moving, standing = (
        optimizer_class([p], lr=1e-3, **options),
        optimizer_class([still], lr=0.0, **options),
    )
    for step in range(6):
        p.grad, still.grad = spiky(step).cuda(), spiky(step).cuda()
        moving.step(), standing.step()
        assert_finite({"p": p, **moving.state[p]}, step)
    assert torch.equal(still, torch.ones_like(still))


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.81), (0.99, 0.9801), (0.5, 0.0)], ids=str)
def test_the_derived_second_moment_at_any_step(betas):
    (p,) = normal([(4000,)])
    optimizer = FilterAdam([p], lr=1.0, betas=betas, second_moment="derived")
    reference = Reference(optimizer, numpy(p))
    for t in (1, 2, 3, 10, 100, 5000, 10**6):
        if t > 1:
            optimizer.state[p]["step"].fill_(t - 1)
        reference.filter.t = t - 1
        before, expected = numpy(p), reference.p
        set_gradients([p], t)
        optimizer.step()
        reference.step(numpy(p.grad))
        ours, theirs = numpy(p) - before, reference.p - expected
        np.testing.assert_allclose(ours, theirs, rtol=3e-4, atol=1e-4, err_msg=str(t))


def test_layouts():
    parameters = [
        torch.randn(16, 8, 3, 3, device="cuda").to(memory_format=torch.channels_last),
        torch.randn(60, 40, device="cuda").t(),
        torch.randn(4001, device="cuda")[1:],
        torch.randn(400, device="cuda")[::3],
    ]
    parameters = [p.detach().requires_grad_() for p in parameters]
    for optimizer_class in OPTIMIZERS:
        optimizer = optimizer_class(parameters, lr=0.01)
        references = noisy_run_on_gpu(parameters, optimizer)
        for p in parameters:
            np.testing.assert_allclose(numpy(p), references[p].p, rtol=3e-5, atol=3e-5)


def test_hundreds_of_tensors():
    shapes = [(i % 50, i % 7 + 1) for i in range(400)]
    _, _, a, b = twins(SGDF, normal(shapes))
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)


def test_a_tensor_past_2_to_the_31_elements():
    p = torch.ones(2**31 + 1000, device="cuda", dtype=torch.bfloat16)
    p.grad = torch.ones_like(p)
    optimizer = SGDF([p], lr=0.5, state_dtype=torch.bfloat16)
    optimizer.step()
    assert p[:1000].eq(0.5).all()
    assert p[-1000:].eq(0.5).all()


def test_gradients_set_to_none_every_step():
    _, kernels, a, b = twins(SGDF, normal([(1000,), (33, 65)]), steps=10)
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-5)
    plans = kernels._plans.groups[id(kernels.param_groups[0]["params"])].plans
    assert len(plans) == 1


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
    for p, q in zip(eager, replayed, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_capturing_a_first_step_is_refused_by_name():
    p = torch.ones(10, device="cuda")
    p.grad = torch.ones_like(p)
    optimizer = SGDF([p], capturable=True)
    graph = torch.cuda.CUDAGraph()
    refused = pytest.raises(RuntimeError, match="run one step before capturing")
    with refused, torch.cuda.graph(graph):
        optimizer.step()


# --- GradScaler, memory, checkpoints, FSDP2 -----------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer_class", "settings"), [*((cls, {}) for cls in OPTIMIZERS), *FORMS.values()]
)
def test_grad_scaler_inside_the_kernel(optimizer_class, settings):
    scaled, plain = normal([(300,), (5,)]), normal([(300,), (5,)])
    optimizer = optimizer_class(scaled, lr=0.01, **settings)
    reference = optimizer_class(plain, lr=0.01, **settings)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2)
    for seed in range(6):
        set_gradients(plain, seed)
        reference.step()
        set_gradients(scaled, seed, scale=scaler.get_scale())
        scaler.scale(torch.zeros((), device="cuda"))  # as a loss would have been
        scaler.step(optimizer)
        scaler.update()
    for p, q in zip(scaled, plain, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)

    before = copy.deepcopy([optimizer.state_dict()["state"], scaled])
    set_gradients(scaled, 9)
    scaled[1].grad[0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    after = [optimizer.state_dict()["state"], scaled]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [False, True])
@each_filter
def test_grad_scaler_and_the_filter(settings, fused):
    """After unscale_; a skipped step leaves gradients, state and counters as they are."""
    scaled, plain = normal([(300,), (64, 512)]), normal([(300,), (64, 512)])
    optimizer = torch.optim.Adam(scaled, lr=0.01, fused=fused)
    reference = torch.optim.Adam(plain, lr=0.01, fused=fused)
    wiener, _ = WienerFilter(optimizer, **settings), WienerFilter(reference, **settings)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10, growth_interval=2)
    for seed in range(6):
        set_gradients(plain, seed)
        reference.step()
        set_gradients(scaled, seed, scale=scaler.get_scale())
        scaler.scale(torch.zeros((), device="cuda"))  # as a loss would have been
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    for p, q in zip(scaled, plain, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)

    before = copy.deepcopy([optimizer.state_dict()["state"], wiener.state_dict()["state"], scaled])
    set_gradients(scaled, 9)
    scaled[1].grad[0] = torch.inf
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    after = [optimizer.state_dict()["state"], wiener.state_dict()["state"], scaled]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


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
    for a, b in zip(p, q, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
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
    parameters, copies = normal([(5000,), (33, 7)]), normal([(5000,), (33, 7)])
    captured, eager = SGDF(parameters, lr=0.1), SGDF(copies, lr=0.1)
    set_gradients(parameters, 0)
    set_gradients(copies, 0)
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
        set_gradients(copies, seed)
        captured.step()
        eager.step()
        junk = [torch.full((64,), -1, dtype=torch.int64, device="cuda") for _ in range(64)]
        for p, g in zip(parameters, static, strict=True):
            p.grad = g
        graph.replay()  # with the gradients of seed 0
        for p, g in zip(copies, static, strict=True):
            p.grad = g.clone()
        eager.step()
        del junk
    for a, b in zip(parameters, copies, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_autograd_notices_that_a_parameter_has_changed(optimizer_class):
    (p,) = normal([(5,)])
    optimizer = optimizer_class([p])
    assert optimizer.implementation == "fused"
    loss = p.square().sum()
    set_gradients([p], 0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    # The version is counted on the host, which is allowed while a graph captures the step.
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
    copies = [p.detach().clone().requires_grad_() for p in parameters]
    optimizer, twin = optimizer_class(parameters, lr=0.0), optimizer_class(copies, lr=0.1)
    for p in parameters:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert not any(v.any() for state in optimizer.state.values() for v in state.values())
    assert len(optimizer.state) == 2
    optimizer.param_groups[0]["lr"] = 0.1
    for seed in range(3):
        for each, params in ((optimizer, parameters), (twin, copies)):
            set_gradients(params, seed)
            each.step()
    for p, q in zip(parameters, copies, strict=True):
        assert torch.equal(p, q)
