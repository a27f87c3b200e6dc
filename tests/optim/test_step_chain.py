"""How much of this package a step runs, and that the first step looks at each parameter once."""

import pytest
import torch

from optim.step_chain import chain_of_a_step
from sgdf import SGDF, FilterAdam, FilterAdamW, Momentum
from sgdf.kernels import cpu, cuda
from sgdf.optim import optimizer as optimizers


@pytest.mark.parametrize("optimizer_class", [SGDF, FilterAdam, FilterAdamW, Momentum])
def test_a_step_on_the_cpu_can_be_followed(optimizer_class):
    chain = chain_of_a_step(optimizer_class)
    files = {file for _, file, _ in chain}
    assert len(files) <= 5, files
    assert len(chain) <= 35, chain
    functions = [function for _, _, function in chain]
    assert functions[0].endswith("FilterOptimizer.step")
    assert functions.count("FilterOptimizer._prepare") == 1
    assert functions.count("step") == 1  # of one kernel
    assert sum(function.endswith(".rule") for function in functions) == 1  # settings are read once


@pytest.mark.parametrize("path", ["cpu", "cuda"])
def test_the_first_step_is_not_quadratic_in_the_number_of_parameters(path, monkeypatch):
    """The path of a group is chosen once, whatever the number of its parameters."""
    module = cuda if path == "cuda" else cpu
    counts = {"paths": 0, "suits": 0}

    def counted(name, function):
        def call(*arguments):
            counts[name] += 1
            return function(*arguments)

        return call

    if path == "cuda":
        pytest.importorskip("triton")
        monkeypatch.setattr(cuda, "DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(optimizers, "choose_path", counted("paths", optimizers.choose_path))
    monkeypatch.setattr(module, "suits", counted("suits", module.suits))
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(30)]
    for p in parameters:
        p.grad = torch.ones(2)
    FilterAdamW(parameters).step()
    assert counts == {"paths": 1, "suits": 1}
