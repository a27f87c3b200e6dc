"""What waits for a GPU: an ordered list of measurements, made in slices of any length.

    python benchmarks/gpu_queue.py --list             # what is done, and what data is missing
    python benchmarks/gpu_queue.py --minutes 25       # measure for so long; again, and it goes on
    python benchmarks/gpu_queue.py --only step-times  # one entry
    python benchmarks/gpu_queue.py --tiny             # every command at a tiny size, on a CPU

An entry is a few commands. Each is skipped if it was completed with the same words, the same inputs
(plans, scripts, kernels) and the same data; `results/gpu/NAME.json` says so, with commit, machine,
versions and the checksum of the data. A sweep adds every run that ends to its record, and continues
at its checkpoints. Any other command writes elsewhere, and its record appears when it is whole. So
the queue may be killed at any instant. `docs/measure.md` tells how to contribute a record.
"""

import argparse
import contextlib
import ctypes
import glob
import hashlib
import json
import os
import re
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

ROOT = Path(__file__).resolve().parents[1]
RESULTS = "results/gpu"  # of the queue's own records
WORK = "runs/gpu-queue"  # checkpoints, and records that are not whole yet
MARGIN = 45.0  # seconds before the end at which a command is asked to stop
PATIENCE = 60.0  # seconds that it then has

# --- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """A data set by its place in the data folder, and how to get it."""

    place: str
    how: str

    @property
    def path(self) -> Path:
        home = os.environ.get("SGDF_DATA") or "~/.cache/sgdf/data"
        return Path(home).expanduser() / self.place

    @property
    def is_here(self) -> bool:
        return self.path.is_file() or (self.path.is_dir() and any(self.path.iterdir()))

    def checksum(self) -> str:
        """Over the names and contents of all files."""
        total = hashlib.sha256()
        files = [self.path] if self.path.is_file() else sorted(self.path.rglob("*"))
        for file in files:
            if file.is_file():
                total.update(file.relative_to(self.path.parent).as_posix().encode())
                with file.open("rb") as opened:
                    total.update(hashlib.file_digest(opened, "sha256").digest())
        return total.hexdigest()[:16]


TEXT = "docs/evidence.md, “The texts”, says how the file is made"
DATA = {
    "cifar10": Data("cifar10", "sgdf data fetch cifar10"),
    "cifar100": Data("cifar100", "sgdf data fetch cifar100"),
    "encyclopedia": Data("text/encyclopedia.txt", TEXT),
    "books": Data("text/books.txt", TEXT),
    "imagenette": Data("imagenette", "unpack imagenette2-160.tgz (github.com/fastai/imagenette) so "
                       "that imagenette/train and imagenette/val hold the classes"),
    "voc": Data("voc", "docs/detection.md names the three archives and the weights"),
}  # fmt: skip
DATA_PLACES = {f"{{{name}}}": str(data.path) for name, data in DATA.items()}

