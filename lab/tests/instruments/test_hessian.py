"""The Hessian's spectrum against the whole matrix, and the model left as it was."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from sgdf_lab.instruments import hessian
from sgdf_lab.instruments.hessian import spectrum

pytest.importorskip("curvlinops")
pytest.importorskip("scipy")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # all here is too small for more
    yield
    torch.set_num_threads(threads)


def convnet():
    """With batch norm that has seen data, dropout, and weights that training has moved."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(128, 5),
    ).double()
    x, y = torch.randn(40, 1, 6, 6).double(), torch.randint(0, 5, (40,))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(30):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model, x, y


def whole_hessian(model, loss, x, y):
    """In float64, in eval mode, of the mean over all images at once."""
    model = copy.deepcopy(model).double().eval()
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p.detach() for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in parameters]

    def value(flat):
        parts = {
            name: part.view_as(p)
            for name, part, p in zip(names, flat.split(sizes), parameters, strict=True)
        }
        return loss(functional_call(model, parts, (x.double(),)), y)

    matrix = torch.func.hessian(value)(torch.cat([p.flatten() for p in parameters]))
    return matrix.detach().numpy()


def uneven(x, y, first):
    return [(x[:first], y[:first]), (x[first:], y[first:])]


@pytest.fixture(scope="module")
def measured():
    """The spectrum on uneven batches, the whole matrix, and the model before and after."""
    model, x, y = convnet()
    model[1].eval()  # modules need not all be in one mode
    model[0].bias.requires_grad_(False)
    before = copy.deepcopy(model)
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    random = torch.get_rng_state()
    found = spectrum(model, F.cross_entropy, uneven(x, y, 31), k=50, progress=False)
    assert torch.equal(torch.get_rng_state(), random)
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(p.grad, gradient)
    return found, whole_hessian(model, F.cross_entropy, x, y), before, model


def test_the_top_50_are_those_of_the_whole_matrix(measured):
    found, matrix, _, _ = measured
    assert found.parameters == len(matrix) > hessian.DENSE  # so that products are used
    expected = np.linalg.eigvalsh(matrix)[::-1]
    np.testing.assert_allclose(found.eigenvalues, expected[:50], rtol=1e-4)
    assert found.largest == found.eigenvalues[0]


def test_the_trace_is_right_within_its_standard_error(measured):
    found, matrix, _, _ = measured
    assert 0 < found.trace_standard_error < 0.05 * np.trace(matrix)
    assert abs(found.trace - np.trace(matrix)) < 3.5 * found.trace_standard_error


def test_the_density_has_the_moments_of_the_spectrum(measured):
    found, matrix, _, _ = measured
    expected = np.linalg.eigvalsh(matrix)
    assert np.trapezoid(found.density, found.grid) == pytest.approx(1, abs=1e-4)
    assert found.weights.sum() == pytest.approx(1)
    assert (found.weights * found.nodes).sum() == pytest.approx(expected.mean(), rel=0.2)
    assert (found.weights * found.nodes**2).sum() == pytest.approx((expected**2).mean(), rel=0.1)
    assert found.nodes.min() == pytest.approx(expected.min(), rel=0.02)
    assert expected.min() < 0  # the most negative ones are found as well
    middle = np.trapezoid(np.where(found.grid < 0.5, found.density, 0), found.grid)
    assert middle == pytest.approx((expected < 0.5).mean(), abs=0.05)


def test_the_model_is_left_as_it_was(measured):
    found, _, before, after = measured
    assert "eval mode" in found.mode
    for old, new in zip(before.modules(), after.modules(), strict=True):
        assert old.training == new.training
    for (name, old), new in zip(
        before.state_dict().items(), after.state_dict().values(), strict=True
    ):
        assert torch.equal(old, new), name
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert old.requires_grad == new.requires_grad


def linear(inputs=4, outputs=3):
    torch.manual_seed(1)
    model = nn.Linear(inputs, outputs).double()
    return model, torch.randn(10, inputs).double(), torch.randn(10, outputs).double()


def small(model, loss, data, k=3, **settings):
    return spectrum(model, loss, data, k=k, progress=False, **settings)


