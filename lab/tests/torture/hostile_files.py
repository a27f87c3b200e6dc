"""Hostile archives, datasets, kernel caches, names in a page, and runs of others in a report."""

import contextlib
import copy
import html.parser
import io
import json
import os
import pickle
import random
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from damage import JSON_TEXTS, SPECIAL, Damage, Malicious, text
from data import published, test_data_unpack
from paper.layouts import photograph
from report import made
from sgdf.kernels import build, cpu
from sgdf_lab.data.archive import unpack
from sgdf_lab.support.errors import UserError
from tasks import test_language
from torture.bench import Bench, check_same
from torture.hostile_runs import KIND, MEMORY, SHORT
from torture.outcome import (
    DIFFERENT,
    RAN_CODE,
    SAME,
    SENTENCE,
    TRACEBACK,
    Bug,
    Case,
    Outcome,
    check_refusal,
    check_success,
    ended_well,
)


def cases() -> Iterator[Case]:
    for what in test_data_unpack.EVIL:
        yield Case(KIND, "archives", f"archive with {what}", partial(hostile_archive, what))
    for what, damage in BATCHES.items():
        yield Case(KIND, "datasets", f"dataset with {what}", partial(hostile_dataset, damage))
    for what, damage in IMAGES.items():
        yield Case(
            KIND, "class folders", f"class folder with {what}", partial(hostile_images, damage)
        )
    for what, content in TOKENIZERS.items():
        yield Case(KIND, "tokenizers", f"tokenizer: {what}", partial(hostile_tokenizer, content))
    for what, plant in CACHES.items():
        yield Case(KIND, "kernel caches", f"cache with {what}", partial(hostile_cache, plant))
    for i, name in enumerate(NAMES):
        yield Case(KIND, "names in a page", f"page with name {i}", partial(hostile_page, name))
    for file in ("config.json", "result.json", "env.json", "metrics.jsonl", "times.jsonl"):
        for what, damage in SPECIAL.items():
            name = f"report: {file} is {what}"
            yield Case(KIND, "runs in a report", name, partial(hostile_report, file, damage))
        for what, content in JSON_TEXTS.items():
            name = f"report: {file} holds {what}"
            yield Case(KIND, "runs in a report", name, partial(hostile_report, file, text(content)))
    for command in RECORDS:
        for number in range(MUTATIONS):
            name = f"{command} of a changed record {number}"
            yield Case(KIND, "changed records", name, partial(changed_record, command, name))


# --- archives and datasets ------------------------------------------------------------------------


def hostile_archive(what: str, bench: Bench, folder: Path) -> Outcome:
    outside, home = folder / "outside", folder / "home"
    outside.mkdir()
    home.mkdir()
    (outside / "secret").write_text("secret")
    archive = folder / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for info in test_data_unpack.EVIL[what]:
            name, link = (t.format(outside=outside) for t in (info.name, info.linkname))
            entry = test_data_unpack.entry(name, info.type, link)
            file.addfile(entry, io.BytesIO(b""))
    before = sorted(folder.rglob("*"))
    try:
        unpack(archive, "root", home / "target")
    except UserError as error:
        if sorted(folder.rglob("*")) != before:
            raise Bug(DIFFERENT, "it wrote something") from None
        return Outcome(SENTENCE, detail=str(error))
    except Exception as error:
        raise Bug(TRACEBACK, repr(error)) from None
    raise Bug(DIFFERENT, "it was unpacked")


def pickle_with_code(path: Path) -> None:
    path.write_bytes(pickle.dumps(Malicious(path.parents[2] / "code-ran"), protocol=2))


BATCHES: dict[str, Damage] = {
    "code in a batch": pickle_with_code,
    "a batch cut short": lambda path: os.truncate(path, 1000),
    **{f"a batch that is {what}": damage for what, damage in SPECIAL.items()},
}


