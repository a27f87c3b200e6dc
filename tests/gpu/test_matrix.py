"""FilterMuon and FilterSOAP on a GPU: the rule, TF32, CUDA graphs, 8 bits (`make test-gpu`).

All but the graph itself runs on the CPU as well, which finds mistakes of the tests.
"""

from copy import deepcopy

import pytest
import torch

from optim.test_matrix import FORMS, by_the_rule, gradients, parameter, run
from sgdf import FilterMuon, FilterSOAP
from stepping import advance, assert_bitwise, normal, set_gradients, through_a_file

on_gpu = pytest.param("cuda", marks=pytest.mark.gpu)
each_device = pytest.mark.parametrize("device", ["cpu", on_gpu])


@each_device
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(5, 8), (8, 5), (6, 6)])
def test_the_optimizer_is_the_rule(form, shape, device):
    """In float64. A side of 8 keeps its coordinates: rounding would choose its first basis."""
    cls, options = FORMS[form]
    p = parameter(shape).detach().to(device).requires_grad_()
    grads = [g.to(device) for g in gradients(shape, 12)]
    optimizer = cls([p], lr=0.02, basis_interval=3, **{**options, "max_basis_dim": 6})
    wanted, _ = by_the_rule(p, grads, optimizer)
    run(optimizer, [[g] for g in grads])
    torch.testing.assert_close(p.detach(), wanted, rtol=1e-8, atol=1e-10)


@pytest.fixture
def rough_products():
    """The model may use TF32 on a GPU, bfloat16 on a CPU."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@each_device
def test_factors_are_exact_whatever_the_model_is_allowed(device, rough_products):
    shape, decay = (300, 200), 0.95
    p = parameter(shape, dtype=torch.float32).detach().to(device).requires_grad_()
    grads = [g.to(device) for g in gradients(shape, 4, dtype=torch.float32)]
    optimizer = FilterSOAP([p], lr=0.01, basis_decay=decay, basis_interval=2)
    run(optimizer, [[g] for g in grads])
    for side in ("left", "right"):
        wanted = 0.0
        for g in grads:
            x = g.double() if side == "left" else g.double().mT
            wanted = decay * wanted + (1 - decay) * x @ x.mT
        error = (optimizer.state[p][f"factor_{side}"] - wanted).abs().max() / wanted.abs().max()
        assert error < 1e-5  # with ten bits more than 1e-4
        basis = optimizer.state[p][f"basis_{side}"].double()
        assert (basis.mT @ basis - torch.eye(len(basis), device=device)).abs().max() < 1e-4
    assert torch.get_float32_matmul_precision() == "medium"


def captured(optimizer):
    """What takes the optimizer's step: on a GPU a graph that replays it, after one step."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    if not params[0].is_cuda:
        return optimizer.step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        optimizer.step()  # the state exists
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    return graph.replay


@each_device
@pytest.mark.parametrize("settings", [{}, {"gain_scale": 2.0, "gain_power": 1.0}], ids=str)
def test_a_graph_replays_its_steps(settings, device):
    params = normal([(48, 64), (64, 48), (48, 64), (32, 32), (7,)], device=device)
    others = deepcopy(params)
    eager = FilterMuon(others, lr=0.01, **settings)
    replayed = FilterMuon(params, lr=torch.tensor(0.01, device=device), capturable=True, **settings)
    for p in (*params, *others):
        p.grad = torch.zeros_like(p)  # a graph keeps the addresses

    def write_gradients(seed):
        drawn = [torch.zeros_like(p) for p in params]
        set_gradients(drawn, seed)
        for p, q, x in zip(params, others, drawn, strict=True):
            p.grad.copy_(x.grad)
            q.grad.copy_(x.grad)

    write_gradients(0)
    eager.step()
    step = captured(replayed)
    if device == "cpu":
        step()
    for seed in range(1, 6):
        write_gradients(seed)
        eager.step()
        step()
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-4)
        assert float(replayed.state[p]["step"]) == 6


@each_device
@pytest.mark.parametrize("cls", [FilterMuon, FilterSOAP])
def test_averages_in_8_bits_are_resumed_to_the_byte(cls, device):
    shapes = [(40, 256), (40, 256), (20, 300), (5, 6)]
    params = normal(shapes, device=device)
    settings = {"lr": 0.01, "state_dtype": torch.int8}
    if cls is FilterSOAP:
        settings["basis_interval"] = 2
    optimizer = cls(params, **settings)
    advance(optimizer, 4)
    kept = [optimizer.state[p]["exp_avg"].dtype for p in params]
    assert kept == [torch.int8] * 3 + [torch.float32]
    saved = through_a_file(optimizer.state_dict())
    resumed = [p.detach().clone().requires_grad_() for p in params]
    again = cls(resumed, **settings)
    again.load_state_dict(saved)
    for one in (optimizer, again):
        advance(one, 5, first=4)
    assert_bitwise(resumed, params)
    for p, q in zip(params, resumed, strict=True):
        assert_bitwise(again.state[q], optimizer.state[p])
