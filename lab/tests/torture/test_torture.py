"""The short form of the torture matrix, and that the matrix notices what it has to notice."""

import ast
import contextlib
import itertools
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import pages

pytest.importorskip("rich")

from runs.commands import Ended, folder_in
from torture import (
    bench,
    faults,
    gradients,
    hostile_files,
    hostile_plans,
    hostile_runs,
    kills,
    operations,
    runner,
    states,
)
from torture.bench import Bench, Left, Peace, check_same
from torture.outcome import (
    CRASH,
    DIFFERENT,
    HANG,
    SAME,
    TRACEBACK,
    Bug,
    Case,
    Outcome,
    check_refusal,
    check_success,
)
from torture.tasks import TASKS

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = {
    case.name: case
    for case in (
        *kills.cases(0), *faults.cases(), *hostile_runs.cases(), *hostile_files.cases(),
        *hostile_plans.cases(), *gradients.cases(0), *states.cases(0),
    )
}  # fmt: skip

#: One or two cases of every row.
SHORT_FORM = (
    "digits sgdf float32 0",
    "digits sophia-g float32 0",
    "digits filter_adam_int8 int8 state 0",
    "digits momentum_bf16 bf16 state 0",
    "full disk at write last.pt.new 200",
    "read-only disk at open metrics.jsonl 1",
    "no permission at replace last.pt 1",
    "broken disk at fsync last.pt.new 2",
    "removed folder at open last.pt.new 1",
    "files of at most 4000 bytes",
    "stopped and continued digits 0",
    "two writers digits 0",
    "killed rank digits 0",
    "last.pt cut to 50%",
    "last.pt bit 3 flipped",
    "last.pt with epoch 1000000000",
    "both with epoch 1000000000",
    "last.pt with no state of the optimizer",
    "last.pt with weights of other shapes",
    "last.pt with metrics that are a text",
    "last.pt with code in a checkpoint",
    "last.pt with code in a plain pickle",
    "last.pt with code in torch's old format",
    "last.pt of another seed",
    "last.pt of another network",
    "last.pt is a FIFO",
    "config.json is a FIFO",
    "result.json is a link to /dev/zero",
    "env.json holds deep lists",
    "lock is a folder",
    "lock is a link elsewhere",
    "last.pt.new is a link elsewhere",
    "config.json holds deep objects",
    "archive with absolute link",
    "archive with up",
    "dataset with code in a batch",
    "class folder with PostScript",
    "class folder with a link to the folder above",
    "tokenizer: a panic when it is used",
    "tokenizer: is a FIFO",
    "cache with a library in a folder that all can write",
    "cache with half a library",
    "page with name 0",
    "page with name 1",
    "report: metrics.jsonl holds deep lists",
    "report: config.json is a FIFO",
    "a config is a FIFO",
    "a sweep holds an integer of 5,000 digits",
    "trial: metrics.jsonl is empty",
    "loop SGDF float32 every magnitude 0",
    "foreach FilterAdam float32 every magnitude 0",
    "fused on the CPU SGDF bfloat16 every magnitude 0",
    "fused on the CPU FilterAdamW float32 huge 0",
    "fused on the CPU Momentum float32 denormal 0",
    "Triton, interpreted SGDF float32 every magnitude 0",
    "layouts and formats: FilterAdam separate int8 fused channels last 0",
    "layouts and formats: SGDF bf16 foreach with gaps 0",
    "layouts and formats: FilterMuon float32 loop transposed 0",
    "a default device: FilterAdamW int8 fused 0",
    "conversions: SGDF constant to FilterAdam separate 0",
    "conversions: torch AdamW amsgrad to FilterAdam fluctuation 0",
    "conversions: torch Adam to FilterSOAP 0",
    "conversions: FilterSOAP to FilterAdam derived 0",
    "tensors without values: SGDF float32 0",
    "foreign checkpoints: torch.optim AdamW 0",
    "foreign checkpoints: pytorch_optimizer Tiger 0",
    "damaged states: SGDF a state of text 0",
    "damaged states: Momentum a step of two numbers 0",
    "damaged states: FilterSOAP a moment less 0",
    "report of a changed record 0",
    "evidence --across of a changed record 0",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Bench]:
    made = Bench(Peace())
    yield made
    made.close()


@pytest.mark.parametrize("name", SHORT_FORM)
def test_a_case(name: str, lab: Bench, tmp_path: Path) -> None:
    if name.startswith("Triton"):
        pytest.importorskip("triton")
    outcome = ALL[name].tried(lab, tmp_path)
    assert not outcome.is_bug, f"{outcome.word}: {outcome.detail}"


def test_kills_at_some_disk_operations(lab: Bench, tmp_path: Path) -> None:
    """lab/tests/runs has all that leave other files; here some of all."""
    (tmp_path / "traced").mkdir()
    every = operations.cases(0, lab, tmp_path / "traced")
    found = list(itertools.takewhile(lambda case: case.name.startswith("digits"), every))
    assert len(found) > 500
    for i, case in enumerate(random.Random(5).sample(found, 10)):
        folder = tmp_path / str(i)
        folder.mkdir()
        outcome = case.tried(lab, folder)
        assert (outcome.word, outcome.faults) == (SAME, 1), (case.name, outcome)