def hostile_dataset(damage: Damage, bench: Bench, folder: Path) -> Outcome:
    data = folder / "data"
    batches = published.cifar10_pickles(data / "cifar10", published.made_up("cifar10"))
    damage(batches / "data_batch_2")
    argv = ("train", "cifar10", "--model", "cnn", "--epochs", "1", "--device", "cpu",
            "--data-dir", str(data))  # fmt: skip
    ended = bench.run(argv, folder / "out", more_memory=MEMORY)
    if list(folder.rglob("code-ran")):
        raise Bug(RAN_CODE, "code of a batch ran")
    check_refusal(ended)
    return Outcome(SENTENCE, detail=ended.output)


# --- images and tokenizers of a user's own --------------------------------------------------------

POSTSCRIPT = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"


def link_to(target: str) -> Damage:
    """Beside the image, a link to another folder."""
    return lambda path: path.with_name("link").symlink_to(target)


IMAGES: dict[str, Damage] = {
    "PostScript": text(POSTSCRIPT),
    "a link to the folder above": link_to(".."),
    "a link to another class": link_to("../dog"),
    "a link to itself in it": link_to("."),
    "half an image": lambda path: os.truncate(path, 500),
    **{f"an image that is {what}": damage for what, damage in SPECIAL.items()},
}


def hostile_images(damage: Damage, bench: Bench, folder: Path) -> Outcome:
    """The intruder is refused or left out, and no program is started for it."""
    for label, name in enumerate(("cat", "dog")):
        for i in range(4):
            photograph(folder / "photos" / name / f"{i}.jpg", label, i)
    damage(folder / "photos" / "cat" / "0.jpg")
    programs, marker = folder / "bin", folder / "code-ran"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {marker}\n")
    (programs / "gs").chmod(0o755)
    argv = ("train", "images", "--data-dir", str(folder / "photos"), "--device", "cpu",
            "--model", "vit-tiny", "--set", "size=32", "--set", "batch=2",
            "--epochs", "1")  # fmt: skip
    env = {"PATH": f"{programs}:{os.environ['PATH']}"}
    ended = bench.run(argv, folder / "out", env=env, more_memory=MEMORY)
    if marker.exists():
        raise Bug(RAN_CODE, "an image started Ghostscript")
    return Outcome(ended_well(ended), detail=ended.output)


TOKENIZERS: dict[str, Damage] = {
    **{what: text(test_language.words_tokenizer(**parts))
       for what, parts in test_language.HOSTILE.items()},
    **{f"holds {what}": text(content) for what, content in JSON_TEXTS.items()},
    **{f"is {what}": damage for what, damage in SPECIAL.items()},
}  # fmt: skip


def hostile_tokenizer(damage: Damage, bench: Bench, folder: Path) -> Outcome:
    (folder / "text.txt").write_bytes(b"To be, or not to be.\n" * 20_000)
    path = folder / "tokenizer.json"
    path.touch()
    damage(path)
    argv = ("train", "text", "--model", "gpt-tiny", "--device", "cpu", "--set", "steps=1",
            "--set", "eval_every=1", "--set", f"corpus={folder / 'text.txt'}",
            "--set", f"tokenizer={path}")  # fmt: skip
    env = {"SGDF_DATA": str(folder / "data")}
    ended = bench.run(argv, folder / "out", env=env, more_memory=MEMORY)
    check_refusal(ended)
    return Outcome(SENTENCE, detail=ended.output)


# --- libraries in the cache of kernels ------------------------------------------------------------

PLANTED = """
#include <sys/stat.h>
__attribute__((constructor)) static void run() { mkdir("MARKER", 0777); }
extern "C" void sgdf_step(int, long, void *, void *, void *, int) {}
"""
#: Compiles nothing: copies the library that the real compiler made.
COMPILER = """#!/bin/sh
case "$*" in --version) echo fast 1; exit 0;; esac
for last; do :; done
cp LIBRARY "$last"
"""
_compiling = threading.Lock()


def real_library() -> bytes:
    """The library that a run compiles here; the one that is loaded has no file any more."""
    compiler = build.find_compiler()
    compile_to = partial(cpu._compile, compiler)
    with _compiling:
        return build.load_or_compile(f"filter-{cpu._key(compiler)}", compile_to, Path.read_bytes)


