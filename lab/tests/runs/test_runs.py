"""A run on disk: whatever happens to the process, repeating the command gives the same numbers."""

import contextlib
import itertools
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import damage
from runs.commands import EVERY_EPOCH, Clock, Ended, Server, fault, folder_in
from sgdf_lab.cli.main import main
from sgdf_lab.runs import config as configs
from sgdf_lab.runs import run_folder, session
from sgdf_lab.support.errors import UserError
from sgdf_lab.tasks.classify import Classifier

TRAIN = ("train", "digits", "--data", "synthetic", "--device", "cpu")
SHORT = (*TRAIN, "--set", "batch=512", "--epochs", "3")
KEEPING = (*SHORT, "--keep", "1")
LONG = (*TRAIN, "--set", "batch=128", "--epochs", "40")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.process.communicate()


@dataclass
class Undisturbed:
    """The files of an uninterrupted run."""

    metrics: bytes
    result: dict[str, Any]
    kept: dict[int, dict[str, Any]]  # checkpoints by epoch
    seconds: float


@pytest.fixture(scope="module")
def undisturbed(
    server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[tuple[str, ...]], Undisturbed]:
    cache: dict[tuple[str, ...], Undisturbed] = {}

    def of(argv: tuple[str, ...]) -> Undisturbed:
        if argv not in cache:
            out = tmp_path_factory.mktemp("undisturbed")
            start = time.monotonic()
            ended = server.run(argv, out, sync=argv == LONG)
            seconds = time.monotonic() - start
            assert ended.code == 0, ended.output
            metrics = (folder_in(out) / "metrics.jsonl").read_bytes()
            cache[argv] = Undisturbed(metrics, result_in(out), kept_in(out), seconds)
        return cache[argv]

    return of


@pytest.fixture
def ends_the_same(server: Server, undisturbed: Any, tmp_path: Path) -> Callable[..., Ended]:
    """Repeat the command: it ends with the metrics and the result of an uninterrupted run."""

    def check(argv: tuple[str, ...] = SHORT, out: Path = tmp_path / "out") -> Ended:
        ended = server.run(argv, out, sync=argv == LONG)
        assert ended.code == 0, ended.output
        expected = undisturbed(argv)
        assert (folder_in(out) / "metrics.jsonl").read_bytes() == expected.metrics
        assert without_times(result_in(out)) == without_times(expected.result)
        kept = kept_in(out)
        assert kept.keys() == expected.kept.keys()
        for epoch, theirs in expected.kept.items():
            assert kept[epoch]["metrics"] == theirs["metrics"]
            torch.testing.assert_close(kept[epoch]["model"], theirs["model"], rtol=0, atol=0)
        return ended

    return check


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def result_in(out: Path) -> dict[str, Any]:
    return dict(json.loads((folder_in(out) / "result.json").read_text()))


def kept_in(out: Path) -> dict[int, dict[str, Any]]:
    """The checkpoints that are kept, by epoch; raises if one is damaged."""
    folder = folder_in(out)
    return {epoch: run_folder.read_checkpoint(run_folder.kept_path(folder, epoch), CPU)
            for epoch in run_folder.kept_epochs(folder)}  # fmt: skip


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "seconds"}


def lines_in(out: Path) -> int:
    """Epochs in metrics.jsonl."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("*/metrics.jsonl"))


def epochs_saved(out: Path, name: str = "last.pt") -> int:
    """The epochs in a checkpoint; raises if it is damaged."""
    return int(run_folder.read_checkpoint(folder_in(out) / name, torch.device("cpu"))["epoch"])


def state_of(pid: int) -> str:
    """State of a process: R running, S sleeping, T stopped, Z zombie."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.002)


# --- kill -9 ------------------------------------------------------------------------------------


