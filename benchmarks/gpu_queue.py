"""What waits for a GPU: an ordered list of measurements, made in slices of any length.

    python benchmarks/gpu_queue.py --list             # what is done, and what data is missing
    python benchmarks/gpu_queue.py --minutes 25       # measure for so long; again, and it goes on
    python benchmarks/gpu_queue.py --only step-times  # one entry
    python benchmarks/gpu_queue.py --tiny             # every command at a tiny size, on a CPU

The entries, in `gpu_entries.py`, are a few commands each. One is skipped if it was completed
with the same words, the same inputs (plans, scripts, kernels) and the same data:
`results/gpu/NAME.json` says so, with commit, machine, versions and the checksum of the data. A
sweep adds every run that ends to its record, and continues at its checkpoints. Any other command
writes elsewhere, and its record appears when it is whole. So the queue may be killed at any
instant. `docs/measure.md` tells how to contribute a record.

A run of a sweep counts by its settings and, where it is the user's, its data. If the code changes
what a run gives, its record has to move to `superseded.jsonl`, or the entry needs another record.
"""

import argparse
import contextlib
import ctypes
import functools
import glob
import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_entries import DATA, LAB, OUT, RECORDS, ROOT, WORK, WORKING, Command, Entry, entries

RESULTS = "results/gpu"  # of the queue's own records
MARGIN = 45.0  # seconds before the end at which a command is asked to stop
PATIENCE = 60.0  # seconds that it then has
DATA_PLACES = {f"{{{name}}}": str(data.path) for name, data in DATA.items()}
SOURCES = ("src", "lab/src")  # not an installed copy, which knows no commit
TESTS = ("tests", "lab/tests", ".")

# --- what is done ---------------------------------------------------------------------------------


