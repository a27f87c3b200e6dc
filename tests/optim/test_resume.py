"""A run that is saved and loaded continues with the same bits, whatever its state is kept in."""

import pytest
import torch

from reference import FORMS
from sgdf import SGDF, FilterAdam, Momentum, WienerFilter
from stepping import PATHS, advance, assert_bitwise, copies, each_path, normal, through_a_file

CONSTANT = {"gain_power": 0.0, "gain_scale": 0.1}
#: What steps, and the settings; None: SGD with the filter in front of it.
RUNS = {
    "SGDF": (SGDF, {}),
    "FilterAdam": (FilterAdam, {}),
    "Momentum": (Momentum, {}),
    **FORMS,
    "WienerFilter": (None, {"betas": (0.8, 0.99), "gain_scale": 1.0}),
    "WienerFilter, constant gain": (None, CONSTANT),
}


def built(kind, params, settings, options):
    """The optimizer, and all that is saved: itself, or itself and the filter in front of it."""
    if kind is not None:
        optimizer = kind(params, lr=0.01, **settings, **options)
        return optimizer, [optimizer]
    optimizer = torch.optim.SGD(params, lr=0.1)
    options = {name: value for name, value in options.items() if name != "foreach"}
    return optimizer, [WienerFilter(optimizer, **settings, **options), optimizer]


@pytest.mark.parametrize("state_dtype", [None, torch.bfloat16, torch.int8], ids=str)
@each_path
@pytest.mark.parametrize(("kind", "settings"), RUNS.values(), ids=RUNS)
def test_a_checkpoint_resumes_exactly(kind, settings, path, state_dtype):
    if kind is Momentum and state_dtype == torch.int8:
        return  # which it has not
    if path == "foreach" and state_dtype == torch.int8:
        path = "loop"  # nor has foreach
    options = {"state_dtype": state_dtype, **PATHS[path]}
    if kind is None and path != "fused":
        options["fused"] = False
    params = [*normal([(64, 512)], torch.bfloat16), *normal([(7,)]), *normal([(5,)], torch.float16)]
    if state_dtype is None:
        params += normal([(3, 2)], torch.complex64)
    optimizer, saved = built(kind, params, settings, options)
    advance(optimizer, 3)
    twins = copies(params)
    other, loaded = built(kind, twins, {} if kind is None else settings, options)
    for ours, theirs in zip(loaded, saved, strict=True):
        ours.load_state_dict(through_a_file(theirs.state_dict()))
    advance(optimizer, 3, first=3), advance(other, 3, first=3)
    assert_bitwise(twins, params)
    for ours, theirs in zip(loaded, saved, strict=True):
        for p, q in zip(twins, params, strict=True):
            assert_bitwise(dict(ours.state[p]), dict(theirs.state[q]))
    moments = {t.dtype for t in saved[0].state[params[2]].values()}
    assert torch.float16 not in moments  # a state of at least float32, or as asked for


@pytest.mark.parametrize("path", ["loop", "fused"])
def test_random_rounding_repeats_itself_and_resumes(path):
    def run(seed, interrupted=False):
        (p,) = normal([(5000,)], torch.bfloat16)
        settings = {"lr": 1e-3, "stochastic_rounding": True, "rounding_seed": seed, **PATHS[path]}
        optimizer = SGDF([p], **settings)
        advance(optimizer, 3)
        if interrupted:
            checkpoint = through_a_file(optimizer.state_dict())
            optimizer = SGDF([p], **settings)
            optimizer.load_state_dict(checkpoint)
        advance(optimizer, 3, first=3)
        return p.detach()

    assert torch.equal(run(0), run(0, interrupted=True))
    assert not torch.equal(run(0), run(1))


def test_loading_does_not_share_memory_with_the_checkpoint():
    for kind in (SGDF, None):
        optimizer, (saved, *_) = built(kind, normal([(4, 3)]), {}, {})
        advance(optimizer, 2)
        checkpoint = through_a_file(saved.state_dict())
        saved.load_state_dict(checkpoint)
        before = through_a_file(checkpoint)
        advance(optimizer, 2)
        assert_bitwise(checkpoint["state"], before["state"])
