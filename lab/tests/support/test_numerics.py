"""One norm for everything, accurate on every device."""

import math

import pytest
import torch

from sgdf_lab.support.numerics import column_norms, joint_norm


def test_the_norm_of_millions_of_float32_numbers():
    """torch's own float32 norm on a CPU is off by 4e-4 here."""
    count = 11_000_000
    values = torch.full((count,), 0.1)
    exact = 0.1 * math.sqrt(count)
    assert joint_norm([values]).item() == pytest.approx(exact, rel=1e-7)
    assert column_norms(values).item() == pytest.approx(exact, rel=1e-7)
    parts = values.split(count // 7)
    assert joint_norm(parts).item() == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64]
)
def test_of_every_dtype(dtype):
    values = [torch.tensor([3, 0], dtype=dtype), torch.tensor([[4]], dtype=dtype)]
    assert joint_norm(values).item() == 5
    assert joint_norm(values).dtype == torch.float64


def test_squares_that_overflow_float32():
    assert joint_norm([torch.tensor([3e30, 4e30])]).item() == pytest.approx(5e30)
    assert joint_norm([torch.tensor([3e-30, 4e-30])]).item() == pytest.approx(5e-30)


def test_edges():
    assert joint_norm([]).item() == 0
    assert joint_norm([torch.empty(0), torch.tensor(2.0)]).item() == 2
    assert math.isnan(joint_norm([torch.tensor([math.nan])]).item())
    assert column_norms(torch.tensor([[3.0, 0.0], [4.0, 2.0]])).tolist() == [5, 2]
