"""Archives cannot write outside their folder, and are unpacked completely or not at all."""

import io
import os
import tarfile

import pytest

from data import published
from sgdf_lab.data import archive as module
from sgdf_lab.data.archive import DamagedData, read_members, unpack
from sgdf_lab.support.errors import UserError


def entry(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


EVIL = {
    "up": [entry("../evil")],
    "up and down": [entry("root/../../evil")],
    "absolute": [entry("{outside}/evil")],
    "windows": [entry("..\\evil")],
    "drive": [entry("C:\\evil")],
    "symbolic link": [entry("root/out", tarfile.SYMTYPE, "../.."), entry("root/out/evil")],
    "absolute link": [entry("root/out", tarfile.SYMTYPE, "{outside}"), entry("root/out/evil")],
    "hard link": [entry("root/evil", tarfile.LNKTYPE, "{outside}/secret")],
    "hard link inside": [entry("root/evil", tarfile.LNKTYPE, "root/fine")],
    "device": [entry("root/evil", tarfile.CHRTYPE)],
    "pipe": [entry("root/evil", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("case", EVIL)
def test_what_would_leave_the_folder_is_refused(tmp_path, case):
    outside, home = published.made(tmp_path / "outside"), published.made(tmp_path / "a" / "home")
    (outside / "secret").write_text("secret")
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        fine = entry("root/fine")
        fine.size = 4
        file.addfile(fine, io.BytesIO(b"fine"))
        for info in EVIL[case]:
            name = info.name.format(outside=outside)
            link = info.linkname.format(outside=outside)
            file.addfile(entry(name, info.type, link), io.BytesIO(b""))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"is not safe: its entry '.*(evil|out)'"):
        unpack(archive, "root", home / "target")
    assert sorted(tmp_path.rglob("*")) == before
    assert (outside / "secret").read_text() == "secret"


@pytest.fixture
def packed(tmp_path):
    """A folder, and an archive of it."""
    folder = published.cifar10_pickles(tmp_path, published.made_up("cifar10"))
    return folder, published.packed(folder, tmp_path / "a.tar.gz")


def test_an_archive_is_unpacked_and_renamed(packed, tmp_path):
    folder, archive = packed
    unpack(archive, folder.name, tmp_path / "target")
    for file in folder.iterdir():
        assert (tmp_path / "target" / file.name).read_bytes() == file.read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_a_stopped_unpack_leaves_no_target(packed, tmp_path, monkeypatch):
    folder, archive = packed
    extract, seen = tarfile.TarFile.extract, []

    def stopped(self, member, *args, **kwargs):
        seen.append(member)
        if len(seen) == 4:
            raise KeyboardInterrupt
        extract(self, member, *args, **kwargs)

    monkeypatch.setattr(tarfile.TarFile, "extract", stopped)
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, folder.name, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    assert not list(tmp_path.glob(f"{module.SCRATCH}*"))


def test_a_truncated_archive_leaves_no_target(packed, tmp_path):
    folder, archive = packed
    os.truncate(archive, archive.stat().st_size // 2)
    with pytest.raises(UserError, match=r"a\.tar\.gz is damaged .*: delete it"):
        unpack(archive, folder.name, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_an_archive_without_the_folder(packed, tmp_path):
    with pytest.raises(UserError, match="holds no folder other"):
        unpack(packed[1], "other", tmp_path / "target")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["root/missing", "root/batch", "batch", "../../batch"])
def test_a_link_in_an_archive_that_is_read_in_place_leads_nowhere_else(tmp_path, kind, target):
    (tmp_path / "batch").write_text("of somebody else")
    archive = tmp_path / "links.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.addfile(entry("root/batch", kind, target))
    with pytest.raises(DamagedData, match=r"links\.tar\.gz is damaged"):
        read_members(archive, ["batch"])
