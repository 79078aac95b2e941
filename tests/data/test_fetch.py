"""Downloads, from a server on this machine: what arrives, what is continued, and what is said when it goes wrong."""

import gzip
import hashlib
import io
import json
import socket
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedclass.data.catalogue import DATASETS
from fedclass.data.datasets import load
from fedclass.data.download import fetch, transfer
from fedclass.data.source import RECORD, Download, File, check_file
from fedclass.errors import ConfigError, DataError


@dataclass
class Site:
    """What a server offers and what it was asked: (path, Range header)."""

    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    ranges: bool = True
    breaks_after: int | None = None
    encoding: str | None = None
    url: str = ""


@pytest.fixture
def site():
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked = self.headers.get("Range")
            site.asked.append((self.path, asked))
            if self.path not in site.files:
                self.send_error(404)
                return
            content = site.files[self.path]
            start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and site.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if site.encoding:
                self.send_header("Content-Encoding", site.encoding)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : site.breaks_after])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.url = f"http://127.0.0.1:{server.server_port}"
    yield site
    server.shutdown()
    thread.join()
    server.server_close()


def checksum(content):
    return f"md5:{hashlib.md5(content, usedforsecurity=False).hexdigest()}"


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def idx_files(name):
    """Contents of the four .gz files of a data set, each class once."""
    labels = np.arange(len(DATASETS[name].classes), dtype=np.uint8)
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 28, 28), dtype=np.uint8)
    return {
        file.name: gzip.compress(idx(images if "images" in file.name else labels), mtime=0)
        for file in DATASETS[name].files
    }


@pytest.fixture
def mnist(site, monkeypatch):
    """The site publishes a tiny MNIST; returns its files."""
    contents = idx_files("mnist")
    site.files = {f"/{name}": content for name, content in contents.items()}
    source = replace(
        DATASETS["mnist"],
        files=tuple(File(name, checksum(content)) for name, content in contents.items()),
        downloads=tuple(Download(f"{site.url}/{name}", checksum(content)) for name, content in contents.items()),
    )
    monkeypatch.setitem(DATASETS, "mnist", source)
    return contents