def size_of(path: Path) -> int:
    """0 for a file that was renamed in the meantime."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


@pytest.mark.slow
def test_ten_kills_at_random_instants(server, undisturbed, ends_the_same, out):
    expected = undisturbed(LONG)
    chance = random.Random(2411)
    story: list[tuple[float | str, int, int]] = []
    while len(story) < 10 or sum(after > before for _, before, after in story) < 3:
        before = lines_in(out)
        longest = (0.6 + 0.1 * len(story)) * expected.seconds  # more on a machine that is busy now
        delay: float | str = chance.uniform(0, longest)
        if len(story) in (3, 7):
            delay = "in the middle of a checkpoint"
            stuck = fault("write last.pt.new", "sleep", nth=chance.randrange(100))
            started = server.start(LONG, out, sync=True, **stuck)
            wait_until(lambda: any(map(size_of, out.glob("*/last.pt.new"))))
        else:
            started = server.start(LONG, out, sync=True)
            time.sleep(delay)
        started.send(signal.SIGKILL)
        if started.wait().code == 0:  # it was faster
            ends_the_same(LONG)
            shutil.rmtree(out)
            continue
        story.append((delay, before, lines_in(out)))
        print("waited, epochs in metrics.jsonl before and after:", story[-1])
    ends_the_same(LONG)


@pytest.fixture(scope="module")
def operations(server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The disk operations of a short run that keeps its checkpoints, in order."""
    out = tmp_path_factory.mktemp("traced") / "out"
    trace = out.with_name("trace")
    ended = server.run(KEEPING, out, fault={"trace": str(trace)}, saving_share=EVERY_EPOCH)
    assert ended.code == 0, ended.output
    return trace.read_text().splitlines()


@pytest.mark.slow
def test_killed_at_any_disk_operation(server, operations, ends_the_same, tmp_path):
    """Before each one, or half way through a write. A checkpoint has hundreds: at some of them.

    A kill at `open` or `fsync` leaves the same files as one at the next operation.
    """
    seen: Counter[str] = Counter()
    moments = []
    for op in operations:
        if not op.startswith(("open", "fsync")):
            moments.append((op, seen[op]))
        seen[op] += 1
    few = []
    for op, count in seen.items():
        if op.startswith("write") and op.endswith(".pt.new"):
            assert count > 50
            few += [(op, nth) for nth in (*range(0, count, 90), count - 1)]
    for i, (op, nth) in enumerate(moments):
        if op.startswith("write") and op.endswith(".pt.new") and (op, nth) not in few:
            continue
        out = tmp_path / str(i) / "out"
        out.parent.mkdir()
        ended = server.run(KEEPING, out, **fault(op, "SIGKILL", nth))
        assert ended.code == -signal.SIGKILL, (op, nth, ended)
        print("killed at", op, nth)
        if list(out.glob("*/config.json")):
            kept_in(out)
        ends_the_same(KEEPING, out)


def test_the_lists_are_cut_back_to_the_checkpoint(server, undisturbed, ends_the_same, out):
    killed = server.run(SHORT, out, **fault("write metrics.jsonl", "SIGKILL", nth=1))
    assert killed.code == -signal.SIGKILL
    path = folder_in(out) / "metrics.jsonl"
    first, rest = path.read_bytes().splitlines(keepends=True)
    assert not rest.endswith(b"\n")
    assert server.run(SHORT, out, **fault("replace env.json", "SIGINT")).code == 130
    assert path.read_bytes() == first
    ends_the_same()


def test_a_file_is_flushed_before_it_replaces_another(operations):
    """A loss of power requires it, and no test can cause one."""
    for i, op in enumerate(operations):
        if op.startswith("replace") and op != "replace previous.pt":
            name = op.removeprefix("replace ")
            others = ("replace previous.pt", f"open {name}.new")  # the first one is read back
            before = [o for o in operations[:i] if o not in others]
            assert before[-1] == f"fsync {name}.new"
            assert operations[i + 2] in ("fsync folder", "fsync kept")


def test_the_lists_are_flushed_before_the_result(server, operations):
    """Appending a line does not flush."""
    end = operations.index("replace result.json")
    last_line = max(i for i, op in enumerate(operations) if op == "write times.jsonl")
    assert {"fsync metrics.jsonl.new", "fsync times.jsonl.new"} <= {*operations[last_line:end]}


