"""Both packages as they are released: built, checked, installed in a clean environment, tried."""

import email
import os
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml

import sgdf
import sgdf_lab

ROOT = Path(__file__).parents[2]
LIBRARY = SimpleNamespace(name="sgdf", source=ROOT, package=ROOT / "src" / "sgdf")
LAB = SimpleNamespace(
    name="sgdf-lab", source=ROOT / "lab", package=ROOT / "lab" / "src" / "sgdf_lab"
)
BOTH = pytest.mark.parametrize("project", [LIBRARY, LAB], ids=lambda project: project.name)
LARGEST_WHEEL = 300_000  # bytes of sgdf's


def run(*command, **options):
    """A command whose failure shows what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source, out, *kinds):
    # Offline: hatchling is taken from this environment.
    run(sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", out, source)


def stem(project):
    return f"{project.name.replace('-', '_')}-{sgdf.__version__}"


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Two source distributions, and the wheels that are built from them."""
    out = tmp_path_factory.mktemp("dist")
    for project in (LIBRARY, LAB):
        build(project.source, out)
    names = {f"{stem(p)}{end}" for p in (LIBRARY, LAB) for end in (".tar.gz", "-py3-none-any.whl")}
    assert {file.name for file in out.iterdir()} == names
    return out


def wheel_of(project, dist):
    return dist / f"{stem(project)}-py3-none-any.whl"


