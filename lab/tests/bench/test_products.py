"""The counted products of a matrix step are those that torch counts."""

from pathlib import Path

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
    assert 0.75 < ours / muon < 0.85


def test_the_page_has_the_estimate():
    basis = products.FILTER_MUON_BYTES + products.EIGENBASIS_BYTES
    steps = {
        "torch's Muon": (products.of_torchs_muon, products.MUON_BYTES),
        "FilterMuon": (
            lambda m, n: products.of_filter_muon(m, n, False), products.FILTER_MUON_BYTES
        ),
        "FilterMuon, eigenbasis": (lambda m, n: products.of_filter_muon(m, n, True), basis),
        "FilterSOAP": (products.of_filter_soap, basis),
    }  # fmt: skip
    page = (Path(__file__).parents[3] / "docs" / "matrices.md").read_text(encoding="utf-8")
    table = page.partition("<!-- tested by")[2].partition("So on a GPU")[0]
    for name, title in (("resnet18", "ResNet-18"), ("gpt-11m", "GPT, 11 M"),
                        ("gpt-124m", "GPT, 124 M")):  # fmt: skip
        shapes = LISTS[f"{name}-matrices"].shapes()
        for step, (counted, moved) in steps.items():
            each = [counted(*shape) for shape in shapes]
            gigabytes = moved * sum(rows * columns for rows, columns in shapes) / 1e9
            rough, full = (sum(x) / 1e9 for x in list(zip(*each, strict=True))[:2])
            ms = products.milliseconds(shapes, each, products.H200, moved)
            row = f"| {title} | {step} | {rough:.0f} | {full:.0f} | {gigabytes:.1f} | {ms:.1f} |"
            assert row in table