def version(entry: Entry, command: Command) -> str:
    """A hash of what the numbers depend on: the command, and the files that the entry names."""
    total = hashlib.sha256(json.dumps(command.words).encode())
    for pattern in entry.inputs:
        for file in sorted(ROOT.glob(pattern)):
            if file.is_file():
                total.update(file.relative_to(ROOT).as_posix().encode())
                total.update(hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()[:16]


def read_done(entry: Entry) -> dict[str, Any]:
    """By command, what its record says; nothing if there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        path = ROOT / RESULTS / f"{entry.name}.json"
        return {one["command"]: one for one in json.loads(path.read_text("utf-8"))["commands"]}
    return {}


def is_done(entry: Entry, command: Command, sums: dict[str, str] | None = None) -> bool:
    """Whether it was completed with these inputs, and this data if checksums are given."""
    done = read_done(entry).get(command.shown)
    if done is None or done.get("version") != version(entry, command):
        return False
    if command.record and not (ROOT / "results" / command.record).exists():
        return False
    return sums is None or done.get("data") == {name: sums[name] for name in entry.data}


def standing(entry: Entry, sums: dict[str, str] | None = None) -> list[bool]:
    """Which commands are done. What only makes files is, as long as nobody needs a missing one."""
    done: list[bool] = []
    for command in reversed(entry.commands):
        found = not command.makes or any((ROOT / WORK).glob(command.makes))
        done.insert(0, is_done(entry, command, sums) and (found or all(done)))
    return done


def write_done(entry: Entry, command: Command, sums: dict[str, str], seconds: float) -> None:
    import torch

    from sgdf_lab.support import provenance
    from sgdf_lab.support.files import write_json

    known = read_done(entry)
    known[command.shown] = {
        "command": command.shown,
        "record": command.record and f"results/{command.record}",
        "version": version(entry, command),
        "data": {name: sums[name] for name in entry.data},
        "commit": provenance.commit(),
        "machine": provenance.machine("cuda" if torch.cuda.is_available() else "cpu"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
    kept = [known[c.shown] for c in entry.commands if c.shown in known]
    target = ROOT / RESULTS / f"{entry.name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_json(target, {"entry": entry.name, "commands": kept}, indent=1)


# --- running --------------------------------------------------------------------------------------


@dataclass
class Line:
    """A row of the table at the end."""

    entry: str
    state: str  # done, left, failed, or needs data
    note: str = ""
    minutes: float = 0.0


@dataclass
class Queue:
    """Runs commands one after the other until the time is up."""

    end: float
    retry: bool = False
    lines: list[Line] = field(default_factory=list)
    stopped: bool = False
    process: "subprocess.Popen[bytes] | None" = None

    def left(self) -> float:
        return self.end - time.monotonic()

    def take(self, entry: Entry, sums: dict[str, str]) -> None:
        missing = False  # what an earlier command makes
        for command, done in zip(entry.commands, standing(entry, sums), strict=True):
            if done:
                line = Line(entry.name, "done", "before")
            elif missing or self.stopped or self.left() < MARGIN:
                line = Line(entry.name, "left", command.shown)
            elif not command.resumes and 60 * command.minutes > self.left() - MARGIN:
                note = f"needs {command.minutes:g} minutes: {command.shown}"
                line = Line(entry.name, "left", note)
            else:
                line = self.measure(entry, command, sums)
            missing |= bool(command.makes) and line.state != "done"
            self.lines.append(line)

    def measure(self, entry: Entry, command: Command, sums: dict[str, str]) -> Line:
        say(f"{entry.name}: {command.shown}")
        start = time.monotonic()
        out = ROOT / WORK / "records" / entry.name / Path(command.record).name
        if command.record and not command.resumes:
            out.parent.mkdir(parents=True, exist_ok=True)
            remove(out)
        words = with_places(command.words, str(out), WORK, "results")
        code = self.run([*words, "--retry"] if self.retry and command.sweeps else words)
        minutes = (time.monotonic() - start) / 60
        if self.stopped or (code != 0 and self.left() < MARGIN):
            return Line(entry.name, "left", f"stopped: {command.shown}", minutes)
        if code != 0:
            return Line(entry.name, "failed", f"exit code {code}: {command.shown}", minutes)
        if command.record and not command.resumes:
            keep(out, ROOT / "results" / command.record)
        write_done(entry, command, sums, 60 * minutes)
        return Line(entry.name, "done", command.shown, minutes)

    def run(self, words: Sequence[str]) -> int:
        """The exit code; a command that takes too long is asked to stop, and then made to."""
        folders = (*SOURCES, *TESTS) if words[:2] == ["-m", "pytest"] else SOURCES
        paths = [*(str(ROOT / name) for name in folders), os.environ.get("PYTHONPATH", "")]
        self.process = process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
        )
        for how, patience in (
            (signal.SIGINT, max(self.left() - MARGIN, 0.0)),
            (signal.SIGTERM, PATIENCE),
            (signal.SIGKILL, PATIENCE),
        ):
            try:
                return process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                self.stopped = True
                process.send_signal(how)
        return process.wait()

    @contextlib.contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM stop the command, and the queue after it: the table still comes."""

        def stop(*_: Any) -> None:
            self.stopped = True
            if self.process is not None:
                self.process.send_signal(signal.SIGINT)

        before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def die_with_parent(parent: int) -> None:
    """A killed queue must not leave a command that holds the GPU and the locks of its runs."""
    os.setpgrp()  # Ctrl-C of a terminal goes to the queue, which passes it on
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # killed since it made this process
        os._exit(1)


def with_places(
    words: Sequence[str], out: str, work: str, results: str, matched: int | None = None
) -> list[str]:
    """The words of a command, with its places and what their patterns match (at most so many)."""
    found: list[str] = []
    for word in words:
        for name, place in {OUT: out, WORKING: work, RECORDS: results, **DATA_PLACES}.items():
            word = word.replace(name, place)
        setting, equals, pattern = word.rpartition("=")
        matches = sorted(glob.glob(pattern, root_dir=ROOT)) if "*" in pattern else []
        found += [f"{setting}{equals}{match}" for match in matches[:matched]] or [word]
    return found


def remove(path: Path) -> None:
    """What an earlier attempt left: half a record must never pass for a whole one."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def keep(made: Path, target: Path) -> None:
    """Put a finished record into its place; every file is whole or absent."""
    files = [(made, target)]
    if made.is_dir():
        files = [(f, target / f.relative_to(made)) for f in made.rglob("*") if f.is_file()]
    for source, place in files:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = place.with_name(f".{place.name}.new")
        shutil.copyfile(source, beside)
        os.replace(beside, place)


def say(text: str) -> None:
    print(text, flush=True)


# --- data -----------------------------------------------------------------------------------------


def complaint(name: str) -> str:
    """Why the data cannot be used, and how to get it; nothing if it can. Reads all of it."""
    data = DATA[name]
    if not data.is_here:
        return f"{name} is not in {data.path}: {data.how}"
    from sgdf_lab import data as datasets
    from sgdf_lab.registry.datasets import DATASETS
    from sgdf_lab.support.errors import UserError

    if name in DATASETS:
        spec = datasets.find(name)
        try:
            if isinstance(spec, datasets.ArrayDataset):
                spec.load(None)
            else:
                spec.fetch(None)  # what is here is only checked
        except UserError as error:
            return f"{name}: {error}"
    return ""


def checked(chosen: Sequence[Entry]) -> tuple[dict[str, str], dict[str, str]]:
    """The checksums of the data that can be used, and the complaints about the rest."""
    names = dict.fromkeys(name for entry in chosen for name in entry.data)
    complaints = {name: said for name in names if (said := complaint(name))}
    return {name: DATA[name].checksum() for name in names if name not in complaints}, complaints


# --- a tiny size ----------------------------------------------------------------------------------

STOPPED = 130  # the exit code after Ctrl-C or SIGTERM
TINY_NETWORKS = {"cifar10": "cnn", "cifar100": "cnn", "voc": "fasterrcnn-tiny"}


def try_all(chosen: Sequence[Entry]) -> int:
    """Every command at its tiny size on the CPU, in this process and a folder that is removed."""
    shrink_the_paper()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        DATA_PLACES["{imagenette}"] = str(tiny_pictures(Path(folder) / "imagenette"))
        places = f"{folder}/work", f"{folder}/results"
        for entry in chosen:
            for number, command in enumerate(entry.commands):
                start = time.process_time()
                out = Path(folder) / "records" / entry.name / str(number)
                out.parent.mkdir(parents=True, exist_ok=True)
                words = with_places((*command.words, *command.tiny), str(out), *places, 1)
                code = tried(words)
                seconds = time.process_time() - start
                say(f"{entry.name}: {seconds:.1f} s of CPU, exit code {code}")
                if code == STOPPED:
                    return code
                made = not command.record or out.exists() or command.resumes
                if code or not made:
                    failed.append(f"{entry.name}: {shlex.join(words)}")
    print("\n".join(["failed:", *failed] if failed else ["all commands run"]))
    return int(bool(failed))


def tried(words: list[str]) -> int:
    """The exit code of a command, run in this process: another would import torch again."""
    import runpy

    import pytest

    from sgdf_lab.cli.main import main as sgdf

    try:
        if tuple(words[:2]) == LAB:
            return sgdf(words[2:])
        if words[:2] == ["-m", "pytest"]:
            return int(pytest.main(words[2:]))
        sys.argv = words
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    except SystemExit as end:
        return int(bool(end.code))
    return 0


def shrink_the_paper() -> None:
    """All contestants of the presets, with small networks on few images."""
    from sgdf_lab import paper
    from sgdf_lab.data import synthetic

    synthetic.TRAIN, synthetic.TEST = 8, 4
    for name, preset in paper.PRESETS.items():
        cells = {
            (cell.task, cell.optimizer, cell.label): replace(
                cell, model=TINY_NETWORKS.get(cell.task, cell.model)
            )
            for cell in preset.cells
        }
        paper.PRESETS[name] = replace(preset, cells=tuple(cells.values()))


def tiny_pictures(folder: Path) -> Path:
    import numpy as np
    from PIL import Image

    for number in range(16):
        place = folder / ("train", "val")[number % 2] / ("cat", "dog")[number // 2 % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    return folder


# --- the command line -----------------------------------------------------------------------------


def show_list(chosen: Sequence[Entry]) -> None:
    for entry in chosen:
        done = sum(standing(entry))
        missing = [name for name in entry.data if not DATA[name].is_here]
        state = "done" if done == len(entry.commands) else f"{done} of {len(entry.commands)}"
        print(f"{entry.name:22}{entry.minutes:6.0f} min   {state:9}{entry.about}")
        for name in missing:
            print(f"{'':22}needs {name} in {DATA[name].path}: {DATA[name].how}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--minutes", type=float, default=25.0, help="how long to measure (default %(default)s)")
    add("--list", action="store_true", help="what there is, what is done, what data is missing")
    add("--only", metavar="NAME", help="one entry")
    add("--retry", action="store_true", help="train runs again that failed before")
    add("--tiny", action="store_true", help="every command at a tiny size on the CPU")
    options = parser.parse_args()
    known = entries()
    chosen = [entry for entry in known if options.only in (None, entry.name)]
    if not chosen:
        parser.error(f"there is no entry {options.only}: {', '.join(e.name for e in known)}")
    if options.list:
        show_list(chosen)
        return 0
    if options.tiny:
        return try_all(chosen)
    return measure(chosen, options.minutes, retry=options.retry)


def measure(chosen: Sequence[Entry], minutes: float, *, retry: bool = False) -> int:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: --tiny tries the commands on a CPU")
    sums, complaints = checked(chosen)
    queue = Queue(time.monotonic() + 60 * minutes, retry)
    with queue.stopped_by_signals():
        for entry in chosen:
            if lacking := [complaints[name] for name in entry.data if name in complaints]:
                queue.lines.append(Line(entry.name, "needs data", "; ".join(lacking)))
            else:
                queue.take(entry, sums)
    for line in queue.lines:
        print(f"{line.entry:22}{line.state:12}{line.minutes:6.1f} min   {line.note}")
    print("python benchmarks/evidence_page.py && python benchmarks/pages.py takes new numbers over")
    return int(any(line.state == "failed" for line in queue.lines))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "lab" / "src"), str(ROOT / "src")]
    sys.exit(main())