def contents(wheel):
    """The files of a wheel, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def information(project, dist):
    """The metadata of a wheel."""
    files = contents(wheel_of(project, dist))
    return email.message_from_bytes(files[f"{stem(project)}.dist-info/METADATA"])


def required(metadata):
    """Names of the packages that are always installed along."""
    lines = metadata.get_all("Requires-Dist")
    return {re.match(r"[\w-]+", line)[0] for line in lines if "extra ==" not in line}


@BOTH
def test_a_wheel_has_every_file_of_its_package_and_no_other(project, dist):
    written = {
        path.relative_to(project.package.parent).as_posix()
        for path in project.package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert f"{project.package.name}/py.typed" in written
    assert any(Path(name).suffix in (".cpp", ".css") for name in written)
    found = {name for name in contents(wheel_of(project, dist)) if ".dist-info/" not in name}
    assert found == written


def test_the_library_is_small_and_has_no_command(dist):
    wheel = wheel_of(LIBRARY, dist)
    assert wheel.stat().st_size < LARGEST_WHEEL
    assert required(information(LIBRARY, dist)) == {"numpy", "torch"}
    assert not [name for name in contents(wheel) if name.endswith("entry_points.txt")]


def test_the_lab_needs_the_library_of_its_version_and_has_the_command(dist):
    assert sgdf_lab.__version__ == sgdf.__version__
    (needed,) = [
        line
        for line in information(LAB, dist).get_all("Requires-Dist")
        if re.match(r"sgdf\b", line)
    ]
    assert f">={sgdf.__version__}" in needed
    commands = contents(wheel_of(LAB, dist))[f"{stem(LAB)}.dist-info/entry_points.txt"].decode()
    assert re.findall(r"^(\w+) = ", commands, re.MULTILINE) == ["sgdf"]


@BOTH
def test_the_source_distribution_builds_the_same_wheel_as_the_checkout(project, dist, tmp_path):
    build(project.source, tmp_path, "--wheel")
    wheel = wheel_of(project, dist)
    assert contents(tmp_path / wheel.name) == contents(wheel)


def test_the_tests_of_the_source_distribution_can_be_collected(dist, tmp_path):
    """Without the lab, as for somebody who packages the library."""
    with tarfile.open(dist / f"{stem(LIBRARY)}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / stem(LIBRARY)
    for name in ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "docs/filter.md"):
        assert (folder / name).is_file()
    assert not (folder / "lab").exists()
    # A lab that cannot be imported hides the one of this environment.
    hidden = tmp_path / "hidden" / "sgdf_lab"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(name='sgdf_lab')")
    environment = os.environ | {"PYTHONPATH": f"{folder / 'src'}{os.pathsep}{hidden.parent}"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    printed = run(*command, "tests", cwd=folder, env=environment)
    assert int(re.search(r"(\d+) tests collected", printed)[1]) > 1000


def test_an_index_would_take_all(dist):
    files = sorted(dist.iterdir())
    printed = run(sys.executable, "-m", "twine", "check", "--strict", *files)
    assert printed.count("PASSED") == len(files) == 4


@BOTH
def test_the_metadata_is_complete(project, dist):
    told = information(project, dist)
    assert (told["Name"], told["Version"]) == (project.name, sgdf.__version__)
    assert told["License-Expression"] == "MIT"
    assert "LICENSE" in told.get_all("License-File")
    assert told["Requires-Python"] == ">=3.11"
    assert told["Description-Content-Type"] == "text/markdown"
    assert told["Summary"]
    assert told["Keywords"]
    assert told.get_payload().startswith((project.source / "README.md").read_text()[:100])
    classifiers = told.get_all("Classifier")
    for word in ("Development Status", "Intended Audience", "Operating System", "Typing :: Typed"):
        assert any(line.startswith(word) for line in classifiers), word
    extras = {
        LIBRARY.name: {"jax"},
        LAB.name: {"instruments", "vision", "cluster", "tensorboard", "wandb"},
    }
    assert extras[project.name] <= set(told.get_all("Provides-Extra"))


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(cited)  # what the format asks for
    assert (cited["version"], cited["license"]) == (sgdf.__version__, "MIT")
    paper = cited["preferred-citation"]
    assert paper["title"] == "Dynamic Momentum Recalibration in Online Gradient Learning"
    (first,) = cited["references"]
    assert first["title"] == "Signal Processing Meets SGD: From Momentum to Filter"
    assert first["authors"] == paper["authors"]
    assert len(paper["authors"]) == 6
    thanked = (ROOT / "README.md").read_text()
    for author in paper["authors"]:
        assert author["given-names"] in thanked
        assert author["family-names"] in thanked


def test_the_changelog_has_this_version():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in ("Unreleased", sgdf.__version__)


@pytest.fixture(scope="module")
def environment_of(tmp_path_factory):
    """Makes a new environment with some wheels, which borrows torch from this one.

    The borrowed folder comes later in the path than the wheels, and its own .pth files are not
    read: an editable install of the checkout is invisible.
    """

    def made(name, *wheels):
        folder = tmp_path_factory.mktemp(name)
        run(sys.executable, "-m", "venv", "--without-pip", folder)
        python = folder / "bin" / "python"
        pip = ("pip", "--python", python, "install", "--no-deps", "--no-index", "--no-compile")
        run(sys.executable, "-m", *pip, "--disable-pip-version-check", *wheels)
        (packages,) = folder.glob("lib/*/site-packages")
        (packages / "borrowed.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
        return folder

    return made


@pytest.fixture(scope="module")
def environments(dist, environment_of):
    """One with the library, and one with the lab too."""
    library, lab = wheel_of(LIBRARY, dist), wheel_of(LAB, dist)
    return SimpleNamespace(
        library=environment_of("library", library), both=environment_of("both", library, lab)
    )


@pytest.fixture
def surroundings(tmp_path):
    """Options of a process that knows nothing of the checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return {"cwd": tmp_path, "env": environment | {"PYTHONNOUSERSITE": "1"}}


TRY = """
import importlib.metadata, importlib.util, sys
from pathlib import Path
import torch, sgdf
from sgdf.kernels import cpu

home = Path(sys.prefix)
assert importlib.util.find_spec("sgdf_lab") is None
assert Path(sgdf.__file__).is_relative_to(home), sgdf.__file__
assert cpu.SOURCE.is_relative_to(home)
assert cpu.available()  # else the step would be taken without it, with a warning
assert importlib.metadata.version("sgdf") == sgdf.__version__
p = torch.ones(5, requires_grad=True)
optimizer = sgdf.SGDF([p], lr=0.5, fused=True)
p.grad = torch.full((5,), 2.0)
optimizer.step()
print(sgdf.__version__, p.tolist())
"""


