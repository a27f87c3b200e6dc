"""Text corpora: a file or a folder of the user, and published ones that are fetched."""

import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.data.dataset import DatasetSpec, data_folder, fetch_command
from sgdf_lab.data.fetch import Remote, fetch_files, file_checksum, resumable
from sgdf_lab.support.errors import UserError, message_of
from sgdf_lab.support.files import replacing, visible_files

if TYPE_CHECKING:
    from rich.console import Console

BLOCK = 1 << 20
PARTS = "parts"  # the folder of the files that a text is made of, until all are here


def files_at(path: Path) -> tuple[Path, ...]:
    """The files of a corpus: the file itself, or all in the folder, in the order of their names.

    Hidden files and those in hidden folders are left out.
    """
    if path.is_file():
        return check_content((path,), path)
    if not path.is_dir():
        raise UserError(f"there is no file or folder {path}: corpus is the text to train on")
    try:
        found = sorted(file for file in visible_files(path) if file.is_file())
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read: {error.strerror}") from None
    return check_content(found, path)


def check_content(files: Sequence[Path], path: Path) -> tuple[Path, ...]:
    if not files:
        raise UserError(f"there are no files in {path}: put the text to train on there")
    if not any(file.stat().st_size for file in files):
        raise UserError(f"{path} is empty: there is nothing to train on")
    return tuple(files)


@dataclass(frozen=True, kw_only=True)
class TextDataset(DatasetSpec):
    """A corpus; `train` and `test` are numbers of bytes, 0 if they are the user's.

    Args:
        remotes: a zip archive with the text in it, or the files that it is made of, in their order.
        digest: the checksum of the text, after the name of its algorithm: ``sha256:...``.
        file: the name of the text in the folder of the dataset; default: the dataset's own.
    """

    classes: int = 0
    remotes: tuple[Remote, ...] = ()
    digest: str = ""
    file: str = ""

    @property
    def size(self) -> int:
        return self.train + self.test

    def home(self, folder: str | Path | None = None) -> Path | None:
        """The text in the data folder: a file or folder of its name; None if it is not there."""
        root = data_folder(folder)
        if not self.remotes:
            return own_text(root)
        name = self.file or self.name
        for path in (root / self.name / name, root / name):
            if path.is_file():
                return path
        return None

    def find(self, folder: str | Path | None = None) -> tuple[Path, ...]:
        """The files of the corpus; a `UserError` says how to get them."""
        path, root = self.home(folder), data_folder(folder)
        if path is None and not self.remotes and folder is not None and not root.exists():
            raise UserError(f"there is no file or folder {root}: --data-dir holds the text")
        if path is None:
            raise UserError(f"{self.name} is not in {root}: {self._advice(root)}")
        if not self.remotes and path == root and path.is_dir():
            return check_content(text_files(path), path)
        if self.size and path.stat().st_size != self.size:
            raise UserError(
                f"{path} has {path.stat().st_size:,} bytes, not the published {self.size:,}: "
                f"delete it and {self._advice(root)}"
            )
        return files_at(path)

    def availability(self, folder: str | Path | None = None) -> tuple[str, str]:
        if path := self.home(folder):
            return "yes", str(path)
        root = data_folder(folder)
        if not self.remotes:
            return "no", self._advice(root)
        half = any((root / self.name).glob("*.part")) or (root / self.name / PARTS).exists()
        return "half" if half else "no", fetch_command(self.name, root)

    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        root = data_folder(folder)
        if not self.remotes:
            if path := self.home(folder):
                return f"{self.name} is here: {path}"
            raise UserError(f"{self.name} cannot be downloaded: {self._advice(root)}")
        with resumable(fetch_command(self.name, root), root):
            here = self.home(folder)
            path = here or self._download(root, console)
            algorithm, _, digest = self.digest.partition(":")
            if path.stat().st_size != self.size or file_checksum(path, algorithm) != digest:
                if here is None:  # what was just made must not be trained on
                    path.unlink()
                raise UserError(
                    f"{path} is not the published text (its {algorithm} differs): "
                    f"{'delete it and' if here else 'it was deleted;'} run the same command again"
                )
        return f"{self.name}: {self.size:,} bytes, checked: {path}"

    def _download(self, root: Path, console: "Console | None") -> Path:
        from rich.console import Console

        home = root / self.name
        text = home / (self.file or self.name)
        if self.remotes[0].file.endswith(".zip"):
            fetch_files(self.remotes, home, None, console or Console())
            archive = home / self.remotes[0].file
            extract(archive, text.name, text)
            archive.unlink()
            return text
        parts = home / PARTS
        fetch_files(self.remotes, parts, None, console or Console())
        with replacing(text) as file:
            for remote in self.remotes:
                file.write((parts / remote.file).read_bytes())
        shutil.rmtree(parts)
        return text

    def _advice(self, root: Path) -> str:
        if self.remotes:
            return f"run `{fetch_command(self.name, root)}`"
        return f"name a file or folder with --set corpus=PATH, or put text into {root / self.name}"


