"""What the tests of the kernels share."""

import pytest


@pytest.fixture
def triton_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Triton's interpreter update the parameters that `fused=True` gives to C++."""
    from sgdf.kernels import cuda

    monkeypatch.setattr(cuda, "DEVICES", ("cuda", "cpu"))