def present(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


IMAGES = "train-images-idx3-ubyte.gz"


def test_files_arrive_and_are_official(tmp_path, mnist, site):
    assert fetch("mnist", tmp_path / "new") == tmp_path / "new"
    assert present(tmp_path / "new") == mnist
    assert load("mnist", path=tmp_path / "new").official
    assert [asked for _, asked in site.asked] == [None] * 4


def test_default_place_is_the_cache_folder(tmp_path, monkeypatch, mnist):
    monkeypatch.setenv("FEDCLASS_DATA", str(tmp_path))
    assert fetch("mnist") == tmp_path / "mnist"
    assert present(tmp_path / "mnist") == mnist


def test_what_is_there_is_not_downloaded_again(tmp_path, mnist, site):
    fetch("mnist", tmp_path)
    (tmp_path / IMAGES).write_bytes(b"damaged")
    site.asked.clear()
    fetch("mnist", tmp_path)
    assert site.asked == [(f"/{IMAGES}", None)]
    assert present(tmp_path) == mnist


def test_mirror_is_asked_for_the_same_names(tmp_path, mnist, site, monkeypatch):
    source = DATASETS["mnist"]
    elsewhere = tuple(replace(d, url=f"http://127.0.0.1:9/gone/{d.name}") for d in source.downloads)
    monkeypatch.setitem(DATASETS, "mnist", replace(source, downloads=elsewhere))
    site.files = {f"/copy{path}": content for path, content in site.files.items()}
    fetch("mnist", tmp_path, mirror=f"{site.url}/copy/")
    assert present(tmp_path) == mnist


def test_broken_download_is_continued(tmp_path, mnist, site):
    site.breaks_after = 100
    with pytest.raises(DataError, match=r"the connection broke; try again later \(the download will be resumed\)"):
        fetch("mnist", tmp_path)
    assert present(tmp_path) == {f"{IMAGES}.part": mnist[IMAGES][:100]}
    site.breaks_after = None
    site.asked.clear()
    fetch("mnist", tmp_path)
    assert site.asked[0] == (f"/{IMAGES}", "bytes=100-")
    assert present(tmp_path) == mnist


def test_server_that_knows_no_ranges_sends_all_of_it(tmp_path, mnist, site):
    (tmp_path / f"{IMAGES}.part").write_bytes(mnist[IMAGES][:100])
    site.ranges = False
    fetch("mnist", tmp_path)
    assert present(tmp_path) == mnist


def test_complete_part_only_needs_its_name(tmp_path, mnist):
    (tmp_path / f"{IMAGES}.part").write_bytes(mnist[IMAGES])
    fetch("mnist", tmp_path)
    assert present(tmp_path) == mnist


@pytest.mark.parametrize("size", [50, 1_000_000])  # shorter and longer than the file
def test_part_of_another_file_is_thrown_away_once(tmp_path, mnist, size):
    (tmp_path / f"{IMAGES}.part").write_bytes(b"x" * size)
    with pytest.raises(DataError, match="is not the published file"):
        fetch("mnist", tmp_path)
    assert present(tmp_path) == {}
    fetch("mnist", tmp_path)
    assert present(tmp_path) == mnist


def test_gz_declared_as_a_compressed_transfer_stays_packed(tmp_path, mnist, site):
    site.encoding = "gzip"
    fetch("mnist", tmp_path)
    assert present(tmp_path) == mnist


def test_wrong_checksum_leaves_nothing(tmp_path, mnist, site):
    site.files[f"/{IMAGES}"] = b"something else"
    with pytest.raises(DataError) as caught:
        fetch("mnist", tmp_path)
    assert str(caught.value) == (
        f"{site.url}/{IMAGES}: is not the published file ({checksum(mnist[IMAGES])} expected), nothing was kept; "
        "try again, or another host: fedclass data fetch mnist --mirror URL"
    )
    assert present(tmp_path) == {}


@pytest.mark.usefixtures("mnist")
def test_not_found(tmp_path, site):
    site.files.clear()
    with pytest.raises(DataError) as caught:
        fetch("mnist", tmp_path)
    assert str(caught.value) == (
        f"{site.url}/{IMAGES}: the server answers 404 Not Found; try again later (the download will be resumed), "
        f"or another host: fedclass data fetch mnist --mirror URL, "
        f"or put {IMAGES} into {tmp_path} yourself and repeat: fedclass data fetch mnist"
    )
    assert present(tmp_path) == {}


@pytest.mark.usefixtures("mnist")
def test_unreachable_server(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens here
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(DataError, match=r"the server cannot be reached.*--mirror URL.*yourself and repeat"):
            fetch("mnist", tmp_path, mirror=address)
    assert present(tmp_path) == {}


@pytest.mark.usefixtures("mnist")
def test_mirror_that_is_no_url(tmp_path):
    with pytest.raises(DataError, match="Invalid URL 'my-mirror/"):
        fetch("mnist", tmp_path, mirror="my-mirror")


@pytest.mark.usefixtures("mnist")
def test_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be written .*fedclass data fetch mnist --path FOLDER"):
        fetch("mnist", tmp_path / "file")


@pytest.mark.parametrize("name", ["synnum", "folder", "npz", "tiny-imagenet", "my.module:load"])
def test_what_needs_no_download(name):
    with pytest.raises(ConfigError, match=r"are drawn, not downloaded|has no place to download it from; say where"):
        fetch(name)


def test_unknown_name():
    with pytest.raises(ConfigError, match=r"did you mean 'mnist'\?"):
        fetch("mnits")


def zipped(contents):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("gzip/", "")
        archive.writestr("gzip/emnist-letters-mapping.txt", "not wanted")
        for name, content in contents.items():
            archive.writestr(f"gzip/{name}", content)
    return buffer.getvalue()


def offer_archive(site, monkeypatch, name, archive):
    download = DATASETS[name].downloads[0]
    site.files[f"/{download.name}"] = archive
    here = Download(f"{site.url}/{download.name}", checksum(archive))
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], downloads=(here,)))


