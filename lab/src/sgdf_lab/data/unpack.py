"""Unpack archives, which cannot write outside their folder."""

import gzip
import os
import re
import tarfile
import tempfile
import zlib
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