# --- entries --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command, with the minutes that it takes on an H200.

    `record` is what it leaves below results/, `OUT` in its words a place to write that to first.
    One that `resumes` is interrupted when the time is up. `tiny` words make it small: they follow
    the others, and the last value of an option counts.
    """

    words: tuple[str, ...]
    minutes: float
    record: str = ""
    resumes: bool = False
    tiny: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        words = ["sgdf" if word == "sgdf_lab" else re.sub(r"[{}]", "", word) for word in self.words]
        if words[:2] == ["-m", "sgdf"]:
            return shlex.join(words[1:])
        return shlex.join(["python", *words])


@dataclass(frozen=True)
class Entry:
    name: str
    about: str
    commands: tuple[Command, ...]
    data: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()  # files whose change makes it measure again; patterns

    @property
    def minutes(self) -> float:
        return sum(command.minutes for command in self.commands)


OUT, WORKING, RECORDS = "{out}", "{work}", "{results}"  # replaced when a command starts
KERNELS = ("src/sgdf/filter.py", "src/sgdf/kernels/*", "src/sgdf/optim/*.py")
ON_GPU = ("--device", "cuda")


def sweep(
    plan: str, minutes: float, record: str, *words: str, tiny: tuple[str, ...] = ()
) -> Command:
    """All runs of a plan; a preset of the paper is named instead of a file."""
    what = ("sweep", plan) if plan.endswith(".toml") else ("reproduce", plan)
    kept = ("--record", f"{RECORDS}/{record}/runs.jsonl", "--out", f"{WORKING}/{record}")
    command = ("-m", "sgdf_lab", *what, *words, *kept, *ON_GPU)
    return Command(command, minutes, f"{record}/runs.jsonl", True, (*TINY, *tiny))


TINY = ("--device", "cpu", "--data", "synthetic", "--jobs", "1")


def settings(*words: str) -> tuple[str, ...]:
    return tuple(part for word in words for part in ("--set", word))


ONE_EPOCH = ("--epochs", "1", *settings("batch=4"))
CLASSIFIER = ("--model", "cnn", "--seeds", "1", *ONE_EPOCH)
TINY_TEXT = (
    *("--model", "gpt-tiny", "--trials", "1", "--seeds", "1"),
    *settings("steps=2", "eval_every=1", "eval_tokens=64", "test_tokens=64", "batch=2"),
    *settings("context=16", "corpus="),
)


def paper(preset: str, minutes: float, *words: str, tiny: tuple[str, ...] = ()) -> Command:
    """Cells of a table of the paper."""
    return sweep(preset, minutes, preset, *words, tiny=("--seeds", "0", *ONE_EPOCH, *tiny))


def matched(preset: str, minutes: float) -> tuple[Command, ...]:
    """SGDF and SGD at the published rates, and SGD at the rate that matches SGDF's."""
    return (
        paper(preset, 2 * minutes, "--only", "sgdf", "sgd"),
        paper(preset, minutes, "--only", "sgd", "--set", "lr=0.05"),
    )


def corpus(name: str) -> tuple[str, ...]:
    return ("--set", f"corpus={{{name}}}")


