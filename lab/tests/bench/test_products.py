"""The counted products of a matrix step are those that torch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from sgdf import FilterMuon, FilterSOAP
from sgdf_lab.bench import products
from sgdf_lab.bench.contestants import LISTS

SHAPES = [(12, 12), (12, 36), (48, 12)]
FORMS = {
    "muon": (torch.optim.Muon, {}, products.of_torchs_muon),
    "filter muon": (FilterMuon, {}, lambda m, n: products.of_filter_muon(m, n, False)),
    "eigenbasis": (
        FilterMuon,
        {"eigenbasis": True, "max_basis_dim": 40},
        lambda m, n: products.of_filter_muon(m, n, True, 40),
    ),
    "soap": (FilterSOAP, {"max_basis_dim": 20}, lambda m, n: products.of_filter_soap(m, n, 20)),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_counts_are_those_of_a_step(form):
    cls, options, counted = FORMS[form]
    params = [torch.randn(shape, requires_grad=True) for shape in SHAPES]
    for p in params:
        p.grad = torch.randn_like(p)
    optimizer = cls(params, lr=1e-3, **options)
    optimizer.step()  # the first one only builds the basis
    with FlopCounterMode(display=False) as counter:
        for _ in range(products.REFRESH_INTERVAL):
            optimizer.step()
    each = [counted(*shape) for shape in SHAPES]
    wanted = products.REFRESH_INTERVAL * sum(one.rough + one.full for one in each)
    assert counter.get_total_flops() == pytest.approx(wanted, rel=1e-12)


def test_the_estimate_adds_products_and_passes():
    device = products.Device(rough=1e9, full=1e8, qr=1e7, memory=1e6)
    one = products.Products(rough=2e6, full=3e5, qr=4e4)
    # 2 + 3 + 4 ms of products and 10 bytes for each of 200 parameters.
    assert products.milliseconds([(10, 20)], [one], device, 10) == pytest.approx(9 + 2)
    shapes = LISTS["gpt-11m-matrices"].shapes()
    muon, ours = (
        sum(count(*shape).rough for shape in shapes)
        for count in (products.of_torchs_muon, lambda m, n: products.of_filter_muon(m, n, False))
    )
    assert 0.7 < ours / muon < 0.75
