"""The notebook runs from top to bottom, and what it says of its numbers is so."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
CELLS = json.loads((EXAMPLES / "filter.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(EXAMPLES)
    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(CELLS):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    errors = names["errors"]
    assert errors["filter"] < errors["average"] < errors["gradient"]
    last = {name: sum(losses[-50:]) for name, losses in names["valley"].items()}
    assert last["SGDF"] < 0.1 * names["valley"]["SGDF"][0] * 50
    assert len(names["plt"].get_fignums()) == 3
    names["plt"].close("all")
    assert all(losses[-1] < losses[0] - 1.5 for losses in names["curves"].values())


def test_it_is_kept_without_outputs() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert len(code) >= 4
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
