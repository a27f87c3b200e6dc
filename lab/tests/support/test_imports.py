"""What a room imports only when it is needed: extras, and what takes long."""

import subprocess
import sys

import pytest

LIGHT = {
    "sgdf_lab.data": {"sklearn", "PIL", "rich"},
    "sgdf_lab.tasks": {"torchvision", "torchmetrics", "pycocotools", "PIL", "scipy", "rich"},
    "sgdf_lab.instruments.estimators": {"scipy", "curvlinops", "matplotlib", "rich"},
    "sgdf_lab.instruments.hessian": {"scipy", "curvlinops", "matplotlib", "rich"},
    "sgdf_lab.instruments.landscape": {"scipy", "curvlinops", "matplotlib", "rich"},
    "sgdf_lab.instruments.probe": {"scipy", "curvlinops", "matplotlib", "rich"},
}


@pytest.fixture(scope="module")
def imported() -> str:
    """A line for each module: all packages that are imported by then."""
    code = (
        "import sys, importlib\n"
        "before = {m.partition('.')[0] for m in sys.modules}\n"
        f"for name in {list(LIGHT)!r}:\n"
        "    importlib.import_module(name)\n"
        "    print(name, *({m.partition('.')[0] for m in sys.modules} - before))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout


@pytest.mark.parametrize("name", LIGHT)
def test_a_room_is_light(imported, name):
    (line,) = (line.split() for line in imported.splitlines() if line.startswith(f"{name} "))
    assert "torch" in line
    assert not LIGHT[name] & set(line)