def test_files_out_of_a_verified_archive_are_official(tmp_path, site, monkeypatch):
    contents = idx_files("emnist-balanced")
    offer_archive(site, monkeypatch, "emnist-balanced", zipped(contents))
    fetch("emnist-balanced", tmp_path)
    kept = present(tmp_path)
    record = json.loads(kept.pop(RECORD))
    assert kept == contents  # neither the archive nor what nobody wants of it
    assert record["files"] == {n: f"sha256:{hashlib.sha256(c).hexdigest()}" for n, c in contents.items()}
    assert load("emnist-balanced", path=tmp_path).official
    site.asked.clear()
    fetch("emnist-balanced", tmp_path)
    assert site.asked == []


def test_record_vouches_for_these_bytes_and_this_archive_only(tmp_path, site, monkeypatch):
    contents = idx_files("emnist-balanced")
    offer_archive(site, monkeypatch, "emnist-balanced", zipped(contents))
    fetch("emnist-balanced", tmp_path)
    source = DATASETS["emnist-balanced"]
    changed = tmp_path / source.files[0].name
    changed.write_bytes(gzip.compress(gzip.decompress(changed.read_bytes()), compresslevel=1, mtime=1))
    assert [check_file(source, file, tmp_path) for file in source.files] == ["wrong", "ok", "ok", "ok"]
    assert not load("emnist-balanced", path=tmp_path).official
    other = replace(source, downloads=(replace(source.downloads[0], checksum="md5:" + "0" * 32),))
    assert {check_file(other, file, tmp_path) for file in source.files} == {"unknown"}


def test_tar_archive_is_unpacked_over_damaged_files(tmp_path, site, monkeypatch):
    labels = np.arange(10, dtype=np.uint8)[:, None]
    batch = np.hstack([labels, np.zeros((10, 3072), np.uint8)]).tobytes()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for file in DATASETS["cifar10"].files:
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{file.name}")
            info.size = len(batch)
            archive.addfile(info, io.BytesIO(batch))
        link = tarfile.TarInfo("cifar-10-batches-bin/test_batch.bin")  # must not be followed
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    offer_archive(site, monkeypatch, "cifar10", buffer.getvalue())
    for place in (tmp_path, tmp_path / "cifar-10-batches-bin"):
        place.mkdir(exist_ok=True)
        (place / "test_batch.bin").write_bytes(b"damaged")
    fetch("cifar10", tmp_path)
    images = load("cifar10", path=tmp_path)
    assert (len(images.train), len(images.test)) == (50, 10)
    assert not images.official  # these are not CIFAR-10


def test_archive_without_a_file(tmp_path, site, monkeypatch):
    contents = idx_files("emnist-balanced")
    contents.pop("emnist-balanced-test-labels-idx1-ubyte.gz")
    offer_archive(site, monkeypatch, "emnist-balanced", zipped(contents))
    with pytest.raises(DataError, match=r"gzip\.zip: lacks emnist-balanced-test-labels-idx1-ubyte\.gz"):
        fetch("emnist-balanced", tmp_path)
    assert set(present(tmp_path)) == {"gzip.zip"}


def test_transfer_asks_for_the_rest_only(tmp_path, site):
    site.files["/a"] = bytes(range(200))
    (tmp_path / "a.part").write_bytes(bytes(range(150)))
    transfer(f"{site.url}/a", tmp_path / "a", part=tmp_path / "a.part")
    assert (tmp_path / "a").read_bytes() == bytes(range(200))
    assert site.asked == [("/a", "bytes=150-")]
    assert not (tmp_path / "a.part").exists()
