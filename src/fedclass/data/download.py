"""Download published files: interrupted downloads are resumed, and files are verified before use.

    fetch("cifar10")                                  into cache_folder() / "cifar10"
    fetch("cifar10", mirror="https://my.host/data")   the same file names, from another host

pooch compares checksums and moves a finished file into place. It cannot resume, so the transfer itself is ours.
"""

import hashlib
import json
import logging
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pooch
import requests
import urllib3.exceptions
from tqdm import tqdm

from fedclass.data.datasets import find_source
from fedclass.data.source import RECORD, Download, Source, check_file, data_folder
from fedclass.errors import ConfigError, DataError

TIMEOUT = (10, 60)  # seconds to connect, and between two pieces
PIECE = 1 << 18  # bytes


def fetch(name: str, path: Path | None = None, *, mirror: str | None = None) -> Path:
    """Download what is missing, and return the folder, in which every file is then the published one.

    mirror: a URL under which the downloads have their usual names. After an interruption, the same call resumes.
    """
    source = find_source(name)
    if not source.downloads:
        raise ConfigError(f"{name}: {_nothing_to_fetch(source)}")
    folder = data_folder(name, path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for download in source.downloads:
            if not _is_here(source, download, folder):
                _fetch_one(source, download, folder, mirror)
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error}); choose another place: fedclass data fetch {name} --path FOLDER"
        ) from error
    return folder


def _nothing_to_fetch(source: Source) -> str:
    if source.drawn:
        return "these images are drawn, not downloaded; there is nothing to fetch"
    return "fedclass has no place to download it from; say where your copy is: --set data.path=..."


def _is_here(source: Source, download: Download, folder: Path) -> bool:
    """Whether the file, or every file from the archive, is in place and as published."""
    own = [file for file in source.files if file.name == download.name]
    return all(check_file(source, file, folder) == "ok" for file in own or source.files)


def _fetch_one(source: Source, download: Download, folder: Path, mirror: str | None) -> None:
    url = download.url if mirror is None else f"{mirror.rstrip('/')}/{download.name}"
    again = f"fedclass data fetch {source.name}"
    target = folder / download.name
    part = folder / f"{download.name}.part"
    pooch.get_logger().setLevel(logging.WARNING)  # the progress bar says it already
    try:
        pooch.retrieve(
            url,
            download.checksum,
            fname=target.name,
            path=folder,
            downloader=lambda url, output, _pooch: transfer(url, Path(output), part=part),
        )
    except requests.RequestException as error:
        raise DataError(
            f"{url}: {_reason(error)}; try again later (the download will be resumed), or another host: "
            f"{again} --mirror URL, or put {download.name} into {folder} yourself and repeat: {again}"
        ) from error
    except ValueError as error:  # raised by pooch for a wrong checksum
        raise DataError(
            f"{url}: is not the published file ({download.checksum} expected), nothing was kept; "
            f"try again, or another host: {again} --mirror URL"
        ) from error
    if all(file.name != download.name for file in source.files):
        _unpack(source, download, target)
        target.unlink()


def _reason(error: requests.RequestException) -> str:
    if error.response is not None:
        return f"the server answers {error.response.status_code} {error.response.reason}"
    if isinstance(error, requests.Timeout):
        return "the server does not answer in time"
    if isinstance(error, requests.ConnectionError):
        return "the server cannot be reached, or the connection broke"
    return str(error)


def transfer(url: str, output: Path, *, part: Path) -> None:
    """Download `url` to `output` by way of `part`, which is kept if the connection breaks, so as to resume."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            # Either the part is complete, or it belongs to another file; the checksum will show.
            part.replace(output)
            return
        response.raise_for_status()
        start = have if _first_byte(response) == have else 0  # a server may ignore the range and send everything
        length = response.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        bar = tqdm(
            desc=part.stem,
            total=total,
            initial=start,
            unit="B",
            unit_scale=True,
            disable=None,  # without a terminal
        )
        with bar, part.open("ab" if start else "wb") as stream:
            try:
                # Undecoded: some servers call a .gz file a compressed transfer, and requests would unpack it.
                for piece in response.raw.stream(PIECE, decode_content=False):
                    stream.write(piece)
                    bar.update(len(piece))
            except urllib3.exceptions.HTTPError as error:
                raise requests.ConnectionError(f"{url}: broke off") from error
    part.replace(output)


def _first_byte(response: requests.Response) -> int | None:
    """Where a partial answer begins: "bytes 100-199/200" begins at 100."""
    unit, _, interval = response.headers.get("Content-Range", "").partition(" ")
    first = interval.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdigit() else None


def _unpack(source: Source, download: Download, archive: Path) -> None:
    """Take the needed files out of a verified archive, and record their checksums."""
    wanted = {file.name for file in source.files}
    digests = {}
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpacking-") as draft:
        for name, stream in _members(archive):
            if name in wanted:
                digests[name] = f"sha256:{_copy(stream, Path(draft) / name)}"
        if missing := sorted(wanted - digests.keys()):
            raise DataError(f"{archive}: lacks {', '.join(missing)}; this is a fault of fedclass, please report it")
        record = Path(draft) / RECORD
        record.write_text(json.dumps({"archive": download.checksum, "files": digests}, indent=1))
        for name in (*digests, RECORD):  # the record last: it vouches for files that are there
            (Path(draft) / name).replace(archive.parent / name)


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Base name and content of every regular file in a .zip or .tar.gz; folders in it do not matter."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    with zipped.open(info) as stream:
                        yield Path(info.filename).name, stream
    else:
        with tarfile.open(archive) as tarred:
            for member in tarred:
                content = tarred.extractfile(member) if member.isfile() else None  # links are not followed
                if content is not None:
                    yield Path(member.name).name, content


def _copy(source: IO[bytes], target: Path) -> str:
    """Copy, and return the SHA-256 of the content."""
    digest = hashlib.sha256()
    with target.open("wb") as stream:
        while piece := source.read(PIECE):
            digest.update(piece)
            stream.write(piece)
    return digest.hexdigest()
