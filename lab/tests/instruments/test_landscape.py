"""Loss surfaces against a quadratic that is known, and the path in its principal plane."""

import copy
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sgdf_lab.instruments import landscape
from sgdf_lab.instruments.evaluation import MODE_BY_BATCH
from sgdf_lab.instruments.landscape import path, path_surface, surface

ROOT = Path(__file__).parents[3]


class Quadratic(nn.Module):
    """Its outputs are the parameters themselves, so that the mean square is a quadratic of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 4).double())
        self.bias = nn.Parameter(torch.randn(3).double())

    def forward(self, x):
        together = torch.cat([self.weight.flatten(), self.bias])
        return together.expand(len(x), -1) * x


def scales():
    return torch.linspace(0.5, 2, 15).double()


def batches():
    """Uneven ones, of which only the mean over all images is the quadratic below."""
    rows = torch.stack([scales(), 3 * scales(), scales()])
    targets = torch.zeros(3, 15).double()
    return [(rows[:2], targets[:2]), (rows[2:], targets[2:])]


def closed_form(weight, bias):
    together = np.concatenate([weight.ravel(), bias])
    return (1 + 9 + 1) / 3 * ((together * scales().numpy()) ** 2).mean()


def convnet(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(),
        nn.Linear(64, 5),
    )  # fmt: skip
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(20, 1, 6, 6))  # batch norm has seen something
    return model


def image_batches():
    random = torch.Generator().manual_seed(5)
    x = torch.randn(20, 1, 6, 6, generator=random)
    y = torch.randint(0, 5, (20,), generator=random)
    return [(x[:13], y[:13]), (x[13:], y[13:])]


def look(model, loss=F.cross_entropy, data=None, **settings):
    settings = {"size": 5, "progress": False, **settings}
    return surface(model, loss, data or image_batches(), **settings)


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_state(model, state):
    return all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_quadratic_is_exact(dimensions):
    model = Quadratic()
    found = look(
        model, F.mse_loss, batches(), size=7, span=1.5, dimensions=dimensions, seed=3
    )  # fmt: skip
    along = [
        d["weight"].numpy()
        for d in landscape.directions(model, seed=3, dimensions=dimensions)
    ]  # fmt: skip
    weight, bias = model.weight.detach().numpy(), model.bias.detach().numpy()
    for index in np.ndindex(found.values.shape):
        steps = [axis[i] for axis, i in zip(found.axes, index, strict=True)]
        moved = weight + sum(step * d for step, d in zip(steps, along, strict=True))
        assert found.values[index] == pytest.approx(closed_form(moved, bias), rel=1e-12)
    assert found.images == 3


def test_the_centre_is_the_models_own_loss():
    model = convnet()
    found = look(model)
    model.eval()
    (a, b), (c, d) = image_batches()
    own = F.cross_entropy(model(torch.cat([a, c])), torch.cat([b, d])).item()
    assert found.values[2, 2] == found.loss == pytest.approx(own, rel=1e-6)
    assert "eval mode" in found.mode


def test_an_even_grid_says_that_it_has_no_centre():
    found = look(convnet(), size=4)
    assert 0.0 not in found.axes[0]
    assert found.values.shape == (4, 4)
    np.testing.assert_allclose(found.axes[0], [-1, -1 / 3, 1 / 3, 1])
    assert look(convnet(), size=1).values.item() == found.loss


def test_a_loss_that_is_infinite_somewhere_is_recorded():
    found = look(nn.Linear(3, 1, bias=False), lambda a, _: (1e38 * a.abs()).sum(1).mean() * 10,
        [(torch.full((2, 3), 0.01), torch.zeros(2))], span=1e6, dimensions=1)  # fmt: skip
    assert np.isinf(found.values[[0, -1]]).all()
    assert np.isfinite(found.loss)


# --- directions ----------------------------------------------------------------------------------


def test_filters_have_the_norms_of_the_weights_and_nothing_else_moves():
    model = convnet()
    for direction in landscape.directions(model, seed=1):
        assert set(direction) == {"0.weight", "5.weight"}
        for name, part in direction.items():
            weight = model.get_parameter(name)
            expected = weight.flatten(1).norm(dim=1)
            assert torch.allclose(part.flatten(1).norm(dim=1), expected, rtol=1e-5)
            assert part.shape == weight.shape


def test_directions_are_shared_by_models_of_one_architecture():
    one, two = convnet(0), convnet(1)
    for first, second in zip(landscape.directions(one), landscape.directions(two), strict=True):
        for name in first:
            ratio = (first[name] / second[name]).flatten(1)  # the filters' norms differ, no more
            assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-3)
    again = landscape.directions(convnet(0))[0]["0.weight"]
    assert torch.equal(landscape.directions(one)[0]["0.weight"], again)
    assert not torch.equal(landscape.directions(one, seed=1)[0]["0.weight"], again)
    assert not torch.equal(landscape.directions(one)[1]["0.weight"], again)


def test_a_filter_of_zeros_and_a_frozen_layer_do_not_move():
    model = convnet()
    with torch.no_grad():
        model[0].weight[1] = 0
    model[5].weight.requires_grad_(False)
    (direction,) = landscape.directions(model, dimensions=1)
    assert set(direction) == {"0.weight"}
    assert not direction["0.weight"][1].any()
    assert direction["0.weight"].isfinite().all()


# --- the model is left as it was -----------------------------------------------------------------


def test_the_model_is_left_as_it_was():
    model = convnet()
    model[1].eval()
    model(torch.randn(4, 1, 6, 6)).sum().backward()
    state, gradient = state_of(model), model[0].weight.grad.clone()
    random = torch.get_rng_state()
    look(model)
    assert same_state(model, state)
    assert [module.training for module in model.children()] == [True, False, *[True] * 4]
    assert torch.equal(model[0].weight.grad, gradient)
    assert all(p.requires_grad for p in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


class Breaking:
    """A loss that fails at its nth call; two calls are the check, and each point takes two."""

    def __init__(self, nth):
        self.calls, self.nth = 0, nth

    def __call__(self, outputs, targets):
        self.calls += 1
        if self.calls == self.nth:
            raise RuntimeError("broken")
        return F.cross_entropy(outputs, targets)


# --- on disk -------------------------------------------------------------------------------------


def test_an_interrupted_surface_resumes(tmp_path):
    file = tmp_path / "new" / "surface.npz"
    straight = look(convnet())
    with pytest.raises(RuntimeError, match="broken"):
        look(convnet(), Breaking(4 + 2 * 13 + 1), save=file)  # in the third row
    counted = Breaking(0)
    found = look(convnet(), counted, save=file)
    assert counted.calls == 4 + 2 * 15
    assert np.array_equal(found.values, straight.values)
    finished = Breaking(0)
    assert np.array_equal(look(convnet(), finished, save=file).values, straight.values)
    assert finished.calls == 4
    assert os.listdir(file.parent) == ["surface.npz"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"span": 2.0}, "axes"),
        ({"seed": 1}, "directions"),
        ({"model": convnet(1)}, "model"),
        ({"loss": lambda a, b: 2 * F.cross_entropy(a, b)}, "loss"),
        ({"data": image_batches()[:1]}, "data"),
    ],
)
def test_a_file_of_another_surface_is_refused(change, what, tmp_path):
    file = tmp_path / "surface.npz"
    look(convnet(), save=file)
    with pytest.raises(ValueError, match=rf"other settings \(.*{what}") as error:
        look(**{"model": convnet(), "save": file, **change})
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_surface_is_refused(tmp_path):
    file = tmp_path / "surface.npz"
    for content in (b"", b"nothing", b"PK\x03\x04half"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as a surface"):
            look(convnet(), save=file)
    np.savez(file, values=np.zeros(3), done=np.zeros(3, bool), about=np.array(json.dumps([])))
    with pytest.raises(ValueError, match="cannot be read as a surface"):
        look(convnet(), save=file)


# --- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": 0}, "from 1 on, not 0"),
        ({"size": 2.5}, "from 1 on, not 2.5"),
        ({"span": -1.0}, "positive number, not -1"),
        ({"span": 0.0}, "positive number, not 0"),
        ({"span": float("nan")}, "positive number, not nan"),
        ({"dimensions": 3}, "1 or 2 dimensions"),
        ({"data": iter(())}, "yields no batches"),
        ({"model": nn.ReLU()}, "no parameters that require"),
        ({"loss": lambda a, b: F.cross_entropy(a, b) * torch.inf}, "loss .* is inf"),
        ({"loss": nn.CrossEntropyLoss(reduction="sum")}, "must average"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(change, sentence):
    call = {"model": convnet(), "loss": F.cross_entropy, "data": image_batches(), "progress": False}
    with pytest.raises(ValueError, match=sentence) as error:
        surface(**{**call, **change})
    assert "\n" not in str(error.value)


# --- the path ------------------------------------------------------------------------------------


def walk():
    """A model and checkpoints that lie in a plane, but for a little."""
    model = Quadratic()
    torch.manual_seed(1)
    first, second, third = torch.linalg.qr(torch.randn(15, 3).double())[0].T
    end = torch.cat([p.detach().flatten() for p in model.parameters()])
    places = [(4, 0.1, 0.01), (3, 1, -0.02), (2, 1.2, 0.01), (1, 0.5, 0.01), (0, 0, 0)]
    checkpoints = []
    for a, b, c in places:
        flat = end + a * first + b * second + c * third
        checkpoints.append({"weight": flat[:12].view(3, 4), "bias": flat[12:], "other": end})
    return model, checkpoints


def test_the_path_lies_in_its_principal_plane():
    model, checkpoints = walk()
    found = path(model, checkpoints)
    flat = np.stack([
        np.concatenate([(s["weight"] - model.weight).detach().numpy().ravel(),
                        (s["bias"] - model.bias).detach().numpy()])
        for s in checkpoints
    ])  # fmt: skip
    _, singular, rows = np.linalg.svd(flat, full_matrices=False)
    expected = singular**2 / (singular**2).sum()
    assert found.explained == pytest.approx(expected[:2], rel=1e-6)
    assert sum(found.explained) > 0.999
    for i, direction in enumerate(found.directions):
        ours = np.concatenate([direction["weight"].numpy().ravel(), direction["bias"].numpy()])
        assert abs(ours @ rows[i]) == pytest.approx(1, rel=1e-9)
        np.testing.assert_allclose(found.points[:, i], flat @ ours, atol=1e-12)
    assert not found.points[-1].any()  # the end


def test_the_surface_of_a_path_reaches_all_of_it_and_is_exact():
    model, checkpoints = walk()
    found = path(model, checkpoints)
    over = path_surface(model, F.mse_loss, batches(), found, size=4, progress=False)
    for i, axis in enumerate(over.axes):
        assert axis[0] < found.points[:, i].min() <= found.points[:, i].max() < axis[-1]
    a, b = over.axes[0][1], over.axes[1][2]
    first, second = found.directions
    weight = model.weight.detach() + a * first["weight"] + b * second["weight"]
    bias = model.bias.detach() + a * first["bias"] + b * second["bias"]
    assert over.values[1, 2] == pytest.approx(closed_form(weight.numpy(), bias.numpy()), rel=1e-9)


def by_batch(model, data):
    """The mean loss with batch norm by each batch's statistics; the model is a copy."""
    model = copy.deepcopy(model).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    parts = [F.cross_entropy(model(x), y).item() * len(x) for x, y in data]
    return sum(parts) / sum(len(x) for x, _ in data)