# --- damaged checkpoints ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_epochs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run that was killed in its third epoch: both its checkpoints are there."""
    out = tmp_path_factory.mktemp("two") / "out"
    ended = server.run(SHORT, out, **fault("open metrics.jsonl", "SIGKILL", nth=2))
    assert ended.code == -signal.SIGKILL, ended.output
    assert (epochs_saved(out), epochs_saved(out, "previous.pt")) == (2, 1)
    return out


@pytest.fixture
def half_done(two_epochs: Path, out: Path) -> Path:
    """A copy of it."""
    return folder_in(Path(shutil.copytree(two_epochs, out)))


@pytest.mark.parametrize(
    "change", [damage.cut(0.5), damage.SPECIAL["empty"], damage.SPECIAL["random bytes"]]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(change, half_done, ends_the_same):
    change(half_done / "last.pt")
    output = ends_the_same().output
    assert re.search(
        rf"{half_done}/last.pt is damaged \(.+\), kept as .+: the one before it is used", output
    )
    assert json.loads((half_done / "env.json").read_text())["from_epoch"] == 1


def test_a_damaged_checkpoint_does_not_replace_an_intact_one(server, half_done, ends_the_same, out):
    damage.cut(0.5)(half_done / "last.pt")
    ended = server.run(SHORT, out, **fault("replace last.pt", "SIGKILL"))
    assert ended.code == -signal.SIGKILL, ended.output
    assert epochs_saved(out, "previous.pt") == 1
    ends_the_same()


def test_no_flipped_byte_goes_unnoticed(two_epochs, tmp_path):
    """Unless it lies in a gap between the parts and changes nothing."""
    cpu = torch.device("cpu")
    good = folder_in(two_epochs) / "last.pt"
    data, expected = good.read_bytes(), run_folder.read_checkpoint(good, cpu)
    path = tmp_path / "last.pt"
    noticed = 0
    for i in random.Random(1).sample(range(len(data)), 100):
        path.write_bytes(data[:i] + bytes([data[i] ^ 0x10]) + data[i + 1 :])
        try:
            read = run_folder.read_checkpoint(path, cpu)
        except run_folder.DamagedCheckpoint:
            noticed += 1
        else:
            for name, value in expected.items():
                if name in ("run", "layout"):  # words, which torch does not compare
                    assert read[name] == value
                else:
                    torch.testing.assert_close(read[name], value, rtol=0, atol=0)
    assert noticed > 60


# --- a full disk --------------------------------------------------------------------------------

FULL = re.compile(
    r"^sgdf: the disk of .+ is full: what was saved is whole; make room and run the same command "
    r"again\n$",
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("op", "nth", "saved"),
    [
        ("mkdir out", 0, None),
        ("write lock", 0, None),
        ("write config.json.new", 0, None),
        ("fsync metrics.jsonl.new", 0, None),
        ("write env.json.new", 0, None),
        ("write metrics.jsonl", 0, None),
        ("write metrics.jsonl", 1, 1),
        ("write times.jsonl", 2, 2),
        ("write last.pt.new", 200, 1),
        ("write 2.pt.new", 30, None),
        ("replace 2.pt", 0, None),
        ("fsync last.pt.new", 2, 2),
        ("write result.json.new", 0, 3),
    ],
)
def test_a_disk_that_fills_up(op, nth, saved, server, ends_the_same, out):
    ended = server.run(KEEPING, out, **fault(op, "full", nth))
    assert ended.code == 1, ended
    assert FULL.search(ended.output), ended.output
    assert "Traceback" not in ended.output
    assert not list(out.rglob("*.new")), "left behind"
    if saved is not None:
        assert epochs_saved(out) == saved
    ends_the_same(KEEPING)


def test_weights_of_every_second_epoch_are_kept(server, out):
    assert server.run((*SHORT, "--keep", "2"), out).code == 0
    assert run_folder.kept_epochs(folder_in(out)) == [0, 2]
    with pytest.raises(UserError, match=r"of epoch 1: it has those of 0, 2"):
        run_folder.find_checkpoint(folder_in(out), 1)
    (folder_in(out) / "kept" / "notes.pt").write_text("mine")
    assert run_folder.kept_epochs(folder_in(out)) == [0, 2]


@pytest.fixture
def file_system(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A function that mounts a file system; called again, it remounts it with other options."""
    path = tmp_path / "disk"
    mounted = False

    def mount(options: str) -> Path:
        nonlocal mounted
        path.mkdir(exist_ok=True)
        options = f"remount,{options}" if mounted else options
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"nothing can be mounted here: {getattr(error, 'stderr', error)}")
        mounted = True
        return path

    yield mount
    if mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_disk_that_is_really_full(server, file_system, two_epochs, ends_the_same):
    out = file_system("size=4k") / "out"
    ended = server.run(SHORT, out, log=out.parent.with_name("log"), saving_share=EVERY_EPOCH)
    assert ended.code == 1, ended
    assert FULL.search(ended.output), ended.output
    one = (folder_in(two_epochs) / "last.pt").stat().st_size
    file_system(f"size={8 * 4096 + int(1.5 * one)}")  # room for one checkpoint, not for two
    ended = server.run(SHORT, out, log=out.parent.with_name("log"), saving_share=EVERY_EPOCH)
    assert ended.code == 1, ended
    assert FULL.search(ended.output), ended.output
    assert epochs_saved(out) == 1
    file_system("size=2m")
    ends_the_same(out=out)


# --- folders that cannot be written -------------------------------------------------------------


def assert_one_sentence(ended: Ended, pattern: str) -> None:
    assert ended.code == 1, ended
    assert re.fullmatch(f"sgdf: {pattern}\n", ended.output), ended.output


def test_the_folder_is_on_a_read_only_disk(server, file_system):
    out = file_system("size=2m") / "out"
    log = out.parent.with_name("log")
    started = server.run(SHORT, out, log=log, **fault("open metrics.jsonl", "SIGKILL", nth=2))
    assert started.code == -signal.SIGKILL
    file_system("ro")
    for place in (out, out.with_name("new")):
        ended = server.run(SHORT, place, log=log)
        assert_one_sentence(ended, rf"{place}/\S+ cannot be written: Read-only file system")


def test_the_folder_belongs_to_someone_else():
    """Root may write anywhere, so the process becomes nobody after a first run did all imports."""
    script = """
import os, pathlib, sys, tempfile
from sgdf_lab.cli.main import main
with tempfile.TemporaryDirectory() as folder:
    os.chmod(folder, 0o755)
    words = ["train", "digits", "--epochs", "1", "--device", "cpu", "--out"]
    assert main([*words, folder + "/first"]) == 0
    locked = pathlib.Path(folder, "locked")
    locked.mkdir(mode=0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)
    code = main([*words, str(locked)])
    left = list(locked.iterdir())
    if os.getuid() == 0:
        os.seteuid(0)
sys.exit(code if not left else 7)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 1, ended
    assert re.fullmatch(r"sgdf: \S+ cannot be written: Permission denied\n", ended.stderr), ended


@pytest.mark.parametrize("below", [".", "runs/here"])
def test_the_folder_is_a_file(below, server, out):
    out.touch()
    ended = server.run(SHORT, out / below, log=out.with_name("log"))
    assert_one_sentence(ended, rf"{out}/\S+ cannot be written: Not a directory")


def test_a_folder_with_an_odd_name(server, ends_the_same, tmp_path):
    out = tmp_path / "[old] runs [bold]"
    ended = server.run(SHORT, out, **fault("open metrics.jsonl", "SIGKILL", nth=2))
    assert ended.code == -signal.SIGKILL
    damage.cut(0.5)(folder_in(out) / "last.pt")
    output = ends_the_same(out=out).output
    assert f"{folder_in(out)}/last.pt is damaged" in output
    assert f"in '{folder_in(out)}'" in output


# --- one writer ---------------------------------------------------------------------------------


def test_two_processes_never_write_one_run(server, ends_the_same, undisturbed, out):
    first = server.start(SHORT, out, **fault("open metrics.jsonl", "SIGSTOP", nth=1))
    wait_until(lambda: state_of(first.pid) == "T")
    before = {path.name: path.read_bytes() for path in folder_in(out).iterdir()}
    second = server.run(SHORT, out, log=out.with_name("second"))
    assert_one_sentence(second, rf"{folder_in(out)} is being written by process {first.pid} on \S+")
    assert {path.name: path.read_bytes() for path in folder_in(out).iterdir()} == before
    first.send(signal.SIGCONT)
    assert first.wait().code == 0
    assert (folder_in(out) / "metrics.jsonl").read_bytes() == undisturbed(SHORT).metrics


def test_a_killed_process_releases_its_lock(server, ends_the_same, out):
    first = server.start(SHORT, out, **fault("open metrics.jsonl", "SIGSTOP", nth=1))
    wait_until(lambda: state_of(first.pid) == "T")
    assert server.run(SHORT, out, log=out.with_name("second")).code == 1
    first.send(signal.SIGKILL)
    assert first.wait().code == -signal.SIGKILL
    ends_the_same()


# --- signals -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "op", "nth", "saved"),
    [
        ("SIGINT", "replace env.json", 0, 0),  # before the first epoch
        ("SIGINT", "open metrics.jsonl", 1, 2),  # at the end of the second
        ("SIGTERM", "open metrics.jsonl", 1, 2),
        ("SIGINT", "write last.pt.new", 200, 2),  # while it is saved
    ],
)
def test_stop_signals(word, op, nth, saved, server, ends_the_same, out):
    ended = server.run(SHORT, out, **fault(op, word, nth))
    assert ended.code == 130, ended
    assert "stopping: once more stops without saving\n" in ended.output
    where = folder_in(out)
    sentence = f"sgdf: stopped; saved: {saved} epochs in {where}. The same command resumes from"
    assert sentence in ended.output
    assert not saved or epochs_saved(out) == saved
    ends_the_same()
    assert json.loads((where / "env.json").read_text())["from_epoch"] == saved


def test_a_run_without_checkpoints_begins_again(server, undisturbed, out):
    spoilt = fault("open metrics.jsonl", "SIGINT", nth=1)
    ended = server.run((*SHORT, "--no-checkpoints"), out, **spoilt)
    assert ended.code == 130, ended
    assert "saved: 0 epochs" in ended.output
    assert not list(out.glob("**/*.pt"))
    ended = server.run((*SHORT, "--no-checkpoints"), out)
    assert ended.code == 0, ended
    assert not list(out.glob("**/*.pt"))
    with pytest.raises(UserError, match="has no checkpoint: it was trained with --no-checkpoints"):
        run_folder.find_checkpoint(folder_in(out))
    assert without_times(result_in(out)) == without_times(undisturbed(SHORT).result)
    assert json.loads((folder_in(out) / "env.json").read_text())["from_epoch"] == 0


def test_a_stop_signal_when_saving_is_slow(server, ends_the_same, out):
    """The epoch in progress is completed and saved first."""
    spoilt = {**fault("open metrics.jsonl", "SIGINT", nth=1), "saving_share": 1e-9}
    ended = server.run(SHORT, out, **spoilt)
    assert ended.code == 130, ended
    assert "saved: 2 epochs" in ended.output
    assert epochs_saved(out) == 2
    ends_the_same()


@pytest.mark.parametrize("op", ["open metrics.jsonl", "write last.pt.new", "replace last.pt"])
def test_a_second_stop_signal(op, server, ends_the_same, out):
    nth = {"write last.pt.new": 200}.get(op, 1)
    ended = server.run(SHORT, out, **fault(op, "SIGINT SIGINT", nth))
    assert ended.code == 130, ended
    assert "Traceback" not in ended.output
    assert ended.output.endswith("sgdf: stopped\n")
    ends_the_same()


def test_a_stop_signal_while_the_terminal_blocks(server, ends_the_same, out):
    """The signal arrives during a write to a pipe that nobody reads."""
    pipe = out.with_name("pipe")
    os.mkfifo(pipe)
    with open(pipe, "r+b", buffering=0) as both_ends:
        os.set_blocking(both_ends.fileno(), False)
        while both_ends.write(b"." * 4096):
            pass
        started = server.start(SHORT, out, log=pipe, **fault("", ""))
        wait_until(lambda: lines_in(out) == 1 and state_of(started.pid) == "S")
        started.send(signal.SIGINT)
        time.sleep(0.1)
        output = b""
        while state_of(started.pid) != "Z":
            output += both_ends.read(65536) or b""
        output += both_ends.read(65536) or b""
    assert server.ask(wait=started.pid) == 130, output
    assert b"saved: 1 epochs" in output
    ends_the_same()


def test_a_stop_signal_between_seeds(server, out):
    """The second seed does not begin once the first has ended."""
    both = (*SHORT, "--seed", "0", "1")
    ended = server.run(both, out, **fault("open result.json.new", "SIGINT"))
    assert ended.code == 130, ended
    assert len(list(out.iterdir())) == 1
    ended = server.run(both, out)
    assert ended.code == 0, ended
    assert len(list(out.rglob("result.json"))) == 2


# --- ends ---------------------------------------------------------------------------------------


def contents(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder_in(out).iterdir() if p.name != "lock"}


def test_a_run_that_diverges(server, out):
    argv = (*SHORT, "--optimizer", "sgd", "--set", "lr=1e10")
    ended = server.run(argv, out)
    assert ended.code == 0, ended
    result = result_in(out)
    assert result["status"] == "diverged"
    epoch = result["epochs"]
    assert f": diverged in epoch {epoch}\n" in ended.output

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = (folder_in(out) / "metrics.jsonl").read_text().splitlines()
    metrics = [json.loads(line, parse_constant=refuse) for line in lines]
    assert [line["epoch"] for line in metrics] == list(range(1, epoch + 1))
    assert [line.get("diverged", False) for line in metrics] == [False] * (epoch - 1) + [True]
    assert metrics[-1]["train_loss"] is None

    before = contents(out)
    assert server.run(argv, out).output == ended.output
    assert contents(out) == before


def test_a_finished_run_is_not_trained_again(server, out):
    first = server.run(SHORT, out)
    before = contents(out)
    assert "previous.pt" not in before
    second = server.run(SHORT, out)
    assert second.code == 0
    result = first.output.index("digits mlp sgdf lr 0.5 seed 0: best")
    assert second.output == first.output[result:]
    assert contents(out) == before


def test_a_run_whose_last_step_ruins_it_has_diverged(out, monkeypatch):
    """The training losses are finite, the test loss is not."""
    measured = Classifier.metrics

    def ruined(self: Classifier) -> dict:
        metrics = measured(self)
        return {**metrics, "test_loss": math.nan} if metrics["epoch"] == 2 else metrics

    monkeypatch.setattr(Classifier, "metrics", ruined)
    assert main([*SHORT, "--epochs", "2", "--out", str(out)]) == 0
    assert result_in(out)["status"] == "diverged"
    assert result_in(out)["epochs"] == 2


def test_a_finished_run_is_shown_from_a_read_only_disk(server, file_system):
    out = file_system("size=2m") / "out"
    log = out.parent.with_name("log")
    first = server.run(SHORT, out, log=log)
    file_system("ro")
    second = server.run(SHORT, out, log=log)
    assert second.code == 0, second
    assert second.output in first.output


def test_runs_that_fail_together_fail_the_command(out, capsys, monkeypatch):
    """After all of them have ended."""
    results = iter([{"status": "failed", "error": "no [bold] idea"}, {"status": "diverged"}])
    monkeypatch.setattr(session, "train", lambda *_, **__: [{"epochs": 2, **next(results)}])
    assert main([*SHORT, "--seed", "0", "1", "--out", str(out)]) == 1
    output = capsys.readouterr()
    assert "seed 0: failed: no [bold] idea\n" in output.out
    assert "seed 1: diverged in epoch 2\n" in output.out
    assert output.err == "sgdf: 1 of 2 runs failed: the same command resumes them\n"


def settings_of_a_newer_version(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 99, "more": 1}))