def test_the_library_steps_with_its_compiled_kernel_and_without_the_lab(environments, surroundings):
    printed = run(environments.library / "bin" / "python", "-c", TRY, **surroundings)
    # The first estimate is the gradient itself.
    assert printed.strip() == f"{sgdf.__version__} [0.0, 0.0, 0.0, 0.0, 0.0]"


@pytest.fixture(scope="module")
def with_kernel(tmp_path_factory):
    """The wheel for x86-64 Linux, which has the compiled CPU kernel inside."""
    out = tmp_path_factory.mktemp("prebuilt")
    command = ("-m", "build", "--no-isolation", "--wheel", "--outdir", out, ROOT)
    run(sys.executable, *command, env=os.environ | {"SGDF_PREBUILT": "1"})
    (wheel,) = out.iterdir()
    return wheel


@pytest.fixture(scope="module")
def prebuilt(environment_of, with_kernel):
    return environment_of("prebuilt", with_kernel)


TRY_WITHOUT_COMPILER = """
import torch, sgdf
from sgdf.kernels import cpu

torch.manual_seed(0)
fast, slow = (torch.nn.Parameter(torch.linspace(-1, 1, 70_000)) for _ in range(2))
optimizers = [sgdf.FilterAdamW([fast]), sgdf.FilterAdamW([slow], fused=False, foreach=False)]
assert optimizers[0].implementation == "fused", optimizers[0].implementation
assert cpu.library()._name.startswith(str(cpu.PREBUILT)), cpu.library()
for step in range(5):
    fast.grad = torch.randn_like(fast)
    slow.grad = fast.grad.clone()
    for optimizer in optimizers:
        optimizer.step()
torch.testing.assert_close(fast, slow, rtol=1e-6, atol=1e-7)
assert not torch.equal(fast, torch.linspace(-1, 1, 70_000))
print(cpu.library()._name)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the wheel is for x86-64")
@pytest.mark.parametrize("capability", ["avx2", "own"])
def test_the_wheel_with_a_kernel_is_fast_without_a_compiler(
    with_kernel, prebuilt, surroundings, capability
):
    assert re.fullmatch(rf"{stem(LIBRARY)}-py3-none-manylinux_2_\d+_x86_64.whl", with_kernel.name)
    assert with_kernel.stat().st_size < LARGEST_WHEEL
    cache = surroundings["cwd"] / "cache"
    environment = {"PATH": str(prebuilt / "bin"), "XDG_CACHE_HOME": str(cache), "CXX": "/missing"}
    if capability == "avx2":
        environment["ATEN_CPU_CAPABILITY"] = "avx2"
    surroundings["env"] |= environment
    printed = run(prebuilt / "bin" / "python", "-c", TRY_WITHOUT_COMPILER, **surroundings)
    expected = capability if capability == "avx2" else torch.backends.cpu.get_cpu_capability()
    assert Path(printed.strip()).name == f"{expected.lower()}.so"
    assert not cache.exists(), "nothing was to be compiled"


def test_without_the_lab_the_module_names_it_in_one_sentence(environments, surroundings):
    command = [str(environments.library / "bin" / "python"), "-m", "sgdf", "demo"]
    ended = subprocess.run(command, capture_output=True, text=True, **surroundings)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "pip install sgdf-lab" in ended.stderr


def test_the_command_of_the_lab_trains_the_demo(environments, surroundings):
    folder = environments.both / "bin"
    for command in (
        [folder / "sgdf"],
        *([folder / "python", "-m", m] for m in ("sgdf", "sgdf_lab")),
    ):
        assert run(*command, "--version", **surroundings).strip() == sgdf.__version__
    printed = run(
        folder / "sgdf", "demo", "--digits", "--epochs", "1", "--jobs", "1", **surroundings
    )
    runs = surroundings["cwd"] / "runs" / "demo"
    assert len(list(runs.glob("*/result.json"))) == 48
    (page,) = runs.glob("*.html")
    assert page.name in printed
    assert "</html>" in page.read_text()