def planted_library(folder: Path, marker: Path) -> bytes:
    source, library = folder / "planted.cpp", folder / "planted.so"
    source.write_text(PLANTED.replace("MARKER", str(marker)))
    command = [*build.find_compiler(), "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True, capture_output=True)
    return library.read_bytes()


Plant = Callable[[Path, str, bytes], None]  # the cache, the stem of the names, the library


def in_a_folder_for_all(cache: Path, stem: str, library: bytes) -> None:
    cache.chmod(0o777)
    (cache / f"{stem}-{build.digest(library)}.so").write_bytes(library)


def of_another_user(cache: Path, stem: str, library: bytes) -> None:
    """Only root can give a file away; for others the folder is writable to all instead."""
    in_a_folder_for_all(cache, stem, library)
    if os.geteuid() == 0:
        cache.chmod(0o755)
        os.chown(cache / f"{stem}-{build.digest(library)}.so", 65534, 65534)
        os.chown(cache, 65534, 65534)


def with_a_wrong_digest(cache: Path, stem: str, library: bytes) -> None:
    (cache / f"{stem}-{build.digest(b'other')}.so").write_bytes(library)


def behind_a_link(cache: Path, stem: str, library: bytes) -> None:
    real = cache.with_name("elsewhere")
    real.mkdir()
    real.chmod(0o777)
    cache.rmdir()
    cache.symlink_to(real)
    (real / f"{stem}-{build.digest(library)}.so").write_bytes(library)


def special(damage: Damage) -> Plant:
    return lambda cache, stem, library: damage(cache / f"{stem}-{build.digest(library)}.so")


def cut_short(cache: Path, stem: str, library: bytes) -> None:
    (cache / f"{stem}-{build.digest(library)}.so").write_bytes(library[: len(library) // 2])


CACHES: dict[str, Plant] = {
    "a library in a folder that all can write": in_a_folder_for_all,
    "a library of another user": of_another_user,
    "a library of a wrong digest": with_a_wrong_digest,
    "a folder behind a link": behind_a_link,
    "half a library": cut_short,
    **{f"a library that is {what}": special(damage) for what, damage in SPECIAL.items()},
}


def hostile_cache(plant: Plant, bench: Bench, folder: Path) -> Outcome:
    """A run that would load the planted library; it has to compile its own."""
    expected = bench.undisturbed(SHORT, folder)
    compiler, marker = folder / "compiler", folder / "code-ran"
    library = folder / "real.so"
    library.write_bytes(real_library())
    compiler.write_text(COMPILER.replace("LIBRARY", str(library)))
    compiler.chmod(0o755)
    env = {"CXX": str(compiler), "XDG_CACHE_HOME": str(folder / "cache")}
    real_root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    cache = folder / "cache" / build._cache().relative_to(real_root)
    cache.mkdir(parents=True, mode=0o700)
    stem = f"filter-{cpu._key([str(compiler)])}"
    plant(cache, stem, planted_library(folder, marker))
    ended = bench.run(SHORT, folder / "out", env=env, more_memory=MEMORY)
    if marker.exists():
        raise Bug(RAN_CODE, "the planted library was loaded")
    check_success(ended)
    check_same(next((folder / "out").iterdir()), expected)
    return Outcome(SAME)


# --- reports --------------------------------------------------------------------------------------

SCRIPT = "<script>alert(1)</script>"
NAMES = (
    SCRIPT, "'\"><img src=x onerror=alert(2)>", "javascript:alert(3)", "%{x}</script><script>alert",
    "<!--<script>alert(4)//", "</title><svg onload=alert(5)>", "\u202egnp.exe", "a\x00b\x1b[31mc",
    "{{7*7}}${7*7}", "&lt;script&gt;", "]]><script>alert(6)</script>", "\ud800",
)  # fmt: skip


class Elements(html.parser.HTMLParser):
    """Collects what would run: scripts, handlers and links to scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_script = tag == "script"
        for name, value in attrs:
            if name.startswith("on") or (value or "").strip().lower().startswith("javascript:"):
                self.found.append(f"<{tag} {name}={value}>")

    def handle_data(self, data: str) -> None:
        if self.in_script and data.strip().startswith("alert"):
            self.found.append(data)
        self.in_script = False


def hostile_page(name: str, bench: Bench, folder: Path) -> Outcome:
    run_folder = made.run(folder / "runs", made.hostile(name, note=name), [1, 2, 3])
    with contextlib.suppress(OSError, ValueError):  # where a folder can have such a name
        run_folder.rename(run_folder.with_name(name.replace("/", "-")))
    page = folder / "page.html"
    title = name.replace("\x00", "").encode(errors="replace").decode()
    argv = ("report", str(folder / "runs"), "-o", str(page), "--title", title)
    ended = bench.run(argv, folder / "out", more_memory=MEMORY)
    if ended_well(ended) == SENTENCE:
        return Outcome(SENTENCE)
    elements = Elements()
    elements.feed(page.read_text(encoding="utf-8"))
    if elements.found:
        raise Bug(RAN_CODE, f"the page has {elements.found[:3]}")
    return Outcome(SAME)


def hostile_report(file: str, damage: Damage, bench: Bench, folder: Path) -> Outcome:
    """Two runs, one with a hostile file: the other one is still shown."""
    victim = made.run(folder / "runs", made.config("sgdf"), [71.25, 72.5, 73.75])
    made.run(folder / "runs", made.config("adam"), [41.25, 42.5, 43.75])
    damage(victim / file)
    argv = ("report", str(folder / "runs"), "-o", str(folder / "page.html"))
    ended = bench.run(argv, folder / "out", more_memory=MEMORY)
    if ended_well(ended) == SENTENCE or "43.75" not in ended.output:
        raise Bug(DIFFERENT, f"the intact run is not shown: {ended.output}")
    return Outcome(SAME if "73.75" in ended.output else SENTENCE)


# --- records of runs and summaries ----------------------------------------------------------------

EVIDENCE = Path(__file__).parents[3] / "results" / "evidence"
MUTATIONS = 25
RECORDS = ("report", "evidence", "evidence --across")
WRONG: tuple[Any, ...] = (
    None,
    "text",
    -1,
    0,
    1e308,
    float("nan"),
    [],
    {},
    [None],
    True,
    "9" * 5000,
)


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy with one entry, at any depth, that is wrong or missing."""
    if isinstance(value, dict | list) and value and chance.random() > 0.15:
        result = copy.copy(value)
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if chance.random() < 0.1:
            del result[key]
        else:
            result[key] = mutated(value[key], chance)
        return result
    return chance.choice(WRONG)


def changed_record(command: str, name: str, bench: Bench, folder: Path) -> Outcome:
    """A record with one wrong value: shown without it, or refused in one sentence."""
    chance = random.Random(name)
    kept = EVIDENCE / "mlp-fashion"
    if command == "evidence --across":
        summary = mutated(json.loads((kept / "summary.json").read_text()), chance)
        file = folder / "summary.json"
        file.write_text(json.dumps(summary))
        others = [str(EVIDENCE / other / "summary.json") for other in ("cnn-cifar10",)]
        argv = ("evidence", "--across", str(file), *others)
    else:
        lines = (kept / "runs.jsonl").read_text().splitlines()
        for _ in range(3):
            at = chance.randrange(len(lines))
            lines[at] = json.dumps(mutated(json.loads(lines[at]), chance))
        file = folder / "runs.jsonl"
        file.write_text("\n".join(lines) + "\n")
        plan = EVIDENCE.parents[1] / "benchmarks" / "evidence" / "small" / "mlp-fashion.toml"
        argv = ("report", str(file), "-o", str(folder / "page.html"))
        if command == "evidence":
            argv = ("evidence", str(plan), "--runs", str(file), "--out", str(folder / "shown"))
    ended = bench.run(argv, folder / "out", more_memory=MEMORY)
    return Outcome(ended_well(ended), detail=ended.output[-300:])
