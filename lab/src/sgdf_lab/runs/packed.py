"""Many ended runs in one file of text, small enough for a repository: a line of JSON per run.

A line has all that decides or describes the numbers of a run, under the names of its files in the
run's folder: `config`, `env`, `result` or `failure`, `metrics`, `times`. It has no checkpoint:
unpacked runs have ended and are not trained again.
"""

import contextlib
import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

from sgdf_lab.runs import results
from sgdf_lab.runs.config import Config
from sgdf_lab.support.errors import Held, UserError, describe
from sgdf_lab.support.files import explained, read_text, write_atomically

FILE = "runs.jsonl"  # its name in a folder of results
LIMIT = 1 << 30  # bytes
LISTS = ("metrics", "times")  # files of lines; all others are one object
OBJECTS = ("config", "env", "result", "failure")

Packed = dict[str, Any]


# --- the file ------------------------------------------------------------------------------------


def pack(folders: Iterable[Path], file: Path) -> None:
    """Add the runs in these folders that have ended to the file.

    What the file has already stays, except a run that is among the folders. A failure never
    replaces a run that came to its end, nor the same measurements with less beside them. The same
    runs give the same bytes, in whatever order they were added.
    """
    ended = [run for folder in folders if (run := packed(folder)) is not None]
    with explained(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(file.parent):
            before = text_of(file)
            runs = runs_in(before, file)
            for run in ended:
                name = run["name"]
                if replaces(run, runs.get(name, {})):
                    runs[name] = run
            after = "".join(map(as_line, sorted(runs.values(), key=lambda run: run["name"])))
            if after != before:
                write_atomically(file, after)


def replaces(run: Packed, recorded: Packed) -> bool:
    """Whether a run takes the place of the recorded one."""
    if "result" not in recorded or "result" not in run:
        return "result" not in recorded
    if any(run[part] != recorded.get(part) for part in ("config", "metrics")):
        return True
    return all(len(run[part]) >= len(recorded.get(part, ())) for part in ("env", "times"))


def unpack(file: Path, out: Path, names: Container[str] | None = None) -> int:
    """Write runs of the file into folders of `out`, and return how many were written.

    A folder that exists stays as it is. With `names`, only runs of these names are written.
    """
    runs = runs_in(text_of(file), file)
    wanted = [
        run
        for name, run in runs.items()
        if (names is None or name in names) and not os.path.lexists(out / name)
    ]
    if not wanted:
        return 0
    with explained(out):
        out.mkdir(parents=True, exist_ok=True)
        # A folder gets its name when it is whole: a half-written one would count as unfinished.
        with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=out) as room:
            for run in wanted:
                write_folder(run, Path(room) / run["name"])
                try:
                    os.rename(Path(room) / run["name"], out / run["name"])
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise  # else another process was faster
    return len(wanted)


def complete(file: Path, out: Path, names: Container[str]) -> int:
    """Complete interrupted, failed or damaged run folders in `out` from the recorded results.

    Returns how many. A folder that another process works in stays as it is, and so does a link.
    """
    from sgdf_lab.runs.run_folder import RunFolder  # needs torch, which readers of records do not

    count = 0
    for name, run in runs_in(text_of(file), file).items():
        folder = out / name
        if name not in names or "result" not in run or not folder.is_dir() or folder.is_symlink():
            continue
        config = Config.from_json(run["config"], str(file))
        with contextlib.suppress(Held), RunFolder(out, config).open():
            if not has_ended(folder, config):
                write_files(run, folder)
                (folder / "failure.json").unlink(missing_ok=True)
                count += 1
    return count


def has_ended(folder: Path, config: Config) -> bool:
    """Whether the folder has an end that counts: the result of a run whose files agree."""
    try:
        end = results.read_checked(folder, config)
    except results.ForeignRun:
        raise
    except UserError:
        return False
    return end is not None and end["status"] != "failed"


def read(file: Path) -> tuple[list[Packed], list[str]]:
    """The runs of a file, and a sentence for each line that is none."""
    runs, complaints = [], []
    for number, line in enumerate(text_of(file).splitlines(), start=1):
        try:
            runs.append(run_from(line, f"{file}, line {number}"))
        except UserError as error:
            complaints.append(str(error))
    return runs, complaints


def runs_in(text: str, file: Path) -> dict[str, Packed]:
    """The runs by name; a `UserError` names a line that is none, which must not get lost."""
    lines = enumerate(text.splitlines(), start=1)
    runs = (run_from(line, f"{file}, line {number}") for number, line in lines)
    return {run["name"]: run for run in runs}


def run_from(line: str, where: str) -> Packed:
    """A checked line. The name is that of its settings, and so never leads out of a folder."""
    try:
        run = json.loads(line)
        is_run = isinstance(run, dict) and isinstance(run["name"], str)
        is_run = is_run and all(isinstance(run.get(name, {}), dict) for name in OBJECTS)
        is_run = is_run and all(isinstance(run.get(name, []), list) for name in LISTS)
    except (ValueError, RecursionError, LookupError) as error:
        raise UserError(f"{where} is not a packed run: {describe(error)}") from None
    if not is_run or not ("result" in run or "failure" in run):
        raise UserError(f"{where} is not a packed run")
    name = Config.from_json(run.get("config", {}), where).name
    if run["name"] != name:
        raise UserError(f"{where}: its name is not that of its settings, {name}")
    return dict(run)


def text_of(file: Path) -> str:
    try:
        return read_text(file, limit=LIMIT)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None


def as_line(run: Packed) -> str:
    return json.dumps(run, allow_nan=False, separators=(",", ":")) + "\n"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Two processes that add to one file do so one after the other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# --- a run ---------------------------------------------------------------------------------------


def packed(folder: Path) -> Packed | None:
    """The run in a folder; None if it has not ended, is damaged, or has another run's name."""
    try:
        config = results.read_config(folder)
        end = results.read_checked(folder, config)
        if end is None or folder.name != config.name:
            return None
        failed = end["status"] == "failed"
        run: Packed = {"name": config.name, "config": config.as_json()}
        run["env"] = results.read_object(folder / "env.json")
        run |= (
            {"failure": results.read_object(folder / "failure.json")} if failed else {"result": end}
        )
        run |= {name: results.read_lines(folder / f"{name}.jsonl") for name in LISTS}
        as_line(run)
    except (UserError, OSError, ValueError, RecursionError):
        return None
    return run


def write_folder(run: Packed, folder: Path) -> None:
    folder.mkdir()
    write_files(run, folder)


def write_files(run: Packed, folder: Path) -> None:
    """The result last, by which a run counts as ended."""
    for name in LISTS:
        lines = "".join(map(results.as_line, run.get(name, ())))
        write_atomically(folder / f"{name}.jsonl", lines)
    for name in OBJECTS:
        if run.get(name):
            write_atomically(folder / f"{name}.json", results.as_line(run[name], indent=2))
