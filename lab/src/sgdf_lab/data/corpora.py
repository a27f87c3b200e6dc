"""Text corpora: a file or a folder of the user, and published ones that are fetched."""

import shutil
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sgdf_lab.data.dataset import DatasetSpec, data_folder, fetch_command
from sgdf_lab.data.fetch import Remote, disk_error, fetch_files, file_checksum
from sgdf_lab.support.errors import UserError, message_of
from sgdf_lab.support.files import replacing, visible_files

if TYPE_CHECKING:
    from rich.console import Console

BLOCK = 1 << 20


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
        remote: the official archive, with the text as its only file.
        md5: of the text.
    """

    classes: int = 0
    remote: Remote | None = None
    md5: str = ""

    @property
    def size(self) -> int:
        return self.train + self.test

    def home(self, folder: str | Path | None = None) -> Path | None:
        """The text in the data folder: a file or folder of its name; None if it is not there."""
        root = data_folder(folder)
        if self.remote is None:
            return own_text(root)
        for path in (root / self.name / self.name, root / self.name):
            if path.is_file():
                return path
        return None

    def find(self, folder: str | Path | None = None) -> tuple[Path, ...]:
        """The files of the corpus; a `UserError` says how to get them."""
        path, root = self.home(folder), data_folder(folder)
        if path is None and self.remote is None and folder is not None and not root.exists():
            raise UserError(f"there is no file or folder {root}: --data-dir holds the text")
        if path is None:
            raise UserError(f"{self.name} is not in {root}: {self._advice(root)}")
        if self.remote is None and path == root and path.is_dir():
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
        if self.remote is None:
            return "no", self._advice(root)
        half = any((root / self.name).glob("*.part"))
        return "half" if half else "no", fetch_command(self.name, root)

    def fetch(self, folder: str | Path | None = None, console: "Console | None" = None) -> str:
        root = data_folder(folder)
        if self.remote is None:
            if path := self.home(folder):
                return f"{self.name} is here: {path}"
            raise UserError(f"{self.name} cannot be downloaded: {self._advice(root)}")
        try:
            path = self.home(folder) or self._download(root, console)
            self._check(path)
        except KeyboardInterrupt:
            command = fetch_command(self.name, root)
            raise KeyboardInterrupt(f"stopped: `{command}` resumes") from None
        except OSError as error:
            raise disk_error(error, root) from error
        return f"{self.name}: {self.size:,} bytes, checked: {path}"

    def _download(self, root: Path, console: "Console | None") -> Path:
        from rich.console import Console

        assert self.remote
        home = root / self.name
        fetch_files((self.remote,), home, None, console or Console())
        archive = home / self.remote.file
        extract(archive, self.name, home / self.name)
        archive.unlink()
        return home / self.name

    def _check(self, path: Path) -> None:
        if path.stat().st_size != self.size or file_checksum(path, "md5") != self.md5:
            raise UserError(
                f"{path} is not the published text (its md5 differs): delete it and run the same "
                "command again"
            )

    def _advice(self, root: Path) -> str:
        if self.remote:
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

HELD_OUT = {"train": 95_000_000, "test": 5_000_000}  # the last 5 % are for validation

#: The user's own text: any file, or a folder of files.
TEXT = TextDataset(name="text", train=0, test=0)

#: The first 100 million bytes of an English Wikipedia, as XML.
ENWIK8 = TextDataset(
    name="enwik8",
    **HELD_OUT,
    remote=Remote("https://mattmahoney.net/dc/enwik8.zip", ""),
    md5="a1fa5ffddb56f4953e226637dabbb36a",
)

#: enwik8's articles as 100 million letters a to z and spaces.
TEXT8 = TextDataset(
    name="text8",
    **HELD_OUT,
    remote=Remote("https://mattmahoney.net/dc/text8.zip", ""),
    md5="3bea1919949baf155f99411df5fada7e",
)
