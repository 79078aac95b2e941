"""`fedclass data ...`: what is printed, what is written, and which errors reach the top."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedclass.cli.data import app, contact_sheet
from fedclass.data.catalogue import DATASETS
from fedclass.data.image_set import Split
from fedclass.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCLASS_DATA", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "cache"


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_npz(path):
    labels = np.array([0, 1, 2, 0, 1, 2])
    images = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels, classes=["ape", "bee", "cat"])


def write_svhn(folder):
    from scipy.io import savemat

    folder.mkdir(parents=True)
    for file in DATASETS["svhn"].files:
        savemat(folder / file.name, {"X": np.zeros((32, 32, 3, 10), np.uint8), "y": np.arange(1, 11)[:, None]})


def test_help_does_not_wait_for_torch():
    program = (
        "import sys; from typer.testing import CliRunner; from fedclass.cli.data import app;"
        "assert CliRunner().invoke(app, ['fetch', '--help']).exit_code == 0;"
        "sys.exit(', '.join({'torch', 'numpy', 'matplotlib', 'pooch'} & set(sys.modules)) or 0)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


def test_list_says_what_and_where(cache):
    write_svhn(cache / "svhn")
    (cache / "mnist").mkdir()
    (cache / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(b"")
    result = run("list")
    assert result.exit_code == 0
    rows = {line.split()[0]: line for line in result.output.splitlines() if line}
    assert set(DATASETS) < set(rows)
    assert rows["svhn"].split()[1:7] == ["10", "32x32x3", "73,257", "/", "26,032", "yes"]
    assert "1 of 4 files" in rows["mnist"]
    assert rows["cifar10"].split()[6] == "no"
    assert rows["synnum"].split()[6] == "drawn"
    assert "fedclass data fetch NAME" in result.output
    assert f"Files are kept in {cache}" in result.output.replace("\n", "")


def test_verify_names_each_file(cache):
    write_svhn(cache / "svhn")
    result = run("verify", "svhn")
    assert result.output.splitlines() == [
        f"wrong    {cache / 'svhn' / 'train_32x32.mat'}",
        f"wrong    {cache / 'svhn' / 'test_32x32.mat'}",
        "readable: 10 classes, 10 images for training, 10 for testing",
    ]
    assert isinstance(result.exception, DataError)
    assert result.exception.exit_code == 3
    assert "can be used, but is not known to be the published svhn" in str(result.exception)
    assert "fedclass data fetch svhn" in str(result.exception)


def test_verify_is_content_with_published_files(cache, monkeypatch):
    from pooch import file_hash

    write_svhn(cache / "svhn")
    source = DATASETS["svhn"]
    files = tuple(
        replace(file, checksum=f"md5:{file_hash(cache / 'svhn' / file.name, alg='md5')}") for file in source.files
    )
    monkeypatch.setitem(DATASETS, "svhn", replace(source, files=files))
    result = run("verify", "svhn")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == ["ok", "ok", "readable:"]


def test_verify_of_missing_files(tmp_path):
    result = run("verify", "svhn", "--path", tmp_path)
    assert [line.split()[0] for line in result.output.splitlines()] == ["missing", "missing"]
    assert isinstance(result.exception, DataError)
    assert "lacks train_32x32.mat, test_32x32.mat" in str(result.exception)


def test_verify_of_own_data_reads_it(tmp_path):
    write_npz(tmp_path / "my.npz")
    result = run("verify", "npz", "--path", tmp_path / "my.npz")
    assert result.exit_code == 0
    assert result.output == "readable: 3 classes, 6 images for training, 6 for testing\n"
    (tmp_path / "my.npz").write_bytes(b"")
    assert isinstance(run("verify", "npz", "--path", tmp_path / "my.npz").exception, DataError)


def test_verify_of_drawn_digits():
    result = run("verify", "synnum")
    assert (result.exit_code, result.output) == (
        0,
        "synnum is drawn on demand: there are no files to check.\n",
    )


@pytest.mark.parametrize("command", ["fetch", "verify", "show"])
def test_unknown_name(command):
    result = run(command, "cifar-10")
    assert isinstance(result.exception, ConfigError)
    assert "did you mean 'cifar10'?" in str(result.exception)


def test_fetch_of_what_needs_none():
    result = run("fetch", "synnum")
    assert isinstance(result.exception, ConfigError)
    assert "drawn, not downloaded" in str(result.exception)


def test_fetch_passes_path_and_mirror(tmp_path, monkeypatch):
    calls = []

    def fake(name, path, *, mirror):
        calls.append((name, path, mirror))
        return path

    monkeypatch.setattr("fedclass.data.download.fetch", fake)
    result = run("fetch", "svhn", "--path", tmp_path, "--mirror", "http://here")
    assert calls == [("svhn", tmp_path, "http://here")]
    assert result.output.splitlines()[0] == f"svhn is in {tmp_path}, as published."
    assert "For non-commercial use only." in result.output


def test_sheet_has_a_row_per_class():
    split = Split(np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1) * 10, np.array([1, 0, 1, 1, 0]))
    np.testing.assert_array_equal(contact_sheet(split, 2, 3)[..., 0], [[10, 40, 255], [0, 20, 30]])


def test_sheet_keeps_pixels_together():
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 2, 3), dtype=np.uint8)
    sheet = contact_sheet(Split(images, np.array([0, 0, 1, 1])), 2, 2)
    assert sheet.shape == (6, 4, 3)
    np.testing.assert_array_equal(sheet[3:, 2:], images[3])


def test_show_writes_a_picture(tmp_path):
    write_npz(tmp_path / "my.npz")
    result = run("show", "npz", "--path", tmp_path / "my.npz", "--out", tmp_path / "my.png", "--count", 2)
    assert result.output == f"{tmp_path / 'my.png'}: 3 classes, up to 2 images each\n"
    with Image.open(tmp_path / "my.png") as sheet:
        assert sheet.format == "PNG"
        assert len(np.unique(np.asarray(sheet.convert("L")))) > 50  # many gray levels: images, not a blank page


def test_show_draws_no_more_digits_than_it_shows(tmp_path, monkeypatch):
    from fedclass.data import synnum

    drawn = []
    original = synnum.cached
    monkeypatch.setattr(
        synnum, "cached", lambda folder, count, **rest: drawn.append(count) or original(folder, count, **rest)
    )
    assert run("show", "synnum", "--out", tmp_path / "s.png", "--count", 3).exit_code == 0
    assert drawn == [30, 10]


@pytest.mark.parametrize("out", ["no/such/folder/s.png", "s.unknown"])
def test_show_that_cannot_be_written(tmp_path, out):
    result = run("show", "synnum", "--out", tmp_path / out, "--count", 1)
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(f"--out {tmp_path / out}: cannot be written")
