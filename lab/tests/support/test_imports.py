"""What a room imports only when it is needed: extras, and what takes long."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


# --- the library ----------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]
PUBLIC = {
    "sgdf",
    "sgdf.filter",
    "sgdf.integrations",
    "sgdf.integrations.huggingface",
    "sgdf.integrations.timm",
    "sgdf.matrix",
    "sgdf.optax",
    "sgdf.optim",
}


def trees(folder: Path) -> Iterator[tuple[Path, ast.AST]]:
    for path in sorted(folder.rglob("*.py")):
        yield path, ast.parse(path.read_text())


def uses_of(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The modules of the library that are imported, with the names taken from them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def test_the_lab_imports_public_names_of_the_library():
    wrong, seen = [], 0
    for path, tree in trees(ROOT / "lab" / "src"):
        for module, name in uses_of(tree):
            if module.partition(".")[0] == "sgdf":
                seen += 1
                exported = getattr(
                    importlib.import_module(module), "__all__", [name] * (not is_private(name))
                )
                known = name in ("", "__version__", *exported)
                if module not in PUBLIC or not known:
                    wrong.append(f"{path.name}: {name} from {module}")
    assert seen > 15
    assert wrong == []


def test_the_lab_reads_no_private_attribute_of_the_library():
    """By its name: one that only the library has."""

    def names(folder: Path) -> set[str]:
        found = (node for _, tree in trees(folder) for node in ast.walk(tree))
        defined = {getattr(node, "name", "") for node in found}
        return {name for name in defined if isinstance(name, str) and is_private(name)}

    private = names(ROOT / "src") - names(ROOT / "lab" / "src")
    wrong = [
        f"{path.name}: {node.attr}"
        for path, tree in trees(ROOT / "lab" / "src")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in private
    ]
    assert private
    assert wrong == []