def other_settings(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "batch": 64}))


GARBAGE = damage.text("\udcff\0{")
EMPTY, A_FOLDER = damage.SPECIAL["empty"], damage.SPECIAL["a folder"]
A_LIST, NESTED = (damage.text(damage.JSON_TEXTS[what]) for what in ("a list", "unclosed lists"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (settings_of_a_newer_version, "was written by a newer sgdf .+: update sgdf, or .+--out"),
        (other_settings, "has other settings than this run: move the folder away"),
        (GARBAGE, "cannot be read: .+"),
        (EMPTY, "cannot be read: .+"),
        (NESTED, "cannot be read: .+"),
        (A_FOLDER, "cannot be read: .+"),
        (A_LIST, "is not the settings of a run"),
    ],
)
def test_a_config_file_that_does_not_fit(change, sentence, server, half_done, out):
    change(half_done / "config.json")
    before = sorted(half_done.iterdir())
    ended = server.run(SHORT, out)
    assert_one_sentence(ended, f"{half_done}/config.json {sentence}")
    assert sorted(half_done.iterdir()) == before


@pytest.mark.parametrize("change", [GARBAGE, EMPTY, NESTED, A_FOLDER, A_LIST])
def test_a_damaged_result_file(change, server, half_done, ends_the_same, out):
    path = half_done / "result.json"
    path.touch()
    change(path)
    ended = server.run(SHORT, out)
    assert_one_sentence(
        ended, f"{path} cannot be read: .+; remove it and run the same command again"
    )
    path.rmdir() if path.is_dir() else path.unlink()
    ends_the_same()