def test_batch_norm_along_a_path_uses_the_statistics_of_the_images(tmp_path):
    """Two checkpoints lie in the plane: there the loss is theirs, however wrong the statistics."""
    model, data = convnet().eval(), image_batches()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.running_mean.fill_(1e6)
    kept = {name: value.clone() for name, value in model.state_dict().items()}
    others = [convnet(seed).state_dict() for seed in (1, 2)]
    found = path(model, others)
    assert sum(found.explained) == pytest.approx(1)
    for number, state in enumerate(others):
        axes = tuple(np.array([x, 0.0]) for x in found.points[number])
        plane = (F.cross_entropy, data, found.directions, axes, MODE_BY_BATCH, 0)
        over = landscape.evaluate(model, *plane, save=None, progress=False)
        there = convnet(1 + number)
        there.load_state_dict(state)
        assert over.values[0, 0] == pytest.approx(by_batch(there, data), rel=1e-4)
        assert over.values[1, 1] == pytest.approx(by_batch(model, data), rel=1e-5)
        assert over.loss == pytest.approx(over.values[1, 1], rel=1e-6)
    settings = {"size": 3, "save": tmp_path / "path.npz", "progress": False}
    whole = path_surface(model, F.cross_entropy, data, found, **settings)
    assert whole.values.max() < 100
    assert "each batch's own" in whole.mode
    again = path_surface(model, F.cross_entropy, data, found, **settings)  # nothing left to do
    np.testing.assert_array_equal(again.values, whole.values)
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in kept.items())
    assert not any(m.training for m in model.modules() if isinstance(m, nn.BatchNorm2d))


