"""The package as it is released: built, checked, installed in a clean environment and tried."""

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

import sgdf

ROOT = Path(__file__).parents[2]
NAME = f"sgdf-{sgdf.__version__}"


def run(*command, **options):
    """A command whose failure shows what it printed."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=240, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source, out, *kinds):
    # Offline: hatchling is taken from this environment.
    run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", out, source)


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A source distribution, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    assert sorted(file.name for file in out.iterdir()) == [
        f"{NAME}-py3-none-any.whl",
        f"{NAME}.tar.gz",
    ]
    return out


@pytest.fixture(scope="module")
def wheel(dist):
    return dist / f"{NAME}-py3-none-any.whl"


def contents(wheel):
    """The files of a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_has_every_file_of_the_package_and_no_other(wheel):
    source = ROOT / "src"
    written = {
        path.relative_to(source).as_posix()
        for path in (source / "sgdf").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {
        "sgdf/py.typed",
        "sgdf/kernels/changes.cpp",
        "sgdf/kernels/cpu.cpp",
        "sgdf_lab/report/assets/page.css",
        "sgdf_lab/report/assets/page.js",
        "sgdf_lab/theory/assets/page.css",
    } <= written
    plotly = "licenses/lab/src/sgdf_lab/report/assets/plotly-LICENSE.txt"
    information = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", plotly}
    assert set(contents(wheel)) == written | {f"{NAME}.dist-info/{name}" for name in information}


def test_the_source_distribution_builds_the_same_wheel_as_the_checkout(wheel, tmp_path):
    build(ROOT, tmp_path, "--wheel")
    assert contents(tmp_path / wheel.name) == contents(wheel)


def test_the_source_distribution_has_tests_and_documents(dist):
    with tarfile.open(dist / f"{NAME}.tar.gz") as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    assert {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md"} <= names
    assert {"lab/tests/test_wheel.py", "docs/filter.md", "pyproject.toml"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith(".venv")]


def test_an_index_would_take_both(dist):
    files = sorted(dist.iterdir())
    printed = run(sys.executable, "-m", "twine", "check", "--strict", *files)
    assert printed.count("PASSED") == len(files)


def test_the_metadata_is_complete(wheel):
    told = email.message_from_bytes(contents(wheel)[f"{NAME}.dist-info/METADATA"])
    assert (told["Name"], told["Version"]) == ("sgdf", sgdf.__version__)
    assert told["License-Expression"] == "MIT"
    assert told["License-File"] == "LICENSE"
    assert told["Requires-Python"] == ">=3.11"
    assert told["Description-Content-Type"] == "text/markdown"
    assert told["Summary"]
    assert told["Keywords"]
    assert told.get_payload().startswith((ROOT / "README.md").read_text()[:100])
    classifiers = told.get_all("Classifier")
    for word in ("Development Status", "Intended Audience", "Operating System", "Typing :: Typed"):
        assert any(line.startswith(word) for line in classifiers), word
    needed = [line for line in told.get_all("Requires-Dist") if "extra ==" not in line]
    assert [re.match(r"\w+", line)[0] for line in needed] == ["numpy", "torch"]
    assert {"lab", "analysis", "vision", "jax"} <= set(told.get_all("Provides-Extra"))


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)  # what the format asks for
    assert (cited["version"], cited["license"]) == (sgdf.__version__, "MIT")
    paper = cited["preferred-citation"]
    assert paper["title"] == "Signal Processing Meets SGD: From Momentum to Filter"
    assert len(paper["authors"]) == 6
    thanked = (ROOT / "README.md").read_text()
    for author in paper["authors"]:
        assert author["given-names"] in thanked
        assert author["family-names"] in thanked


def test_the_changelog_has_this_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", sgdf.__version__)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A new environment with the wheel, which borrows torch and the others from this one.

    The borrowed folder comes later in the path than the wheel, and its own .pth files are not
    read: an editable install of the checkout is invisible.
    """
    folder = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    install = ("install", "--no-deps", "--no-index", "--disable-pip-version-check", "--no-compile")
    run(sys.executable, "-m", "pip", "--python", python, *install, wheel)
    (packages,) = folder.glob("lib/*/site-packages")
    (packages / "borrowed.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    return folder


@pytest.fixture
def surroundings(tmp_path):
    """Options of a process that knows nothing of the checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {"cwd": tmp_path, "env": environment | {"PYTHONNOUSERSITE": "1"}}


TRY = """
import importlib.metadata, sys
from pathlib import Path
import torch, sgdf
from sgdf.kernels import cpu_library

home = Path(sys.prefix)
assert Path(sgdf.__file__).is_relative_to(home), sgdf.__file__
assert cpu_library.SOURCE.is_relative_to(home)
assert cpu_library.available()  # else the step would be taken without it, with a warning
assert importlib.metadata.version("sgdf") == sgdf.__version__
p = torch.ones(5, requires_grad=True)
optimizer = sgdf.SGDF([p], lr=0.5, fused=True)
p.grad = torch.full((5,), 2.0)
optimizer.step()
print(sgdf.__version__, p.tolist())
"""


def test_the_wheel_is_imported_and_steps_with_its_compiled_kernel(installed, surroundings):
    printed = run(installed / "bin" / "python", "-c", TRY, **surroundings)
    # The first estimate is the gradient itself.
    assert printed.strip() == f"{sgdf.__version__} [0.0, 0.0, 0.0, 0.0, 0.0]"


def test_the_command_of_the_wheel_trains_the_demo(installed, surroundings):
    command = installed / "bin" / "sgdf"
    assert command.read_text().startswith(f"#!{installed}/bin/python")
    assert run(command, "--version", **surroundings).strip() == sgdf.__version__
    printed = run(command, "demo", "--epochs", "1", "--jobs", "1", **surroundings)
    runs = surroundings["cwd"] / "runs" / "demo"
    assert len(list(runs.glob("*/result.json"))) == 48
    (page,) = runs.glob("*.html")
    assert page.name in printed
    assert "</html>" in page.read_text()
