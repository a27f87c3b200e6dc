"""Named files, from a folder or a tar archive, plain or gzipped."""

import posixpath
import tarfile
from collections.abc import Sequence
from pathlib import Path

from sgdf_lab.data.verify import DamagedData
from sgdf_lab.support.errors import message_of


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
                if name in names:
                    members[name] = _content(path, archive, member)
    except DamagedData:
        raise
    except Exception as error:  # a damaged archive fails in many ways
        raise DamagedData(path, f"is damaged ({message_of(error)})") from error
    return members


def _content(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    """The bytes of a file. A link is refused: it may lead anywhere, or in a circle."""
    file = archive.extractfile(member) if member.isfile() else None
    if file is None:
        kind = "a link" if member.issym() or member.islnk() else "not a file"
        raise DamagedData(path, f"is not safe: its entry {member.name!r} is {kind}")
    return file.read()


def plain_or_gzipped(path: Path) -> Path | None:
    """The file itself, or else the same name with .gz, if either exists."""
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None
