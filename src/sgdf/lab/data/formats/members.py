"""Named files, from a folder or a tar archive, plain or gzipped."""

import posixpath
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from sgdf.lab.data.verify import DamagedData


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
                if name in names and (file := archive.extractfile(member)):
                    members[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DamagedData(path, f"is damaged ({error})") from error
    return members


def plain_or_gzipped(path: Path) -> Path | None:
    """The file itself, or else the same name with .gz, if either exists."""
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    return None
