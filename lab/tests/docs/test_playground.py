"""The playground: its arithmetic is the package's, it loads nothing, and it fits a phone."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from docs.links import Page
from reference import Reference
from report.browser import Browser
from sgdf import SGDF, FilterAdam
from sgdf.filter import bias_corrections, wiener_filter
from sgdf_lab import optimizers

pytestmark = pytest.mark.slow  # a browser

PAGE = Path(__file__).parents[3] / "docs" / "playground" / "index.html"
PAPERS = ["https://arxiv.org/abs/2603.06120", "https://arxiv.org/abs/2311.02818"]
STEPS = 300
VIEWS = ("filter", "valley")
PHONE, DESKTOP = 390, 1280

#: The gains that the page offers: scale and power.
GAINS = {"2K": (2.0, 1.0), "K": (1.0, 1.0), "root K": (1.0, 0.5), "constant": (0.1, 0.0),
         "none": (0.0, 1.0), "own": (1.25, 1.75)}  # fmt: skip
CURVATURE = [[0.2, -0.3], [-0.3, 0.9]]
START = [-9.0, 3.0]


@pytest.fixture(scope="module")
def page(browser: Browser) -> Browser:
    """The playground, open: for tests that only call its functions."""
    browser.open(PAGE)
    return browser


def noise(seed: int = 0, size: tuple[int, ...] = (STEPS,)) -> np.ndarray:
    return np.random.default_rng(seed).standard_t(3, size=size)


def call(browser: Browser, function: str, *arguments: Any) -> dict[str, np.ndarray]:
    """The arrays that a function of the page returns; JSON keeps every digit of a float64."""
    given = ", ".join(json.dumps(argument) for argument in arguments)
    script = (
        f"Object.fromEntries(Object.entries(playground.{function}({given}))"
        ".map(([name, values]) => [name, Array.from(values)]))"
    )
    return {
        name: np.array(values, dtype=np.float64)
        for name, values in browser.evaluate(script).items()
    }


def close(measured: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to rounding, relative to the size of the series: single values may be near 0."""
    assert measured.shape == expected.shape
    assert np.isfinite(expected).all()
    error = np.abs(measured - expected) / np.maximum(np.abs(expected), np.abs(expected).mean())
    assert error.max() < 1e-12


# --- the filter ----------------------------------------------------------------------------------


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.99, 0.5), (0.0, 0.9999)], ids=str)
@pytest.mark.parametrize("gain", GAINS)
def test_the_filter_is_the_packages(page, gain, betas):
    (scale, power), eps = GAINS[gain], 1e-8
    series = noise() + np.sin(np.arange(STEPS) / 20)
    settings = {"betas": betas, "eps": eps, "gain_scale": scale, "gain_power": power}
    found = call(page, "filter", series.tolist(), settings)
    m, s, averages, estimates = 0.0, 0.0, [], []
    for t, g in enumerate(series.tolist(), start=1):
        corrections = bias_corrections(t, *betas)
        estimate, m, s = wiener_filter(
            g, m, s, corrections, beta1=betas[0], beta2=betas[1], eps=eps, gain_scale=scale,
            gain_power=power,
        )  # fmt: skip
        averages.append(m / corrections.trend)
        estimates.append(estimate)
    close(found["mHat"], np.array(averages))
    close(found["gHat"], np.array(estimates))
    residual = series - averages
    close(found["mHat"] + found["gain"] * residual, np.array(estimates))
    assert found["gain"].min() >= 0
    assert found["gain"].max() <= scale


def test_gradients_of_zero_give_zero_without_eps(page):
    settings = {"betas": (0.9, 0.999), "eps": 0, "gain_scale": 2, "gain_power": 1}
    assert call(page, "filter", [0.0] * 5, settings)["gHat"].tolist() == [0.0] * 5


# --- the optimizers ------------------------------------------------------------------------------