def test_mistakes_in_a_path():
    model, checkpoints = walk()
    with pytest.raises(ValueError, match="at least two"):
        path(model, checkpoints[:1])
    with pytest.raises(ValueError, match="one line"):
        path(model, [checkpoints[0], checkpoints[-1]])
    with pytest.raises(ValueError, match="checkpoint 1 is of another model: it has no such bias"):
        path(model, [checkpoints[0], {"weight": checkpoints[0]["weight"]}])
    found = path(model, checkpoints)
    with pytest.raises(ValueError, match="margin"):
        path_surface(model, F.mse_loss, batches(), found, margin=-1, progress=False)


# --- pictures and docs ---------------------------------------------------------------------------


def test_the_figures(tmp_path):
    Text = pytest.importorskip("matplotlib.text").Text
    from sgdf_lab.instruments import figures

    model = convnet()
    plane = look(model)
    odd = dataclasses.replace(plane, values=np.where(plane.axes[0] > 0.9, np.inf, plane.values))
    way_model, checkpoints = walk()
    way = path(way_model, checkpoints)
    over = path_surface(way_model, F.mse_loss, batches(), way, size=4, progress=False)
    drawn = [
        figures.contours({"sgdf": plane, "adam": odd}),
        figures.relief({"sgdf": plane, "adam": odd}),
        figures.profiles({"sgdf": look(model, dimensions=1)}),
        figures.path_contours(over, way, "sgdf"),
    ]
    for figure in drawn:
        texts = [text.get_text() for text in figure.findobj(Text)]
        assert any("eval mode" in text for text in texts)
        assert any("loss" in text.lower() for text in texts)
        for file in figures.write(figure, tmp_path / "figure"):
            assert file.stat().st_size > 5_000
    with pytest.raises(ValueError, match="two dimensions"):
        figures.contours({"sgdf": look(model, dimensions=1)})