def test_a_small_model_gets_its_whole_matrix():
    model, x, y = linear()
    found = small(model, F.mse_loss, uneven(x, y, 7), k=15)
    matrix = whole_hessian(model, F.mse_loss, x, y)
    np.testing.assert_allclose(
        found.eigenvalues, np.linalg.eigvalsh(matrix)[::-1], rtol=1e-8, atol=1e-12
    )
    assert found.trace == pytest.approx(np.trace(matrix))
    assert found.trace_standard_error == 0


@pytest.mark.parametrize(("sign", "k"), [(1, 30), (-1, 3)], ids=["positive", "negative"])
def test_eigenvalues_that_occur_several_times_are_all_found(sign, k):
    """The Hessian of 26 outputs is 26 times the same block; of -(loss) the largest are near 0."""
    torch.manual_seed(0)
    model, x = nn.Linear(20, 26, bias=False).double(), torch.randn(60, 20).double()
    data = [(x, torch.randn(60, 26).double())]
    found = small(model, lambda a, b: sign * F.mse_loss(a, b), data, k=k, density=False)
    block = np.linalg.eigvalsh(sign * 2 / 26 / 60 * (x.T @ x).numpy())[::-1]
    np.testing.assert_allclose(found.eigenvalues, np.repeat(block, 26)[:k], rtol=1e-4)


