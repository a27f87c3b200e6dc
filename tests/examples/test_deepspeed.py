"""DeepSpeed's ZeRO 1 to 3 in one process: it trains, and resumes with the same numbers."""

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def deepspeed_zero() -> Iterator[ModuleType]:
    """The script, in a process that is a group of one."""
    deepspeed = pytest.importorskip("deepspeed")
    group = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**group, "MASTER_PORT": "0"}.items():
            patch.setenv(name, value)
        # As `main` does.
        patch.setitem(deepspeed.ops.__compatible_ops__, "deepspeed_shm_comm", False)
        yield importlib.import_module("examples.deepspeed_zero")
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_script_trains_and_resumes_with_the_same_numbers(deepspeed_zero, stage: int) -> None:
    losses, resumed = deepspeed_zero.main(stage)
    assert sum(losses[-8:]) < 0.6 * sum(losses[:8])
    assert resumed == losses[15:]


def test_deepspeed_refuses_an_optimizer_it_does_not_know(deepspeed_zero, monkeypatch) -> None:
    config = deepspeed_zero.config_of(2) | {"zero_allow_untested_optimizer": False}
    monkeypatch.setattr(deepspeed_zero, "config_of", lambda stage: config)
    with pytest.raises(AssertionError, match="zero_allow_untested_optimizer"):
        deepspeed_zero.engine_of(2)
