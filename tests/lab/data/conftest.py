import pytest

from lab.data import published
from sgdf.lab.data import places
from sgdf.lab.data.sets import FACTS


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """Datasets of a hundred images, and none installed on the system: the folder for them."""
    for name, facts in published.TINY.items():
        monkeypatch.setitem(FACTS, name, facts)
    monkeypatch.setattr(places, "DEBIAN_FOLDER", tmp_path / "none")
    monkeypatch.delenv("SGDF_DATA", raising=False)
    return tmp_path / "data"