SPECTRA = {
    "close together": np.linspace(1, 2, 300),  # takes many restarts
    "of few values": np.repeat([0.0, 1.0, 3.0], [280, 15, 5]),  # a start reaches three vectors
    "of low rank": np.r_[np.zeros(297), 1, 2, 5],
    "all zero": np.zeros(300),
    "negative": -np.linspace(0.5, 10, 300),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_matrix_whose_eigenvalues_are_known(name, dtype):
    expected = np.sort(SPECTRA[name])[::-1]
    random = np.random.default_rng(0)
    columns, _ = np.linalg.qr(random.standard_normal((300, 300)))
    matrix = torch.from_numpy(columns * SPECTRA[name] @ columns.T).to(dtype)
    like = torch.empty(0, dtype=dtype)
    values, vectors = hessian.largest_eigenvalues(lambda v: matrix @ v, 300, 6, random, like)
    np.testing.assert_allclose(values, expected[:6], atol=2e-5 * np.abs(expected).max())
    assert vectors.dtype == dtype
    overlap = vectors.T @ vectors - torch.eye(6, dtype=dtype)
    assert overlap.abs().max() < 1e-4
    apart = (matrix @ vectors - vectors * torch.from_numpy(values).to(dtype)).norm(dim=0)
    assert apart.max() <= 1e-3 * np.abs(expected).max()


def transformer():
    torch.manual_seed(0)
    attention = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
    model = nn.Sequential(attention, nn.Flatten(), nn.Linear(12, 3)).double()
    return model, torch.randn(5, 3, 4).double(), torch.randint(0, 3, (5,))


def test_a_transformer_whose_derivatives_torch_gets_wrong():
    """Against derivatives taken backward twice, which torch gets right."""
    model, x, y = transformer()
    found = small(model, F.cross_entropy, uneven(x, y, 2), k=5)
    model.eval()
    parameters = list(model.parameters())

    def flat(parts):
        return torch.cat([part.flatten() for part in parts])

    with sdpa_kernel(SDPBackend.MATH):
        loss = F.cross_entropy(model(x), y)
        gradient = flat(torch.autograd.grad(loss, parameters, create_graph=True))
        rows = [flat(torch.autograd.grad(g, parameters, retain_graph=True)) for g in gradient]
    expected = np.linalg.eigvalsh(torch.stack(rows).numpy())[::-1]
    np.testing.assert_allclose(found.eigenvalues, expected[:5], rtol=1e-8)


def test_wrong_derivatives_are_noticed(monkeypatch):
    monkeypatch.setattr(hessian, "ElementaryLayerNorm", contextlib.nullcontext)
    model, x, y = transformer()
    with pytest.raises(ValueError, match="not symmetric"):
        small(model, F.cross_entropy, [(x, y)])


def test_the_same_seed_gives_the_same_numbers(monkeypatch):
    monkeypatch.setattr(hessian, "DENSE", 0)
    monkeypatch.setattr(hessian, "LANCZOS_STEPS", 10)
    model, x, y = linear(6, 8)
    first, again, other = (
        small(model, F.mse_loss, [(x, y)], trace_samples=9, seed=seed) for seed in (0, 0, 1)
    )
    assert first.trace == again.trace != other.trace
    assert np.array_equal(first.eigenvalues, again.eigenvalues)
    assert np.array_equal(first.density, again.density)


def test_an_iterator_that_can_be_used_once_is_enough():
    model, x, y = linear()
    once = small(model, F.mse_loss, iter(uneven(x, y, 7)))
    assert np.array_equal(once.eigenvalues, small(model, F.mse_loss, uneven(x, y, 7)).eigenvalues)


class Breaks(nn.Module):
    """Changes its buffer and its random state, and then fails at the nth call."""

    def __init__(self, nth):
        super().__init__()
        self.layer, self.calls, self.nth = nn.Linear(4, 3).double(), 0, nth
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, x):
        self.calls += 1
        if self.calls < 3:  # later, inside of derivatives, torch itself would refuse
            self.seen += 1
            torch.rand(3)
        if self.calls == self.nth:
            raise RuntimeError("broken")
        return self.layer(x)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_the_model_is_left_as_it_was_when_something_breaks(nth):
    _, x, y = linear()
    model = Breaks(nth)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="broken"):
        small(model, F.mse_loss, [(x, y)])
    assert model.training
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m, x, y: {"loss": lambda a, b: F.mse_loss(a, b) * float("nan")}, "loss .* is nan"),
        (lambda m, x, y: {"model": m.requires_grad_(False)}, "no parameters that require"),
        (lambda m, x, y: {"k": 16}, "from 1 to 15"),
        (lambda m, x, y: {"k": 0}, "from 1 to 15"),
        (lambda m, x, y: {"trace_samples": 1}, "at least 2"),
        (lambda m, x, y: {"data": []}, "yields no batches"),
        (lambda m, x, y: {"data": (x, y)}, "into a list"),
        (lambda m, x, y: {"data": [x]}, "into a list"),
        (lambda m, x, y: {"loss": nn.MSELoss(reduction="sum")}, "must average"),
        (lambda m, x, y: {"loss": nn.MSELoss(reduction="none")}, "one number"),
        (lambda m, x, y: {"model": m.bfloat16()}, r"\.float\(\)"),
        (
            lambda m, x, y: {"loss": lambda a, b: ((a - a.detach()) ** 2).sqrt().mean()},
            "second derivatives",
        ),
    ],
)
def test_mistakes_are_answered_in_a_sentence(change, sentence):
    model, x, y = linear()
    call = {"model": model, "loss": F.mse_loss, "data": [(x, y)], "k": 3, "progress": False}
    with pytest.raises(ValueError, match=sentence) as error:
        spectrum(**{**call, **change(model, x, y)})
    assert "\n" not in str(error.value)


def test_the_figures(measured, tmp_path):
    Text = pytest.importorskip("matplotlib.text").Text
    from sgdf_lab.instruments import figures

    found = measured[0]
    for figure, words in (
        (figures.eigenvalues({"sgdf": found, "adam, $1": found}), ["trace", "eval mode"]),
        (figures.density({"sgdf": found}), ["density", "eval mode"]),
    ):
        texts = [text.get_text() for text in figure.findobj(Text)]
        assert all(any(word in text for text in texts) for word in words)
        png, svg = figures.write(figure, tmp_path / "figure")
        assert png.stat().st_size > 10_000
        assert svg.read_text().startswith("<?xml")


def test_norms_of_millions_of_parameters_are_exact():
    """A float32 norm of 11 million numbers is off by 4e-4 on a CPU, a Ritz value by 8e-4."""
    size = 11_000_000
    random = np.random.default_rng(0)
    start = torch.from_numpy(random.standard_normal((size, 1), dtype=np.float32))
    nothing = torch.zeros(size, 0)
    ((nodes, weights),) = hessian.lanczos_quadrature(lambda v: 3 * v, start, nothing, steps=2)
    assert weights.sum() == pytest.approx(1)
    np.testing.assert_allclose(nodes, 3, rtol=1e-5)
