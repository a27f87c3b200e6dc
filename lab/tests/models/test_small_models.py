"""Models small enough for many runs: they learn, and several copies can be trained at once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional as F

from sgdf_lab.models import build_classifier, build_language_model
from sgdf_lab.registry.models import CLASSIFIERS

pytestmark = pytest.mark.usefixtures("one_thread")

CLASSES = 5


def build(name: str) -> nn.Module:
    if name in CLASSIFIERS:
        return build_classifier(name, classes=CLASSES, shape=(3, 32, 32))
    return build_language_model(name, vocabulary=256, context=32)


def batch_for(name: str, size: int = 8) -> tuple[Tensor, Tensor]:
    """Images with a colour per class, or text that repeats itself."""
    if name in CLASSIFIERS:
        labels = torch.arange(size) % CLASSES
        colours = torch.randn(CLASSES, 3, 1, 1)
        return torch.randn(size, 3, 32, 32) + 2 * colours[labels], labels
    tokens = torch.randint(256, (size, 8)).repeat(1, 5)[:, :33]
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs.flatten(0, -2), labels.flatten())


def test_the_one_with_batch_norm():
    model = build_classifier("cnn-bn", classes=10, shape=(3, 32, 32))
    convolutions = 9 * (3 * 32 + 32 * 32 + 32 * 64 + 64 * 64 + 64 * 128 + 128 * 128)
    norms = 2 * 2 * (32 + 64 + 128)
    expected = convolutions + norms + 128 * 10 + 10
    assert sum(p.numel() for p in model.parameters()) == expected == 288_746
    assert model[:-3](torch.zeros(2, 3, 32, 32)).shape == (2, 128, 4, 4)


@pytest.mark.parametrize("name", ["lstm-mini", "gpt-3m", "cnn-bn"])
def test_it_learns(name):
    torch.manual_seed(0)
    model, (inputs, labels) = build(name), batch_for(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("name", ["lstm-mini", "gpt-mini", "vit-mini", "cnn-bn"])
def test_stacked_copies_are_as_separate_ones(name):
    """Losses, gradients and running statistics under `vmap`, each copy with its own batch."""
    torch.manual_seed(0)
    models = [build(name), build(name)]
    batches = [batch_for(name), batch_for(name)]
    parameters, buffers = stack_module_state(models)  # before a forward changes the statistics
    parameters = {key: p.detach() for key, p in parameters.items()}
    inputs, labels = (torch.stack(parts) for parts in zip(*batches, strict=True))

    def loss(parameters, buffers, inputs, labels):
        return loss_of(functional_call(models[0], (parameters, buffers), (inputs,)), labels)

    compute: Callable[..., tuple[dict[str, Tensor], Tensor]] = torch.func.grad_and_value(loss)
    grads, losses = vmap(compute)(parameters, buffers, inputs, labels)
    for i, (model, (own_inputs, own_labels)) in enumerate(zip(models, batches, strict=True)):
        expected = loss_of(model(own_inputs), own_labels)
        expected.backward()
        close = {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(losses[i], expected, **close)
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(grads[key][i], parameter.grad, **close)
        for key, buffer in model.named_buffers():
            torch.testing.assert_close(buffers[key][i], buffer, **close)