def gpu_tests() -> tuple[Command, ...]:
    """A slice for each file that has GPU tests."""
    files = [
        path
        for folder in ("tests", "lab/tests")
        for path in sorted((ROOT / folder).rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8") or path.parent.name == "gpu"
    ]
    words = ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider")
    return tuple(
        Command((*words, file.relative_to(ROOT).as_posix()), 1.5, tiny=("--collect-only",))
        for file in files
    )


def script(name: str, minutes: float, record: str, *words: str, tiny: Sequence[str]) -> Command:
    command = (f"benchmarks/{name}.py", *words, "--out", OUT)
    return Command(command, minutes, record, tiny=(*tiny, "--device", "cpu"))


def entries() -> tuple[Entry, ...]:
    """In the order in which they are worth most."""
    evidence = "benchmarks/evidence/map"
    return (
        Entry("gpu-tests", "all tests that need a GPU", gpu_tests(),
              inputs=(*KERNELS, "tests/gpu/*.py", "lab/tests/gpu/*.py")),
        Entry("step-times", "time and memory of a step: README and docs/speed.md", (
            Command(("-m", "sgdf_lab", "bench", "step", *ON_GPU, "--out", OUT), 12,
                    "bench-step-cuda.json",
                    tiny=("--device", "cpu", "--lists", "tiny", "--repeats", "2", "--seconds",
                          "0.01", "--only", "sgd-fused", "adamw-fused", "sgdf-foreach")),
            script("step_in_backward", 2, "step-in-backward-cuda.json", *ON_GPU,
                   tiny=("--iterations", "1", "--rounds", "1", "--depth", "1", "--width", "64")),
        ), inputs=(*KERNELS, "lab/src/sgdf_lab/bench/*.py", "benchmarks/step_in_backward.py")),
        Entry("language", "a step of gpt-11m (aim: 6 ms) and gpt-124m (aim: 45 % of the peak)", (
            script("language", 5, "bench-language-cuda.json", *ON_GPU, tiny=("--quick",)),
        ), inputs=("benchmarks/language.py", "lab/src/sgdf_lab/training/*.py")),
        Entry("cifar10-fast", "10 seeds of SGD-Nesterov (aim: 94.00 in the mean) and of SGDF", (
            sweep("benchmarks/cifar10-fast.toml", 6, "cifar10-fast", "--together", "5",
                  tiny=("--model", "airbench-tiny", "--seeds", "0", *settings(
                      "steps=1", "eval_every=1", "batch=4"))),
        ), ("cifar10",), ("benchmarks/cifar10-fast.toml",)),
        Entry("first-steps", "first steps of ResNet18 in 12 epochs, 9 settings, 3 seeds", (
            sweep("benchmarks/first-steps/resnet18.toml", 25, "first-steps-resnet18",
                  "--together", "3", "--no-checkpoints", tiny=CLASSIFIER),
        ), ("cifar10",), ("benchmarks/first-steps/resnet18.toml",)),
        Entry("map-11m", "the contest of the map at 11 M parameters, 8 trials, 5 seeds", (
            sweep(f"{evidence}/gpt-11m-map.toml", 90, "evidence/gpt-11m-map", "--no-checkpoints",
                  *corpus("encyclopedia"), tiny=TINY_TEXT),
        ), ("encyclopedia",), (f"{evidence}/gpt-11m-map.toml",)),
        Entry("map-124m", "the same at 124 M parameters, 4 trials, 3 seeds", (
            sweep(f"{evidence}/gpt-124m-map.toml", 150, "evidence/gpt-124m-map", "--no-checkpoints",
                  *corpus("encyclopedia"), tiny=TINY_TEXT),
        ), ("encyclopedia",), (f"{evidence}/gpt-124m-map.toml",)),
        Entry("cifar100-vgg11", "the paper's table: all optimizers, and two rates of SGD", (
            paper("cifar100-vgg11", 25, "--seeds", "0"),
            paper("cifar100-vgg11", 8, "--only", "sgdf", "sgd", "--seeds", "0", "1", "2"),
            paper("cifar100-vgg11", 5, "--only", "sgd", "--set", "lr=0.05",
                  "--seeds", "0", "1", "2"),
        ), ("cifar100",)),
        *(
            Entry(name, "the paper's table: SGDF, SGD at the published and the matched rate",
                  matched(name, minutes), (name.partition("-")[0],))
            for name, minutes in (("cifar10-resnet34", 45), ("cifar100-resnet34", 45),
                                  ("cifar100-densenet121", 80), ("cifar10-densenet121", 80))
        ),
        Entry("wiener-adam", "the filter in front of Adam on CIFAR-100, three networks",
              (paper("wiener-adam", 160),), ("cifar100",)),
        Entry("correction", "with and without the correction factor",
              (paper("correction", 40),), ("cifar10", "cifar100")),
        Entry("hessian-cifar100", "ResNet18 on CIFAR-100, and the spectrum of its Hessian", (
            sweep("benchmarks/gpu/resnet18-cifar100.toml", 20, "resnet18-cifar100",
                  tiny=("--model", "mlp", *CLASSIFIER[2:])),
            Command(("-m", "sgdf_lab", "analyze", "hessian", f"{WORKING}/resnet18-cifar100/*-s*",
                     "--out", OUT, *ON_GPU), 20, "resnet18-cifar100-hessian",
                    tiny=("--device", "cpu", "--k", "2", "--images", "8", "--no-density",
                          "--trace-samples", "2")),
        ), ("cifar100",), ("benchmarks/gpu/resnet18-cifar100.toml",)),
        Entry("imagenette", "ResNet18 on real pictures, tuned alike", (
            sweep("benchmarks/gpu/imagenette.toml", 60, "imagenette", "--data-dir", "{imagenette}",
                  tiny=("--data", "real", "--trials", "1", "--seeds", "1", *ONE_EPOCH,
                        *settings("size=32", "validation=2"))),
        ), ("imagenette",), ("benchmarks/gpu/imagenette.toml",)),
        Entry("detection", "Faster R-CNN on VOC: SGDF and SGD", (
            paper("voc-fasterrcnn", 240, "--only", "sgdf", "sgd",
                  tiny=("--only", "sgdf", *settings("weights=random"))),
        ), ("voc",)),
        Entry("fine-tuning", "ViT-B/32, trained here on CIFAR-100, fine-tuned to CIFAR-10", (
            Command(("-m", "sgdf_lab", "train", "finetune-cifar100", "--model", "vit-b32",
                     "--optimizer", "adamw", "--set", "weights=random", "--epochs", "20",
                     "--out", f"{WORKING}/vit-b32", *ON_GPU), 12, resumes=True,
                    tiny=("--model", "vit-tiny", *TINY[:4], *ONE_EPOCH,
                          *settings("size=32", "accumulate=1"))),
            sweep("benchmarks/gpu/fine-tuning.toml", 15, "fine-tuning", "--set",
                  f"weights={WORKING}/vit-b32/*/last.pt",
                  tiny=("--model", "vit-tiny", "--seeds", "0", *ONE_EPOCH,
                        *settings("size=32", "accumulate=1"))),
        ), ("cifar10", "cifar100"), ("benchmarks/gpu/fine-tuning.toml",)),
        Entry("wgan-gp", "WGAN-GP with SGDF at rates at which it does not diverge", (
            Command(("-m", "sgdf_lab", "train", "cifar10", "--model", "resnet18", "--optimizer",
                     "sgd-nesterov", "--epochs", "20", "--out", f"{WORKING}/features", *ON_GPU),
                    2, resumes=True, tiny=(*TINY[:4], "--model", "cnn", *ONE_EPOCH)),
            sweep("benchmarks/gpu/wgan-gp.toml", 60, "wgan-gp-rates", "--set",
                  f"features={WORKING}/features/*",
                  tiny=("--model", "dcgan-tiny", "--seeds", "0", *ONE_EPOCH,
                        *settings("fid_every=1", "fid_samples=16"))),
        ), ("cifar10",), ("benchmarks/gpu/wgan-gp.toml",)),
    )  # fmt: skip


# --- what is done ---------------------------------------------------------------------------------


def version(entry: Entry, command: Command) -> str:
    """Of what the numbers depend on: the command, and the files that the entry names."""
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
    if done is None or done["version"] != version(entry, command):
        return False
    if command.record and not (ROOT / "results" / command.record).exists():
        return False
    return sums is None or done["data"] == {name: sums[name] for name in entry.data}


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
    lines: list[Line] = field(default_factory=list)
    stopped: bool = False

    def left(self) -> float:
        return self.end - time.monotonic()

    def take(self, entry: Entry, sums: dict[str, str]) -> None:
        for command in entry.commands:
            if is_done(entry, command, sums):
                self.lines.append(Line(entry.name, "done", "before"))
                continue
            if self.stopped or self.left() < MARGIN:
                self.lines.append(Line(entry.name, "left", command.shown))
                continue
            if not command.resumes and 60 * command.minutes > self.left():
                note = f"needs {command.minutes:.0f} minutes: {command.shown}"
                self.lines.append(Line(entry.name, "left", note))
                continue
            self.lines.append(self.measure(entry, command, sums))

    def measure(self, entry: Entry, command: Command, sums: dict[str, str]) -> Line:
        say(f"{entry.name}: {command.shown}")
        start = time.monotonic()
        out = ROOT / WORK / "records" / entry.name / Path(command.record).name
        if command.record and not command.resumes:
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(out, ignore_errors=True)
        words = with_places(command.words, str(out), WORK, "results")
        code = self.run(words)
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
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, preexec_fn=die_with_parent)
        with stopping(self, process):
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
def stopping(queue: Queue, process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the command, and the queue after it."""

    def stop(*_: Any) -> None:
        queue.stopped = True
        process.send_signal(signal.SIGINT)

    before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent() -> None:
    """A killed queue must not leave a command that holds the GPU and the locks of its runs."""
    os.setpgrp()  # Ctrl-C of a terminal goes to the queue, which passes it on
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


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


# --- a tiny size ----------------------------------------------------------------------------------

STOPPED = 130  # the exit code after Ctrl-C or SIGTERM
TINY_OPTIMIZERS = ("sgdf", "sgd", "adam", "filter-adam")
TINY_NETWORKS = {"cifar10": "cnn", "cifar100": "cnn", "voc": "fasterrcnn-tiny"}


def try_all(chosen: Sequence[Entry]) -> int:
    """Every command at its tiny size on the CPU, in this process and a folder that is removed."""
    import runpy

    from sgdf_lab import paper as paper_presets
    from sgdf_lab.cli.main import main as sgdf
    from sgdf_lab.data import synthetic

    synthetic.TRAIN, synthetic.TEST = 8, 4
    for name, preset in paper_presets.PRESETS.items():
        one_each = {cell.optimizer: replace(cell, model=TINY_NETWORKS.get(cell.task, cell.model))
                    for cell in preset.cells if cell.optimizer in TINY_OPTIMIZERS}  # fmt: skip
        paper_presets.PRESETS[name] = replace(preset, cells=tuple(one_each.values()))
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        DATA_PLACES["{imagenette}"] = str(tiny_pictures(Path(folder) / "imagenette"))
        for entry in chosen:
            for number, command in enumerate(entry.commands):
                start = time.monotonic()
                out = Path(folder) / "records" / entry.name / str(number)
                out.parent.mkdir(parents=True, exist_ok=True)
                words = with_places(
                    (*command.words, *command.tiny),
                    str(out),
                    f"{folder}/work",
                    f"{folder}/results",
                    1,
                )
                try:
                    if words[:2] == ["-m", "sgdf_lab"]:
                        code = sgdf(words[2:])
                    elif words[:2] == ["-m", "pytest"]:
                        code = 0 if (ROOT / words[-2]).is_file() else 1
                    else:
                        sys.argv = words
                        runpy.run_path(str(ROOT / words[0]), run_name="__main__")
                        code = 0
                except SystemExit as end:
                    code = int(bool(end.code))
                say(f"{entry.name}: {time.monotonic() - start:.1f} s, exit code {code}")
                if code == STOPPED:
                    return code
                if code:
                    failed.append(f"{entry.name}: {shlex.join(words)}")
    print("\n".join(["failed:", *failed] if failed else ["all commands run"]))
    return int(bool(failed))


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
        done = sum(is_done(entry, command) for command in entry.commands)
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
    return measure(chosen, options.minutes)


def measure(chosen: Sequence[Entry], minutes: float) -> int:
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device here: --tiny tries the commands on a CPU")
    sums = {
        name: DATA[name].checksum()
        for name in {name for entry in chosen for name in entry.data}
        if DATA[name].is_here
    }
    queue = Queue(time.monotonic() + 60 * minutes)
    for entry in chosen:
        missing = [name for name in entry.data if name not in sums]
        if missing:
            how = "; ".join(f"{name}: {DATA[name].how}" for name in missing)
            queue.lines.append(Line(entry.name, "needs data", how))
        else:
            queue.take(entry, sums)
    for line in queue.lines:
        print(f"{line.entry:22}{line.state:12}{line.minutes:6.1f} min   {line.note}")
    print("python benchmarks/evidence_page.py && python benchmarks/pages.py takes new numbers over")
    return int(any(line.state == "failed" for line in queue.lines))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "lab" / "src"), str(ROOT / "src")]
    sys.exit(main())
