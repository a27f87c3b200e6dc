"""Archives and folders of files: named members read, whole archives unpacked inside a folder.

Ours rather than pooch's or torchvision's: those extract into the final folder, links included. Here
an entry that is no file, or that leads out of the folder, is refused, and the target folder is
complete or does not exist.
"""

import gzip
import os
import posixpath
import re
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from sgdf_lab.support.errors import UserError, message_of

SCRATCH = ".fetch-"  # how the names of temporary folders begin


def unpack(archive: Path, root: str, target: Path) -> None:
    """Unpack a .tar.gz beside the target and rename its folder `root` to the target.

    The target is complete or does not exist, whenever the process is killed.
    """
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=target.parent) as temporary:
        try:
            with tarfile.open(archive, "r:gz") as entries:
                for entry in entries:
                    _check_entry(archive, entry)
                    entries.extract(entry, temporary, filter="data")
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
            raise UserError(
                f"{archive} is damaged ({message_of(error)}): delete it and run the same command "
                "again"
            ) from error
        if not (Path(temporary) / root).is_dir():
            raise UserError(f"{archive} holds no folder {root}: delete it and fetch it again")
        os.replace(Path(temporary) / root, target)


def _check_entry(archive: Path, entry: tarfile.TarInfo) -> None:
    """Admit files and folders below the archive's own folder, nothing else."""
    parts = re.split(r"[/\\]", entry.name)
    if parts[0] == "" or ":" in parts[0] or ".." in parts:
        raise UserError(f"{archive} is not safe: its entry {entry.name!r} leads out of the folder")
    if not (entry.isfile() or entry.isdir()):
        kind = "a link" if entry.issym() or entry.islnk() else "a device"
        raise UserError(f"{archive} is not safe: its entry {entry.name!r} is {kind}")


# --- members --------------------------------------------------------------------------------------


class DamagedData(UserError):
    """A file that exists but does not hold what it should."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path


def read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a folder or of a tar archive, in the order of the names."""
    if path.is_dir():
        members = {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
    else:
        members = _tar_members(path, names)
    for name in names:
        if name not in members:
            raise DamagedData(path / name, "is missing")
    return {name: members[name] for name in names}


def _tar_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    members = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = posixpath.basename(member.name)
                file = archive.extractfile(member) if name in names else None
                if file:  # of a link what it leads to in the archive; nothing of a folder
                    members[name] = file.read()
    except Exception as error:  # a damaged archive fails in many ways
        raise DamagedData(path, f"is damaged ({message_of(error)})") from error
    return members


def plain_or_gzipped(path: Path) -> Path | None:
    """The file itself, or else the same name with .gz, if either exists."""
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None