def test_a_process_that_is_killed_at_once(lab: Bench, tmp_path: Path) -> None:
    """Possibly before it has a log."""
    for i in range(5):
        ended = lab.kill_after(lab.start(hostile_runs.SHORT, tmp_path / str(i)), 0.0)
        assert ended.code == -9


# --- what the matrix notices ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(lab: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    check_success(lab.run(hostile_runs.SHORT, out))
    return folder_in(out)


@pytest.mark.parametrize("file", ["metrics.jsonl", "result.json", "last.pt"])
def test_one_changed_number_is_noticed(file: str, finished: Path) -> None:
    expected, path = Left(finished), finished / file
    check_same(finished, expected)
    before = path.read_bytes()
    try:
        if file == "last.pt":
            checkpoint = torch.load(path, weights_only=True)
            weights = next(iter(checkpoint["model"].values()))
            weights.view(-1)[0] = torch.nextafter(weights.view(-1)[0], torch.tensor(9.0))
            torch.save(checkpoint, path)
        else:
            path.write_bytes(before.replace(b"1", b"2", 1))
        with pytest.raises(Bug) as caught:
            check_same(finished, expected)
    finally:
        path.write_bytes(before)
    assert caught.value.word == DIFFERENT


@pytest.mark.parametrize(
    ("code", "output", "word"),
    [
        (1, "sgdf: KeyError: 'model' (--debug shows where)\n", TRACEBACK),
        (1, "Traceback (most recent call last):\n", TRACEBACK),
        (1, "sgdf: first line\nsecond line\n", TRACEBACK),
        (0, "all is well\n", TRACEBACK),
        (-11, "", CRASH),
    ],
)
def test_what_is_not_one_sentence(code: int, output: str, word: str) -> None:
    with pytest.raises(Bug) as caught:
        check_refusal(Ended(code, output))
    assert caught.value.word == word
    check_refusal(Ended(1, "epoch 1\nsgdf: the disk of x is full\n"))


def test_a_process_that_hangs_is_noticed_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "IDLE", 0.2)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        with pytest.raises(Bug) as caught:
            bench.wait_for_end(process.pid)
        assert process.wait() == -signal.SIGKILL
    assert caught.value.word == HANG


def test_a_bug_is_reported_with_its_reproduction() -> None:
    tally = runner.Tally()
    case = Case("kills", "digits", "digits sgdf 0", lambda *_: Outcome(SAME))
    tally.add(case, Outcome(SAME, faults=4))
    tally.add(case, Outcome(DIFFERENT, faults=3, detail="why"), round_=1, seconds=6.0)
    (row,) = tally.sorted_rows()
    assert (row["cases"], row["tried"], row["faults"], row["outcomes"][DIFFERENT]) == (2, 1, 7, 1)
    assert tally.bugs[0]["again"] == (
        "python lab/tests/torture --only kills --case 'digits sgdf 0'"
    )
    assert "| kills | digits | 2 | 7 | 1 | 0 | 0 | 1 |" in pages.torture_table([row])
    row["planned"] = 1
    assert "| kills | 1 | 1 | 1 | 1 | 0.1 |" in pages.torture_kinds_table([row])


def test_every_case_has_a_name_of_its_own() -> None:
    found = [*kills.cases(0), *kills.cases(1), *faults.cases(), *hostile_runs.cases(),
             *hostile_files.cases(), *hostile_plans.cases(), *gradients.cases(0),
             *gradients.cases(1), *states.cases(0), *states.cases(1)]  # fmt: skip
    names = [(case.kind, case.name) for case in found]
    assert len(set(names)) == len(names)
    assert {case.kind for case in found} == {*runner.KINDS} - {"operations"}
    for task in TASKS.values():
        assert any(case.row.startswith(f"{task.name}, ") for case in found)


@pytest.mark.parametrize("file", sorted(Path(__file__).parent.glob("*.py")), ids=lambda f: f.stem)
def test_what_a_case_takes_from_a_module_is_there(file: Path) -> None:
    """Many cases are not in the short form, and use what other tests define."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("data", "sweeps", "tasks", "runs"):
            if find_spec("ray") is None and "test_cluster" in {alias.name for alias in node.names}:
                continue
            for alias in node.names:
                with contextlib.suppress(ModuleNotFoundError):
                    modules[alias.name] = import_module(f"{node.module}.{alias.name}")
    used = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    missing = [
        ast.unparse(node)
        for node in used
        if isinstance(node.value, ast.Name)
        and node.value.id in modules
        and not hasattr(modules[node.value.id], node.attr)
    ]
    assert missing == []


def test_gradients_beyond_the_bound_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "LARGEST", 1e-3)
    outcome = ALL["loop SGDF float32 moderate 0"].tried(None, None)
    assert outcome.word == DIFFERENT
    monkeypatch.undo()
    assert not ALL["loop SGDF float32 moderate 0"].tried(None, None).is_bug
