"""The package as a user meets it: imports, the command line, the docs."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import sgdf

ROOT = Path(__file__).parents[2]


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def test_public_names():
    optimizers = {"SGDF", "FilterAdam", "FilterAdamW", "FilterMuon", "FilterSOAP", "Momentum"}
    others = {"WienerFilter", "param_groups", "step_in_backward"}
    assert set(sgdf.__all__) == optimizers | others


def test_import_brings_nothing_that_torch_and_numpy_do_not():
    code = (
        "import sys, numpy, torch, torch.optim; before = set(sys.modules); import sgdf; "
        "print({m.partition('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    assert python("-c", code).stdout.strip() == "{'sgdf'}"


def test_import_adds_little_to_importing_torch():
    """Bytecode counted, not seconds: what runs at import is definitions alone."""
    code = (
        "import sys, torch\n"
        "calls = 0\n"
        "def count(*_):\n"
        "    global calls\n"
        "    calls += 1\n"
        "sys.setprofile(count)\n"
        "import sgdf\n"
        "sys.setprofile(None)\n"
        "print(calls)"
    )
    assert int(python("-c", code).stdout) < 60_000  # importing torch: about twenty million


def test_command_line():
    version = python("-m", "sgdf_lab", "--version")
    assert version.stdout.strip() == sgdf.__version__
    wrong = python("-m", "sgdf_lab", "dmeo")
    assert wrong.returncode == 2
    assert "did you mean demo?" in wrong.stderr
    assert python("-m", "sgdf_lab", "demo", "--epochs", "0").returncode == 2


def test_a_missing_extra_is_one_sentence(tmp_path):
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ModuleNotFoundError(name='rich')")
    failed = python("-m", "sgdf_lab", "demo", PYTHONPATH=str(tmp_path))
    assert failed.returncode == 1
    assert failed.stderr.strip() == 'sgdf: rich is not installed: pip install "sgdf-lab"'
    assert (
        "Traceback" in python("-m", "sgdf_lab", "--debug", "demo", PYTHONPATH=str(tmp_path)).stderr
    )


def test_make_installs_again_when_and_only_when_a_dependency_file_changed(tmp_path):
    (tmp_path / "lab").mkdir()
    dependencies = ("pyproject.toml", "lab/pyproject.toml", "constraints.txt")
    for name in ("Makefile", *dependencies):
        (tmp_path / name).write_text((ROOT / name).read_text())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()

    def planned(target):
        command = ["make", "--dry-run", target]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

    assert "pip install" in planned("demo")
    for stamp in (".installed-lab", ".installed-dev"):
        (tmp_path / ".venv" / stamp).touch()
    for target in ("demo", "test"):
        assert "pip install" not in planned(target)
    for name in dependencies:
        later = (tmp_path / ".venv" / ".installed-dev").stat().st_mtime + 10
        os.utime(tmp_path / name, (later, later))
        for target in ("demo", "test"):
            assert "pip install" in planned(target)
        os.utime(tmp_path / name, (later - 20, later - 20))


# --- the tests themselves -------------------------------------------------------------------------


def test_a_skip_is_accepted_only_with_a_reason_on_the_list():
    def skipped(reason: str) -> SimpleNamespace:
        return SimpleNamespace(nodeid="tests/a.py::b", longrepr=("a.py", 1, f"Skipped: {reason}"))

    conftest = runpy.run_path(str(ROOT / "tests" / "conftest.py"))
    unexpected_skips = conftest["unexpected_skips"]
    assert unexpected_skips([skipped("nothing can be mounted here: no root")]) == []
    assert unexpected_skips([skipped("could not import 'ray'")]) == [
        "tests/a.py::b: could not import 'ray'"
    ]


def test_what_is_listed_as_slow_is_there():
    """A file that was moved would be part of `make check`."""
    listed = re.findall(r'^    "(\S+\.py)",$', (ROOT / "lab/tests/conftest.py").read_text(), re.M)
    assert listed
    assert [name for name in listed if not (ROOT / name).exists()] == []