def by_torch(make: Callable[[Any], torch.optim.Optimizer], shake: np.ndarray) -> np.ndarray:
    """The path of an optimizer in float64 over the valley, with this noise."""
    p = torch.nn.Parameter(torch.tensor(START, dtype=torch.float64))
    curvature, optimizer = torch.tensor(CURVATURE, dtype=torch.float64), make([p])
    path = [p.detach().numpy().copy()]
    for n in torch.from_numpy(shake):
        p.grad = curvature @ p.detach() + n
        optimizer.step()
        path.append(p.detach().numpy().copy())
    return np.array(path)


def by_reference(optimizer: torch.optim.Optimizer, shake: np.ndarray) -> np.ndarray:
    """The same by the float64 statement."""
    reference = Reference(optimizer, START)
    path = [reference.p]
    for n in shake:
        reference.step(np.array(CURVATURE) @ reference.p + n)
        path.append(reference.p)
    return np.array(path)


def by_page(browser: Browser, name: str, lr: float, shake: np.ndarray, **settings: Any):
    common = {"betas": (0.9, 0.999), "eps": 1e-8, "gain_scale": 2, "gain_power": 1,
              "momentum": 0.9, "curvature": CURVATURE, "start": START, "lr": lr,
              "noise": dict(zip("xy", shake.T.tolist(), strict=True))}  # fmt: skip
    found = call(browser, "optimize", name, {**common, **settings})
    return np.stack([found["x"], found["y"]], axis=1), found["loss"]


