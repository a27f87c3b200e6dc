"""The cache of compiled libraries: what is loaded from it, and what is not.

Nothing is compiled here: a "library" is a file that is read.
"""

import os
from pathlib import Path

import pytest

from sgdf.kernels import build

BUILT = b"compiled here"


@pytest.fixture
def home(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def cache(home):
    folder = home / "sgdf" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    return folder


def load():
    """What is loaded under the stem "stem", and whether it had to be compiled."""
    compiled = []

    def compile_to(path):
        compiled.append(path)
        path.write_bytes(BUILT)

    return build.load_or_compile("stem", compile_to, Path.read_bytes), bool(compiled)


def plant(folder, content=b"planted", mode=0o600):
    path = folder / f"stem-{build.digest(content)}.so"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_library_is_kept_for_this_user_alone(home):
    before = os.umask(0)  # the most permissive one
    try:
        assert load() == (BUILT, True)
    finally:
        os.umask(before)
    folder = home / "sgdf" / "kernels"
    (kept,) = folder.iterdir()
    assert [path.stat().st_mode & 0o777 for path in (folder, kept)] == [0o700, 0o600]
    assert load() == (BUILT, False)


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o755])
def test_a_folder_that_others_can_read_or_write_is_not_used(cache, mode):
    planted = plant(cache)
    assert load() == (b"planted", False)  # in a private folder it would be
    cache.chmod(mode)
    assert load() == (BUILT, True)
    assert list(cache.iterdir()) == [planted]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702])
def test_a_folder_that_others_can_replace_is_not_used(cache, mode):
    plant(cache)
    cache.parent.chmod(mode)
    assert load() == (BUILT, True)
    cache.parent.chmod(0o1777)  # with the sticky bit, as /tmp has it, nobody else can rename it
    assert load() == (b"planted", False)


def test_a_folder_below_that_of_another_user_is_not_used(cache, monkeypatch):
    """Its owner can rename what is in it, whatever its mode."""
    plant(cache)
    assert load() == (b"planted", False)
    real, place = Path.stat, cache.parent.resolve()

    def stat(path, **options):
        status = list(real(path, **options))
        if path == place:
            status[4] = os.geteuid() + 1
        return os.stat_result(status)

    monkeypatch.setattr(Path, "stat", stat)
    assert load() == (BUILT, True)


def test_what_was_checked_is_loaded_whatever_the_name_is_then(cache, monkeypatch):
    path, checked = plant(cache), build._content

    def replaced_after_the_check(cached):
        content = checked(cached)
        cached.write_bytes(b"another user's")
        return content

    monkeypatch.setattr(build, "_content", replaced_after_the_check)
    assert load() == (b"planted", False)
    assert path.read_bytes() == b"another user's"


def test_the_private_copy_is_made_where_nobody_can_replace_it(home, cache, monkeypatch):
    opened = []
    shared = home / "shared"
    shared.mkdir()
    monkeypatch.setattr(build.tempfile, "tempdir", str(shared))
    for mode, place in ((0o1777, shared), (0o777, cache)):
        shared.chmod(mode)
        build.load_or_compile("other", lambda path: path.write_bytes(BUILT), opened.append)
        assert opened[-1].parent.parent.resolve() == place.resolve()
        assert not opened[-1].exists()
    cache.chmod(0o777)
    with pytest.raises(RuntimeError, match="set TMPDIR"):
        build.load_or_compile("other", lambda path: path.write_bytes(BUILT), opened.append)


def test_a_folder_of_another_user_is_not_used(cache, monkeypatch):
    planted = plant(cache)
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    assert load() == (BUILT, True)
    assert list(cache.iterdir()) == [planted]


def test_a_link_to_a_folder_is_not_used(home, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    elsewhere.chmod(0o700)
    plant(elsewhere)
    (home / "sgdf").mkdir()
    (home / "sgdf" / "kernels").symlink_to(elsewhere)
    assert load() == (BUILT, True)


def test_a_link_that_changes_behind_the_check_changes_nothing(tmp_path, monkeypatch):
    """What is used is what was checked."""
    for name in ("checked", "planted"):
        (tmp_path / name / "sgdf" / "kernels").mkdir(parents=True, mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "checked")
    monkeypatch.setenv("XDG_CACHE_HOME", str(link))
    real = build._replaceable

    def replaced_behind(path):
        found = real(path)
        link.unlink()
        link.symlink_to(tmp_path / "planted")
        return found

    tmp_path.chmod(0o700)
    monkeypatch.setattr(build, "_replaceable", replaced_behind)
    assert build._private_cache() == (tmp_path / "checked" / "sgdf" / "kernels").resolve()


def test_a_file_of_another_user_is_not_loaded(cache, monkeypatch):
    path = plant(cache)
    real, uid = os.fstat, cache.stat().st_uid

    def fstat(descriptor):
        status = list(real(descriptor))
        status[4] = uid + 1
        return os.stat_result(status)

    monkeypatch.setattr(build.os, "fstat", fstat)
    assert build._content(path) is None
    monkeypatch.undo()
    assert build._content(path) == b"planted"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_loaded(cache, mode):
    plant(cache, mode=mode)
    assert load() == (BUILT, True)
    assert load() == (BUILT, False)


def test_what_is_not_a_file_neither_hangs_nor_loads(cache, tmp_path):
    (tmp_path / "real").write_bytes(b"planted")
    os.mkfifo(cache / "stem-fifo.so")
    (cache / "stem-endless.so").symlink_to("/dev/zero")
    (cache / f"stem-{build.digest(b'planted')}.so").symlink_to(tmp_path / "real")
    (cache / "stem-folder.so").mkdir()
    with open(cache / "stem-huge.so", "wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space
    assert load() == (BUILT, True)
    assert load() == (BUILT, False)
    names = {path.name for path in cache.iterdir()}
    assert names == {"stem-folder.so", f"stem-{build.digest(BUILT)}.so"}


def test_a_relative_cache_home_is_ignored(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for relative in ("cache", ".", ""):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert build._cache() == tmp_path / "home" / ".cache" / "sgdf" / "kernels"
    load()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("named", [" ", "'x", '"'])
def test_a_compiler_that_is_no_command(named, monkeypatch):
    monkeypatch.setenv("CXX", named)
    with pytest.raises(RuntimeError, match=r"the C\+\+ compiler .* \(CXX\)"):
        build.find_compiler()