@pytest.mark.parametrize("change", [GARBAGE, A_LIST, NESTED, EMPTY])
def test_a_damaged_environment_file(change, half_done, ends_the_same):
    """A run does not depend on it."""
    change(half_done / "env.json")
    ends_the_same()
    assert json.loads((half_done / "env.json").read_text())["from_epoch"] == 2


def test_every_start_is_recorded(half_done, ends_the_same):
    ends_the_same()
    now = json.loads((half_done / "env.json").read_text())
    assert now["from_epoch"] == 2
    assert [start["from_epoch"] for start in now["earlier"]] == [0]
    assert now["command"].startswith("sgdf train digits")


# --- how often it is saved ----------------------------------------------------------------------


@pytest.mark.parametrize(("epoch_takes", "saving_takes"), [(1.0, 0.01), (1.0, 0.1), (1.0, 3.0)])
def test_saving_takes_a_small_share_of_the_time(epoch_takes, saving_takes, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(run_folder, "time", clock)
    write = torch.save

    def slow_save(*arguments: Any) -> None:
        clock.now += saving_takes
        write(*arguments)

    monkeypatch.setattr(torch, "save", slow_save)
    run = run_folder.RunFolder(tmp_path, configs.make("digits", data="synthetic"))
    run.folder.mkdir()
    saves, epochs = [], 400
    for epoch in range(1, epochs + 1):
        clock.now += epoch_takes
        if run.save_is_due():
            run.save({"epoch": epoch})
            saves.append(epoch)
    assert saves[0] == 1
    assert len(saves) * saving_takes <= 0.02 * epochs * epoch_takes + saving_takes
    most = max(b - a for a, b in itertools.pairwise(saves))
    assert most <= saving_takes / (0.02 * epoch_takes) + 1


def test_the_last_epoch_is_saved_however_slow_the_disk(server, ends_the_same, out):
    ended = server.run(SHORT, out, saving_share=1e-9, **{"fault": {"trace": f"{out}.trace"}})
    assert ended.code == 0, ended
    trace = Path(f"{out}.trace").read_text().splitlines()
    assert trace.count("replace last.pt") == 2  # the first epoch, and the last
    assert epochs_saved(out) == 3
    ends_the_same()
