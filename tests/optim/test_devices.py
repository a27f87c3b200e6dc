"""A default device changes nothing, and every tensor that is made names its device."""

import ast
from pathlib import Path

import pytest
import torch

import sgdf
from reference import OPTIMIZERS
from sgdf import WienerFilter
from stepping import PATHS, each_path

FACTORIES = {
    "arange", "empty", "empty_strided", "eye", "full", "hann_window", "linspace", "logspace",
    "ones", "rand", "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros",
}  # fmt: skip


def run(optimizer_class, flags, default):
    p = torch.nn.Parameter(torch.linspace(-1, 1, 40, device="cpu").reshape(5, 8))
    optimizer = optimizer_class([p], lr=0.1, **flags)
    with torch.device(default):
        for step in range(3):
            p.grad = torch.full((8, 5), 0.5 + step, device="cpu").t()  # laid out otherwise
            optimizer.step()
    return [p.detach(), *(value for value in optimizer.state[p].values())]


@each_path
@pytest.mark.parametrize("optimizer_class", OPTIMIZERS)
def test_a_default_device_changes_nothing(optimizer_class, path):
    expected = run(optimizer_class, PATHS[path], "cpu")
    torch.testing.assert_close(run(optimizer_class, PATHS[path], "meta"), expected, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [None, False])
def test_nor_for_the_filter_in_front_of_another_optimizer(fused):
    gradients = []
    for default in ("cpu", "meta"):
        p = torch.nn.Parameter(torch.ones(40, device="cpu"))
        optimizer = torch.optim.SGD([p], lr=0.1)
        WienerFilter(optimizer, fused=fused)
        for step in range(3):
            p.grad = torch.full((40,), 0.5 + step, device="cpu")
            with torch.device(default):
                optimizer.step()
        gradients.append(p.grad)
    assert torch.equal(*gradients)


def test_every_tensor_that_is_made_names_its_device():
    found = []
    for file in Path(sgdf.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
            if of_torch and node.func.attr in FACTORIES:
                named = {keyword.arg for keyword in node.keywords}
                if "device" not in named:
                    found.append(f"{file.name}:{node.lineno} torch.{node.func.attr}")
    assert not found
