"""Files are whole or as they were; errors of a disk are one sentence."""

import errno
import json
import os
from pathlib import Path

import pytest

from sgdf_lab.support import files
from sgdf_lab.support.errors import UserError


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("locked", [False, True])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, locked):
    path = tmp_path / "a.json"
    files.write_atomically(path, "old", locked=locked)

    def interrupted() -> None:
        with files.replacing(path, locked=locked) as file:
            file.write(b"half of")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.json"]
    files.write_atomically(path, "new", locked=locked)
    assert path.read_text() == "new"
    assert names(tmp_path) == ["a.json"]


def test_a_failed_rename_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    files.write_atomically(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(UserError, match="is full"), files.explained(tmp_path):
        files.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_two_writers_at_once_do_not_write_into_one_file(tmp_path):
    path = tmp_path / "a"
    with files.replacing(path) as first, files.replacing(path) as second:
        first.write(b"first")
        second.write(b"second")
    assert path.read_bytes() == b"first"  # the outer block ends last
    assert names(tmp_path) == ["a"]


def test_a_lock_makes_the_temporary_name_fixed(tmp_path):
    """So that what a killed process left is overwritten, not added to."""
    (tmp_path / "last.pt.new").write_bytes(b"left by a killed process")
    files.write_atomically(tmp_path / "last.pt", b"whole", locked=True)
    assert names(tmp_path) == ["last.pt"]


def left_over(folder: Path, kind: str, name: str) -> None:
    """Something hostile or left by another program."""
    path = folder / name
    if kind == "link":
        path.symlink_to("victim")
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "dangling":
        path.symlink_to("none")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["link", "endless", "dangling", "pipe"])
def test_what_has_the_temporary_name_is_removed_and_never_opened(tmp_path, kind):
    (tmp_path / "victim").write_text("precious")
    left_over(tmp_path, kind, "a.new")
    files.write_atomically(tmp_path / "a", b"whole", locked=True)
    assert names(tmp_path) == ["a", "victim"]
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_a_folder_with_the_temporary_name_is_named(tmp_path):
    left_over(tmp_path, "folder", "a.new")
    refused = pytest.raises(UserError, match=r"cannot be written: a\.new is a folder$")
    with refused, files.explained(tmp_path):
        files.write_atomically(tmp_path / "a", b"whole", locked=True)
    assert names(tmp_path) == ["a.new"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["link", "endless", "dangling", "pipe", "folder"])
def test_a_lock_is_a_regular_file(tmp_path, kind):
    (tmp_path / "victim").write_text("precious")
    left_over(tmp_path, kind, "lock")
    before = names(tmp_path), os.listdir("/proc/self/fd")
    refused = pytest.raises(UserError, match=r"cannot be written: lock is not a regular file$")
    with refused, files.explained(tmp_path):
        files.open_lock(tmp_path / "lock")
    assert (names(tmp_path), os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_lock_is_created_and_opened_again(tmp_path):
    for _ in range(2):
        os.close(files.open_lock(tmp_path / "lock"))
    assert names(tmp_path) == ["lock"]


def test_it_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    order: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, r=real: (order.append(n), r(*a))[1])
    files.write_atomically(tmp_path / "a", b"x")
    assert order == ["fsync", "replace", "fsync"]


def test_new_files_follow_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        files.write_atomically(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_json_has_no_nan(tmp_path):
    files.write_json(tmp_path / "a", {"words": "Fréchet"})
    assert json.loads((tmp_path / "a").read_text("utf-8")) == {"words": "Fréchet"}
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(tmp_path / "a", [float("nan")])
    assert names(tmp_path) == ["a"]


def test_what_a_disk_refuses(tmp_path):
    refused = pytest.raises(UserError, match="cannot be written: Permission denied")
    with refused, files.explained(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied")
    with pytest.raises(RuntimeError, match="not of a disk"), files.explained(tmp_path):
        raise RuntimeError("not of a disk")


# --- reading --------------------------------------------------------------------------------------


def test_a_text_is_read_also_through_a_link(tmp_path):
    (tmp_path / "a").write_text("Fréchet\n", encoding="utf-8")
    (tmp_path / "link").symlink_to("a")
    assert files.read_text(tmp_path / "a") == files.read_text(tmp_path / "link") == "Fréchet\n"


@pytest.mark.timeout(20)
def test_only_regular_files_are_opened(tmp_path):
    """A pipe would block, and a device never end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    before = os.listdir("/proc/self/fd")
    for name in ("pipe", "endless", "folder"):
        with pytest.raises(OSError, match=f"^{name} is not a regular file$"):
            files.open_regular(tmp_path / name)
    assert os.listdir("/proc/self/fd") == before, "and closed again"
    with pytest.raises(FileNotFoundError):
        files.open_regular(tmp_path / "none")


def test_a_file_over_the_limit_is_not_read(tmp_path):
    path = tmp_path / "a"
    path.write_text("12345")
    assert files.read_text(path, limit=5) == "12345"
    with pytest.raises(OSError, match=r"^a is too large, 5 bytes$"):
        files.read_text(path, limit=4)
    os.truncate(path, 2**34)  # sparse: it takes no room
    with pytest.raises(OSError, match=r"^a is too large"):
        files.read_text(path)