def own_files(named: str, dataset: TextDataset, folder: Path | None) -> tuple[Path, ...]:
    """The files of the user's corpus: of the path that was named, or those in the data folder."""
    return files_at(Path(named).expanduser()) if named else dataset.find(folder)


def own_text(root: Path) -> Path | None:
    """The user's text in the data folder: the folder `text`, or else the .txt files beside it."""
    if root.is_file() or (root / "text").exists():
        return root if root.is_file() else root / "text"
    return root if text_files(root) else None


def text_files(folder: Path) -> list[Path]:
    """The .txt files of a folder, except hidden ones, in the order of their names."""
    found = (path for path in folder.glob("*.txt") if not path.name.startswith("."))
    return sorted(path for path in found if path.is_file())


def extract(archive: Path, member: str, target: Path) -> None:
    """Write one file of a zip archive; the target is complete or does not exist."""
    try:
        with (
            zipfile.ZipFile(archive) as files,
            files.open(member) as source,
            replacing(target) as file,
        ):
            shutil.copyfileobj(source, file, BLOCK)
    except (zipfile.BadZipFile, KeyError, EOFError, zlib.error, NotImplementedError) as error:
        raise UserError(
            f"{archive} is damaged ({message_of(error)}): delete it and run the same command again"
        ) from error


# --- the corpora ----------------------------------------------------------------------------------

#: The user's own text: any file, or a folder of files.
TEXT = TextDataset(name="text", train=0, test=0)

#: The first 100 million bytes of an English Wikipedia, as XML.
ENWIK8 = TextDataset(
    name="enwik8",
    train=95_000_000,  # the last 5 % are for validation, as of all texts
    test=5_000_000,
    remotes=(Remote("https://mattmahoney.net/dc/enwik8.zip", ""),),
    digest="md5:a1fa5ffddb56f4953e226637dabbb36a",
)

#: enwik8's articles as 100 million letters a to z and spaces.
TEXT8 = TextDataset(
    name="text8",
    train=95_000_000,
    test=5_000_000,
    remotes=(Remote("https://mattmahoney.net/dc/text8.zip", ""),),
    digest="md5:3bea1919949baf155f99411df5fada7e",
)

GITHUB = "https://raw.githubusercontent.com"
ARTICLES = f"{GITHUB}/Vibhas-hs-edu/WikiTasks/52b1f163137bc40b0f67cbf129d5dab4f6fd5901/text/AA"
NOVELS = f"{GITHUB}/legobridge/copyshield-llm/4889c5de1eefdaddfb8c715bf237008cb81f943d/data/text"

#: Articles of the English Wikipedia: the text that the evidence calls an encyclopedia.
ENCYCLOPEDIA = TextDataset(
    name="encyclopedia",
    file="encyclopedia.txt",
    train=63_054_009,
    test=3_317_873,
    remotes=tuple(Remote(f"{ARTICLES}/wiki_{number:02}", "") for number in range(64)),
    digest="sha256:a290d01381f172a054e3a61c4847e2978d0d0f390ffa890e5e8c573fd6ece327",
)

# Hundreds of Project Gutenberg's numbers, in the order of the names of their files.
VOLUMES = """
    100 108 110 116 12 128 13 136 14 150 152 16 177 189 19 192 194 195 199 212 213 217 224 230 23
    237 24 25 258 260 26 272 28 285 289 311 32 33 338 339 342 344 36 361 38 385 386 387 412 425 43
    447 448 48 50 5 51 52 53 547 55 6 633 64 673 693 697 7 710 717 718 86 87 88 97
"""

#: 75 books of Project Gutenberg: the text that the evidence calls books.
BOOKS = TextDataset(
    name="books",
    file="books.txt",
    train=71_960_309,
    test=3_787_331,
    remotes=tuple(Remote(f"{NOVELS}/PG{number}00_text.txt", "") for number in VOLUMES.split()),
    digest="sha256:fc47127488224399e9cecdf6b8b5ca20309366ee249792745247dfe190315ab2",
)
