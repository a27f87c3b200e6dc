from dataclasses import replace

import pytest

from data import published


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Datasets of about a hundred images, none of them installed; the data folder for them."""
    for name, spec in published.TINY.items():
        installed = tuple(tmp_path / "installed" for _ in spec.folders)
        published.put(monkeypatch, name, replace(spec, folders=installed))
    monkeypatch.delenv("SGDF_DATA", raising=False)
    return tmp_path / "data"
