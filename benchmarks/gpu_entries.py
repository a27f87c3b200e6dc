"""What waits for a GPU: data, commands, and the entries of `gpu_queue.py` in their order.

Needs neither torch nor the lab, so that `--list` answers at once. `gpu_blocks.py` shows it in
docs/measure.md.
"""

import hashlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = "runs/gpu-queue"  # checkpoints, and records that are not whole yet

# --- data -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Data:
    """A data set, or weights: where it has to be, and how to get it.

    `place` is below the data folder, or below that of the environment variable `home`. `parts` are
    names that have to be in it.
    """

    place: str
    how: str
    parts: tuple[str, ...] = ()
    home: tuple[str, str] = ("SGDF_DATA", "~/.cache/sgdf/data")

    @property
    def path(self) -> Path:
        variable, default = self.home
        return Path(os.environ.get(variable) or default).expanduser() / self.place

    @property
    def is_here(self) -> bool:
        """By the names of files only."""
        if not self.path.is_dir():
            return self.path.is_file()
        names = {path.name for path in self.path.iterdir()}
        return bool(names) and names.issuperset(self.parts)

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


TORCH = ("TORCH_HOME", "~/.cache/torch")
DATA = {
    "cifar10": Data("cifar10", "sgdf data fetch cifar10"),
    "cifar100": Data("cifar100", "sgdf data fetch cifar100"),
    "encyclopedia": Data("encyclopedia/encyclopedia.txt", "sgdf data fetch encyclopedia"),
    "treebank": Data("treebank/treebank.txt", "the words of the Penn Treebank (LDC99T42) as one "
                     "file: train, then valid, then test; it may not be passed on"),
    "imagenette": Data("imagenette", "unpack imagenette2-160.tgz (github.com/fastai/imagenette) so "
                       "that imagenette/train and imagenette/val hold the classes",
                       ("train", "val")),
    "voc": Data("voc", "docs/detection.md names the three archives"),
    "coco-weights": Data("hub/checkpoints/fasterrcnn_resnet50_fpn_coco-258fb6c6.pth",
                         "docs/detection.md says where the weights are", home=TORCH),
}  # fmt: skip

