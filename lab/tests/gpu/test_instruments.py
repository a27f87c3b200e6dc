"""The instruments on a GPU: the CPU's numbers, whatever TF32 is set to, and in reasonable time."""

import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sgdf_lab import models
from sgdf_lab.instruments import evaluation, landscape

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def convnet():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(inplace=True),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    x, y = torch.randn(60, 3, 10, 10), torch.randint(0, 10, (60,))
    return model, [(x[:37], y[:37]), (x[37:], y[37:])]


@pytest.fixture(autouse=True)
def tf32():
    """As the trainer leaves it."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


def test_the_spectrum_is_the_cpus():
    pytest.importorskip("curvlinops")
    from sgdf_lab.instruments.hessian import spectrum

    model, data = convnet()
    settings = {"k": 20, "trace_samples": 20, "progress": False}
    on_cpu = spectrum(model, F.cross_entropy, data, **settings)
    state = torch.cuda.get_rng_state()
    on_gpu = spectrum(model.cuda(), F.cross_entropy, data, **settings)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert on_gpu.parameters > 500
    np.testing.assert_allclose(on_gpu.eigenvalues, on_cpu.eigenvalues, rtol=1e-4)
    assert on_gpu.trace == pytest.approx(on_cpu.trace, rel=1e-3)
    assert np.trapezoid(on_gpu.density, on_gpu.grid) == pytest.approx(1, abs=1e-3)
    again = spectrum(model, F.cross_entropy, data, **settings)
    np.testing.assert_allclose(again.eigenvalues, on_gpu.eigenvalues, rtol=1e-5)


def test_the_surface_is_the_cpus(tmp_path):
    model, data = convnet()
    on_cpu = landscape.surface(model, F.cross_entropy, data, size=5, progress=False)
    file = tmp_path / "surface.npz"
    on_gpu = landscape.surface(
        model.cuda(), F.cross_entropy, data, size=5, progress=False, save=file
    )
    np.testing.assert_allclose(on_gpu.values, on_cpu.values, rtol=1e-4)
    again = landscape.surface(model, F.cross_entropy, data, size=5, progress=False, save=file)
    assert np.array_equal(again.values, on_gpu.values)


def test_the_path_is_the_cpus():
    model, _ = convnet()
    checkpoints = []
    for seed in range(4):
        torch.manual_seed(seed)
        moved = {n: p + 0.1 * torch.randn_like(p) for n, p in model.named_parameters()}
        checkpoints.append({name: value.detach() for name, value in moved.items()})
    on_cpu = landscape.path(model, checkpoints)
    on_gpu = landscape.path(model.cuda(), checkpoints)
    np.testing.assert_allclose(on_gpu.points, on_cpu.points, rtol=1e-4, atol=1e-4)
    assert on_gpu.directions[0]["0.weight"].is_cuda


def test_a_row_of_a_resnet18_takes_as_long_as_its_losses():
    """A surface costs little more than the losses at its points."""
    model = models.build_classifier("resnet18", classes=10, shape=(3, 32, 32)).cuda()
    model.to(memory_format=torch.channels_last)
    x, y = torch.randn(2000, 3, 32, 32), torch.randint(0, 10, (2000,))
    data = list(zip(x.cuda().split(1000), y.cuda().split(1000), strict=True))

    def surface():
        landscape.surface(model, F.cross_entropy, data, size=21, dimensions=1, progress=False)

    def losses():
        with evaluation.eval_mode_restored(model, 0):
            for _ in range(21):
                evaluation.mean_loss(model, {}, F.cross_entropy, data).item()

    def seconds(work):
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    surface()
    # The best of three, in turns: others may be using the GPU.
    whole, bare = (
        min(times)
        for times in zip(*((seconds(surface), seconds(losses)) for _ in range(3)), strict=True)
    )
    assert whole < 1.5 * bare


def test_a_spectrum_of_resnet18():
    pytest.importorskip("curvlinops")
    from sgdf_lab.instruments.hessian import spectrum

    model = models.build_classifier("resnet18", classes=10, shape=(3, 32, 32)).cuda()
    x, y = torch.randn(200, 3, 32, 32), torch.randint(0, 10, (200,))
    found = spectrum(
        model, F.cross_entropy, [(x, y)], k=5, trace_samples=4, density=False, progress=False
    )
    assert np.isfinite(found.eigenvalues).all()
    assert found.parameters > 11_000_000