PLAIN = {
    "sgd": (0.3, lambda p: torch.optim.SGD(p, lr=0.3)),
    "momentum": (0.03, lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9)),
    "nesterov": (0.03, lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True)),
    "adam": (0.1, lambda p: torch.optim.Adam(p, lr=0.1)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_the_other_optimizers_are_torchs(page, name):
    lr, make = PLAIN[name]
    shake = noise(1, (STEPS, 2))
    path, loss = by_page(page, name, lr, shake)
    close(path, by_torch(make, shake))
    close(loss, np.einsum("ti,ij,tj->t", path, np.array(CURVATURE), path) / 2)


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize(("name", "kind", "lr"), [("sgdf", SGDF, 0.3),
                                                  ("filter-adam", FilterAdam, 0.1)])  # fmt: skip
def test_the_filters_optimizers_are_the_packages(page, name, kind, lr, gain):
    scale, power = GAINS[gain]
    settings = {"betas": (0.9, 0.99), "gain_scale": scale, "gain_power": power}
    shake = noise(2, (STEPS, 2))
    path, _ = by_page(page, name, lr, shake, **settings)

    def make(params: Any) -> torch.optim.Optimizer:
        return kind(params, lr=lr, fused=False, **settings)

    close(path, by_torch(make, shake))
    close(path, by_reference(make([torch.zeros(2, dtype=torch.float64)]), shake))


# --- the random numbers --------------------------------------------------------------------------


def test_noise_has_variance_one_and_the_tails_asked_for(page):
    script = (
        "(() => {{ const next = playground.noiseSource({seed}, 1, {tails});"
        " return Array.from({{length: 40000}}, next) }})()"
    )
    normal = np.array(page.evaluate(script.format(seed=1, tails=0)))
    heavy = np.array(page.evaluate(script.format(seed=1, tails=0.25)))  # 4 degrees of freedom
    other = np.array(page.evaluate(script.format(seed=2, tails=0)))
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.02
    assert abs(heavy.std() - 1) < 0.1
    assert np.mean(abs(normal) > 4) < 3e-4 < 2e-3 < np.mean(abs(heavy) > 4)
    assert abs(np.corrcoef(normal[1:], normal[:-1])[0, 1]) < 0.02
    assert abs(np.corrcoef(normal, other)[0, 1]) < 0.02
    np.testing.assert_array_equal(normal, page.evaluate(script.format(seed=1, tails=0)))


# --- the page ------------------------------------------------------------------------------------


def show(browser: Browser, view: str, **settings: Any) -> None:
    """Open a view and wait until it is drawn."""
    chosen = json.dumps({"view": view, **settings})
    browser.evaluate(
        f"playground.change({chosen}); new Promise(done => "
        "requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def cells(browser: Browser, table: str) -> list[list[str]]:
    rows = f"[...document.querySelectorAll('#{table} tr')]"
    return browser.evaluate(f"{rows}.map(row => [...row.cells].map(cell => cell.innerText))")


def test_the_errors_shown_are_those_of_the_series_shown(browser):
    browser.open(PAGE)
    chosen = {"noise": 1.5, "drift": 0.2, "tails": 0.1, "steps": 200, "seed": 4, "shape": "walk"}
    show(browser, "filter", **chosen, scale=1, power=0.5, b1=0.8, b2=0.99)
    series = call(browser, "makeSeries", chosen)
    settings = {"betas": (0.8, 0.99), "eps": 1e-8, "gain_scale": 1, "gain_power": 0.5}
    found = call(browser, "filter", series["gradient"].tolist(), settings)
    estimates = (series["gradient"], found["mHat"], found["gHat"])
    expected = [np.mean((estimate - series["signal"]) ** 2) for estimate in estimates]
    shown = [float(row[2]) for row in cells(browser, "errors")]
    assert shown == pytest.approx(expected, rel=5e-3)
    np.testing.assert_allclose(np.diff(series["signal"]).std(), 0.2, rtol=0.2)
    np.testing.assert_allclose(expected[0], 1.5**2, rtol=0.4)


def test_momentum_gets_the_rate_that_moves_as_far_as_sgds(browser):
    browser.open(PAGE)
    show(browser, "valley", lr=0.2, b1=0.95, adam=0.05)
    rates = {row[0].strip(): float(row[1]) for row in cells(browser, "paths")}
    assert rates == {"SGD": 0.2, "Momentum": 0.01, "Nesterov": 0.01, "Adam": 0.05, "SGDF": 0.2,
                     "FilterAdam": 0.05}  # fmt: skip


def test_an_optimizer_can_be_hidden_and_a_diverged_one_is_named(browser):
    browser.open(PAGE)
    show(browser, "valley", lr=2.1, shake=0, travel=1000)
    assert cells(browser, "paths")[0][2] == "diverged"
    before = browser.evaluate("document.getElementById('valley-map').toDataURL()")
    browser.evaluate("document.querySelector('[data-optimizer=adam]').click()")
    show(browser, "valley")
    assert browser.evaluate("playground.link()").startswith("view=valley&hide=adam")
    assert browser.evaluate("document.getElementById('valley-map').toDataURL()") != before


def test_the_pointer_reads_numbers_and_lets_go_of_a_step_that_is_gone(browser):
    browser.open(PAGE)
    point = (
        "(() => {{ const chart = document.getElementById('{chart}');"
        " const box = chart.getBoundingClientRect(); chart.dispatchEvent(new PointerEvent("
        "'pointermove', {{clientX: box.right - 8, clientY: box.top + 9}})) }})()"
    )
    for view, chart, steps in (("filter", "series", "steps"), ("valley", "losses", "travel")):
        show(browser, view, **{steps: 1000})
        browser.evaluate(point.format(chart=chart))
        readout = f"document.getElementById('{chart}-readout').innerText"
        browser.evaluate("new Promise(done => requestAnimationFrame(() => done()))")
        assert browser.evaluate(readout).startswith("step 1000: ")
        show(browser, view, **{steps: 50})
        assert browser.evaluate(readout).startswith("Point at the chart")
    assert browser.problems == []


def test_colours_are_the_projects(browser):
    browser.open(PAGE)
    for name, row in {"sgdf": "sgdf", "momentum": "sgd", "adam": "adam"}.items():
        style = "getComputedStyle(document.documentElement)"
        colour = browser.evaluate(f"{style}.getPropertyValue('--{name}').trim()")
        assert colour == optimizers.style(row).colour.lower()


def test_the_page_is_small_and_loads_nothing():
    text = PAGE.read_text(encoding="utf-8")
    assert PAGE.stat().st_size < 500_000
    page = Page(PAGE)
    assert page.loads == ["data:,"]  # an empty icon: a browser would ask a server for one
    assert set(page.links) == {*PAPERS, "../index.html"}
    assert re.findall(r"https?://[^\s\"'<]+", text) == PAPERS
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(|sendBeacon", text)


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_both_views_work_without_errors_or_sideways_scrolling(browser, width):
    browser.open(PAGE, width=width)
    for view in VIEWS:
        # The longest numbers, and the rates with which SGD diverges.
        for settings in ({}, {"noise": 0, "shake": 3, "lr": 2.1, "tails": 0.45, "scale": 0.07}):
            show(browser, view, **settings)
            shown = "document.documentElement.scrollWidth"
            assert browser.evaluate(shown) == width, (view, settings)
            assert drawn_share(browser, view) > 0.005
    assert browser.problems == []
    assert browser.requests == [PAGE.resolve().as_uri()]


def drawn_share(browser: Browser, view: str) -> float:
    """The smallest share of pixels that are not empty, over the canvases of a view."""
    return browser.evaluate(
        f"Math.min(...[...document.querySelectorAll('#{view}-view canvas')].map(canvas => {{"
        " const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
        " return pixels.data.filter((_, i) => i % 4 == 3).filter(Boolean).length"
        " / (canvas.width * canvas.height) }))"
    )


def test_canvases_have_the_pixels_of_the_display(browser):
    browser.open(PAGE)
    browser.send("Emulation.setDeviceMetricsOverride", width=PHONE, height=844,
                 deviceScaleFactor=3, mobile=True)  # fmt: skip
    for view in VIEWS:
        show(browser, view)
        ratios = browser.evaluate(
            f"[...document.querySelectorAll('#{view}-view canvas')].map(canvas => "
            "canvas.width / canvas.getBoundingClientRect().width)"
        )
        assert ratios == pytest.approx([3, 3], abs=0.01)


def test_every_slider_has_a_label_and_obeys_the_keyboard(browser):
    browser.open(PAGE)
    for view in VIEWS:
        show(browser, view)
        names = browser.evaluate(
            f"[...document.querySelectorAll('#{view}-view input')]"
            ".map(input => [...input.labels].map(label => label.innerText.trim()).join())"
        )
        assert len(names) > 8
        assert all(names)
    browser.evaluate("document.getElementById('valley-seed').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight",
                     windowsVirtualKeyCode=39)  # fmt: skip
    assert browser.evaluate("playground.link()") == "view=valley&seed=2"
    slider = "document.getElementById('valley-seed')"
    assert browser.evaluate(f"{slider}.getAttribute('aria-valuetext')") == "2"
    assert browser.evaluate(f"{slider}.labels[0].querySelector('output').value") == "2"


def follow(browser: Browser, link: str) -> None:
    """Open a link to the page that is open, as from the address bar."""
    browser.evaluate(
        "new Promise(done => { addEventListener('hashchange', () => done(), {once: true});"
        f" location.hash = {json.dumps(link)} }})"
    )


def test_a_link_carries_all_settings(browser):
    browser.open(PAGE)
    errors = "document.getElementById('errors').innerText"
    first = browser.evaluate(errors)
    show(browser, "filter", b1=0.95, scale=1, power=0.5, drift=0.5, seed=7, shape="wave")
    moved, link = browser.evaluate(errors), browser.evaluate("playground.link()")
    assert moved != first
    browser.evaluate(  # the page writes its own address, a little later
        "new Promise(done => { (function look() { location.hash.length > 1 ? done()"
        " : setTimeout(look, 20) })() })"
    )
    assert browser.evaluate("location.hash") == f"#{link}"
    follow(browser, "view=filter")
    assert browser.evaluate(errors) == first
    follow(browser, link)
    assert browser.evaluate(errors) == moved
    assert browser.evaluate("playground.link()") == link


def test_a_broken_link_is_read_as_far_as_it_can_be(browser):
    browser.open(PAGE)
    follow(browser, "view=<b>&b1=x&b2=1e999&drift=99&seed=-5&shape=spiral&hide=adam.nobody")
    assert browser.evaluate("playground.link()") == "hide=adam&drift=1"
    assert browser.problems == []