# --- entries --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """A command, with the minutes that it takes on an H200.

    `record` is what it leaves below results/, `OUT` in its words a place to write that to first.
    `makes` is a pattern of files below `WORK` that later commands of the entry need. One that
    `resumes` is interrupted when the time is up. `tiny` words make it small: they follow the
    others, and the last value of an option counts.
    """

    words: tuple[str, ...]
    minutes: float
    record: str = ""
    makes: str = ""
    resumes: bool = False
    tiny: tuple[str, ...] = ()

    @property
    def sweeps(self) -> bool:
        return self.words[:2] == LAB and self.words[2] in ("sweep", "reproduce")

    @property
    def shown(self) -> str:
        """What one would type, in the repository, with the data in the current folder."""
        places = {OUT: f"results/{self.record}", WORKING: WORK, RECORDS: "results"}
        places |= {f"{{{name}}}": Path(data.place).name for name, data in DATA.items()}
        words = list(self.words)
        for name, place in places.items():
            words = [word.replace(name, place) for word in words]
        words[:2] = ["sgdf"] if self.words[:2] == LAB else ["python", *words[:2]]
        return " ".join(word if "*" in word else shlex.quote(word) for word in words)


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


LAB = ("-m", "sgdf_lab")
OUT, WORKING, RECORDS = "{out}", "{work}", "{results}"  # replaced when a command starts
KERNELS = ("src/sgdf/filter.py", "src/sgdf/kernels/*", "src/sgdf/optim/*.py")
TEXT_TRAINER = tuple(
    f"lab/src/sgdf_lab/{part}.py"
    for part in ("models/language", "tasks/language", "training/loop", "training/tokens")
)
PAPER = tuple(f"lab/src/sgdf_lab/paper/{name}.py" for name in ("presets", "published"))
ON_GPU = ("--device", "cuda")


def sweep(
    plan: str,
    minutes: float,
    record: str,
    *words: str,
    makes: str = "",
    tiny: tuple[str, ...] = (),
) -> Command:
    """All runs of a plan; a preset of the paper is named instead of a file.

    One that `makes` checkpoints for a later command leaves no record: a run that is in one is never
    trained again, not even where its checkpoint is missing.
    """
    what = ("sweep", plan) if plan.endswith(".toml") else ("reproduce", plan)
    file = "" if makes else f"{record}/runs.jsonl"
    kept = ("--record", f"{RECORDS}/{file}") if file else ()
    command = (*LAB, *what, *words, *kept, "--out", f"{WORKING}/{record}", *ON_GPU)
    return Command(command, minutes, file, makes, True, (*TINY, *tiny))


TINY = ("--device", "cpu", "--data", "synthetic", "--jobs", "1")


def settings(*words: str) -> tuple[str, ...]:
    return tuple(part for word in words for part in ("--set", word))


ONE_EPOCH = ("--epochs", "1", *settings("batch=4"))
CLASSIFIER = ("--model", "cnn", "--seeds", "1", *ONE_EPOCH)
PERCEPTRON = ("--model", "mlp", "--seeds", "0", *ONE_EPOCH)
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


def all_gpu_tests() -> Entry:
    commands = gpu_tests()
    return Entry(
        "gpu-tests",
        "all tests that need a GPU",
        commands,
        inputs=(*KERNELS, *(command.words[-1] for command in commands)),
    )


def script(name: str, minutes: float, record: str, *words: str, tiny: Sequence[str]) -> Command:
    command = (f"benchmarks/{name}.py", *words, "--out", OUT)
    return Command(command, minutes, record, tiny=(*tiny, "--device", "cpu"))


def entries() -> tuple[Entry, ...]:
    """In the order in which they are worth most."""
    hessian = "benchmarks/gpu/resnet18-cifar100.toml"
    return (
        all_gpu_tests(),
        Entry("step-times", "time and memory of a step: README and docs/speed.md", (
            Command((*LAB, "bench", "step", *ON_GPU, "--out", OUT), 12,
                    "bench-step-cuda.json",
                    tiny=("--device", "cpu", "--lists", "tiny", "--repeats", "2", "--seconds",
                          "0.01", "--only", "sgd-fused", "adamw-fused", "sgdf-foreach")),
            script("step_in_backward", 2, "step-in-backward-cuda.json", *ON_GPU,
                   tiny=("--iterations", "1", "--rounds", "1", "--depth", "1", "--width", "64")),
        ), inputs=(*KERNELS, "lab/src/sgdf_lab/bench/*.py", "benchmarks/step_in_backward.py",
                   "benchmarks/timing.py")),
        Entry("language", "a step of gpt-11m (aim: 6 ms) and gpt-124m (aim: 45 % of the peak)", (
            script("language", 5, "bench-language-cuda.json", *ON_GPU, tiny=("--quick",)),
        ), inputs=("benchmarks/language.py", "benchmarks/timing.py", *TEXT_TRAINER)),
        Entry("cifar10-fast", "10 seeds of SGD-Nesterov (aim: 94.00 in the mean) and of SGDF", (
            # The record cifar10-fast has other deviations of the pixels.
            sweep("benchmarks/cifar10-fast.toml", 6, "cifar10-fast-again", "--together", "5",
                  tiny=("--model", "airbench-tiny", "--seeds", "0", *settings(
                      "steps=1", "eval_every=1", "batch=4"))),
        ), ("cifar10",), ("benchmarks/cifar10-fast.toml",)),
        Entry("first-steps", "first steps of ResNet18 in 12 epochs, 9 settings, 3 seeds", (
            sweep("benchmarks/first-steps/resnet18.toml", 25, "first-steps-resnet18",
                  "--together", "3", "--no-checkpoints", tiny=CLASSIFIER),
        ), ("cifar10",), ("benchmarks/first-steps/resnet18.toml",)),
        Entry("map-11m", "the contest of the map at 11 M parameters, 8 trials, 5 seeds", (
            sweep("benchmarks/gpu/gpt-11m-map.toml", 90, "evidence/gpt-11m-map",
                  "--no-checkpoints", *corpus("encyclopedia"), tiny=TINY_TEXT),
        ), ("encyclopedia",), ("benchmarks/gpu/gpt-11m-map.toml",)),
        Entry("map-124m", "the same at 124 M parameters, 4 trials, 3 seeds", (
            sweep("benchmarks/gpu/gpt-124m-map.toml", 150, "evidence/gpt-124m-map",
                  "--no-checkpoints", *corpus("encyclopedia"), tiny=TINY_TEXT),
        ), ("encyclopedia",), ("benchmarks/gpu/gpt-124m-map.toml",)),
        Entry("cifar100-vgg11", "the paper's table: all optimizers, and two rates of SGD", (
            paper("cifar100-vgg11", 25, "--seeds", "0"),
            paper("cifar100-vgg11", 8, "--only", "sgdf", "sgd", "--seeds", "0", "1", "2"),
            paper("cifar100-vgg11", 5, "--only", "sgd", "--set", "lr=0.05",
                  "--seeds", "0", "1", "2"),
        ), ("cifar100",), PAPER),
        *(
            Entry(name, "the paper's table: SGDF, SGD at the published and the matched rate",
                  matched(name, minutes), (name.partition("-")[0],), PAPER)
            for name, minutes in (("cifar10-resnet34", 45), ("cifar100-resnet34", 45),
                                  ("cifar100-densenet121", 80), ("cifar10-densenet121", 80))
        ),
        Entry("wiener-adam", "the filter in front of Adam on CIFAR-100, three networks",
              (paper("wiener-adam", 160),), ("cifar100",), PAPER),
        Entry("correction", "with and without the correction factor",
              (paper("correction", 40),), ("cifar10", "cifar100"), PAPER),
        Entry("hessian-cifar100", "ResNet18 on CIFAR-100, and the spectrum of its Hessian", (
            sweep(hessian, 20, "resnet18-cifar100", makes="resnet18-cifar100/*-s0-*/last.pt",
                  tiny=PERCEPTRON),
            Command((*LAB, "analyze", "hessian", f"{WORKING}/resnet18-cifar100/*-s0-*",
                     "--out", OUT, *ON_GPU), 20, "resnet18-cifar100-hessian",
                    tiny=("--device", "cpu", "--k", "2", "--images", "8", "--no-density",
                          "--trace-samples", "2")),
            sweep(hessian, 1, "resnet18-cifar100", tiny=PERCEPTRON),  # into the record
        ), ("cifar100",), (hessian,)),
        Entry("lstm", "an LSTM on the Penn Treebank, byte by byte, tuned alike", (
            sweep("benchmarks/gpu/lstm-treebank.toml", 40, "evidence/lstm-treebank",
                  "--no-checkpoints", *corpus("treebank"),
                  tiny=("--trials", "1", "--seeds", "1", *TINY_TEXT[6:])),
        ), ("treebank",), ("benchmarks/gpu/lstm-treebank.toml",)),
        Entry("imagenette", "ResNet18 on real pictures, tuned alike", (
            sweep("benchmarks/gpu/imagenette.toml", 60, "evidence/imagenette",
                  "--data-dir", "{imagenette}",
                  tiny=("--data", "real", "--trials", "1", "--seeds", "1", *ONE_EPOCH,
                        *settings("size=32", "validation=2"))),
        ), ("imagenette",), ("benchmarks/gpu/imagenette.toml",)),
        Entry("detection", "Faster R-CNN on VOC: SGDF and SGD", (
            paper("voc-fasterrcnn", 240, "--only", "sgdf", "sgd",
                  tiny=settings("weights=random")),
        ), ("voc", "coco-weights"), PAPER),
        Entry("fine-tuning", "ViT-B/32, trained here on CIFAR-100, fine-tuned to CIFAR-10", (
            Command((*LAB, "train", "finetune-cifar100", "--model", "vit-b32",
                     "--optimizer", "adamw", "--set", "weights=random", "--epochs", "20",
                     "--out", f"{WORKING}/vit-b32", *ON_GPU), 12,
                    makes="vit-b32/*/last.pt", resumes=True,
                    tiny=("--model", "vit-tiny", *TINY[:4], *ONE_EPOCH,
                          *settings("size=32", "accumulate=1"))),
            sweep("benchmarks/gpu/fine-tuning.toml", 15, "fine-tuning", "--set",
                  f"weights={WORKING}/vit-b32/*/last.pt",
                  tiny=("--model", "vit-tiny", "--seeds", "0", *ONE_EPOCH,
                        *settings("size=32", "accumulate=1"))),
        ), ("cifar10", "cifar100"), ("benchmarks/gpu/fine-tuning.toml",)),
        Entry("wgan-gp", "WGAN-GP with SGDF at rates at which it does not diverge", (
            Command((*LAB, "train", "cifar10", "--model", "resnet18", "--optimizer",
                     "sgd-nesterov", "--epochs", "20", "--out", f"{WORKING}/features", *ON_GPU),
                    2, makes="features/*/last.pt", resumes=True,
                    tiny=(*TINY[:4], "--model", "cnn", *ONE_EPOCH)),
            sweep("benchmarks/gpu/wgan-gp.toml", 60, "wgan-gp-rates", "--set",
                  f"features={WORKING}/features/*",
                  tiny=("--model", "dcgan-tiny", "--seeds", "0", *ONE_EPOCH,
                        *settings("fid_every=1", "fid_samples=16"))),
        ), ("cifar10",), ("benchmarks/gpu/wgan-gp.toml",)),
    )  # fmt: skip
