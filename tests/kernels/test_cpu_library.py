"""Compiling the CPU kernels: the compiler, the cache, and doing without."""

import multiprocessing
import os
import warnings
from pathlib import Path

import pytest
import torch

from agreement import assert_bits, momentum_work, work_of
from kernels.problems import PLAIN, PLAIN_MOMENTUM, clone, eight_bit, problem
from sgdf.kernels import build, cpu

pytestmark = pytest.mark.skipif(
    not any(Path(d, c).exists() for d in os.get_exec_path() for c in ("c++", "g++", "clang++")),
    reason="needs a C++ compiler",
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What the compiler makes of the source: it takes seconds, so once."""
    output = tmp_path_factory.mktemp("compiled") / "library.so"
    cpu._compile(build.find_compiler(), output)
    return output.read_bytes()


@pytest.fixture
def quick_compiler(compiled, monkeypatch):
    monkeypatch.setattr(cpu, "_compile", lambda _, output: output.write_bytes(compiled))


@pytest.fixture
def cache(tmp_path, monkeypatch, quick_compiler):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sgdf" / "kernels"


@pytest.fixture
def afresh():
    """Forget the compiled library, before and after."""
    cpu._library_or_reason.cache_clear()
    cpu._warn_unavailable.cache_clear()
    yield
    cpu._library_or_reason.cache_clear()
    cpu._warn_unavailable.cache_clear()


def works(library):
    p = torch.ones(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "library", lambda: library)
        cpu.step(momentum_work([[p], [torch.ones(3)], [torch.zeros(3)]], PLAIN_MOMENTUM))
    return torch.allclose(p, torch.tensor(0.95))


def never(*_):
    pytest.fail("compiled again")


def test_a_second_process_does_not_compile(cache, monkeypatch):
    assert works(cpu._load())
    (kept,) = cache.iterdir()
    monkeypatch.setattr(cpu, "_compile", never)
    assert works(cpu._load())
    assert list(cache.iterdir()) == [kept]


def test_nothing_of_a_step_compiles_again(monkeypatch):
    assert cpu.available()
    monkeypatch.setattr(cpu, "_compile", never)
    for n in (1, 2, 30):
        cpu.step(work_of(problem([(n,)] * n), {**PLAIN, "lr": 0.1 / n}))


def test_what_makes_the_key(monkeypatch, tmp_path):
    compiler = build.find_compiler()
    keys = {cpu._key(compiler)}
    monkeypatch.setattr(cpu, "FLAGS", [*cpu.FLAGS, "-g"])
    keys.add(cpu._key(compiler))
    changed = tmp_path / "cpu.cpp"
    changed.write_text(cpu.SOURCE.read_text() + "\n")
    monkeypatch.setattr(cpu, "SOURCE", changed)
    keys.add(cpu._key(compiler))
    script = tmp_path / "other"
    script.write_text("#!/bin/sh\necho version 2\n")
    script.chmod(0o755)
    keys.add(cpu._key([str(script)]))
    script.write_text("#!/bin/sh\necho version 3\n")
    keys.add(cpu._key([str(script)]))
    assert len(keys) == 5


@pytest.mark.parametrize("damage", ["cut short", "not a library", "empty"])
def test_a_broken_cached_file_is_rebuilt(cache, damage):
    cpu._load()
    (kept,) = cache.iterdir()
    content = kept.read_bytes()
    kept.unlink()  # this process has it mapped
    if damage == "not a library":  # though its digest is right
        key = kept.stem.split("-")[1]
        kept = cache / f"filter-{key}-{build.digest(b'hello')}.so"
        kept.write_bytes(b"hello")
    else:
        kept.write_bytes(content[: len(content) // 2] if damage == "cut short" else b"")
    assert works(cpu._load())
    (kept,) = cache.iterdir()
    assert kept.stem.endswith(build.digest(kept.read_bytes()))
    assert len(kept.read_bytes()) == len(content)


@pytest.mark.usefixtures("quick_compiler")
def test_an_unwritable_cache(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path))
    assert works(cpu._load())
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "left in the temporary directory"


def test_a_full_disk(cache, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert works(cpu._load())
    assert list(cache.iterdir()) == []


def test_a_plain_compiler_gives_the_same_bits(monkeypatch, tmp_path):
    """A compiler without OpenMP and without -march=native: roots and quotients round alike."""
    script = tmp_path / "plain"
    refuse = 'for a in "$@"; do case $a in -march=*|-fopenmp) exit 1;; esac; done'
    script.write_text(f'#!/bin/sh\n{refuse}\nexec {build.find_compiler()[0]} "$@"\n')
    script.chmod(0o755)
    columns = [a + b for a, b in zip(problem([(2000,)]), eight_bit([(64, 256)]), strict=True)]
    expected = clone(columns)
    cpu.step(work_of(expected, PLAIN))
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = cpu._load()
    monkeypatch.setattr(cpu, "library", lambda: plain)
    cpu.step(work_of(columns, PLAIN))
    for column, other in zip(columns, expected, strict=True):
        for a, b in zip(column, other, strict=True):
            assert_bits(a, b)


@pytest.mark.parametrize("missing", ["CXX", "PATH", "fails", "blank", "quote"])
@pytest.mark.usefixtures("afresh")
def test_without_a_working_compiler_it_warns_once(missing, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = tmp_path / "broken"
    script.write_text("#!/bin/sh\necho 'error: no such luck' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    if missing == "PATH":
        monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    else:
        commands = {"CXX": "/nonexistent/c++", "fails": str(script), "blank": " ", "quote": "'x"}
        monkeypatch.setenv("CXX", commands[missing])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [cpu.available() for _ in range(3)] == [False] * 3
    (warning,) = caught
    reasons = {"CXX": "/nonexistent/c++", "PATH": "no C++ compiler", "fails": "no such luck"}
    reasons |= {"blank": "' ' (CXX)", "quote": "(CXX): No closing quotation"}
    assert reasons[missing] in str(warning.message)
    assert "foreach" in str(warning.message)
    assert warning.filename == __file__
    with pytest.raises(RuntimeError, match="not available"):
        cpu.step(work_of(problem([(3,)]), PLAIN))


def test_four_processes_compile_at_once(cache):
    context = multiprocessing.get_context("fork")  # imports nothing again
    processes = [context.Process(target=load_and_exit) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert {path.suffix for path in cache.iterdir()} == {".so"}


def load_and_exit():
    os._exit(0 if works(cpu._load()) else 1)
