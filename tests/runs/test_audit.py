"""The audit log: whatever is changed, removed or moved is noticed and named; a crash is told apart from it."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedclass.cli import app
from fedclass.runs import audit

Lines = list[bytes]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for number in range(5):
        audit.append(tmp_path, "answer", site=f"söme-{number}", examples=number)
    return tmp_path


def replaced(old: bytes, new: bytes) -> Callable[[Lines], Lines]:
    return lambda lines: [line.replace(old, new) for line in lines]


def rehashed(lines: Lines) -> Lines:
    """Entry 3 changed by somebody who knows how its hash is made."""
    entry = json.loads(lines[2]) | {"examples": 99}
    entry["sha256"] = audit._digest(entry)
    return [*lines[:2], (json.dumps(entry, ensure_ascii=False) + "\n").encode(), *lines[3:]]


def test_what_was_not_touched_is_whole(log: Path) -> None:
    found = audit.verify(log)
    assert (found.lines, found.flaws, found.lost, found.torn) == (5, [], [], 0)
    assert [entry["number"] for entry in audit.entries(log)] == [1, 2, 3, 4, 5]
    assert audit.verify(log, found.head).flaws == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replaced(b'"examples": 3', b'"examples": 4'), "line 4 (entry 4) was changed"),
        (rehashed, "line 4 (entry 4) does not follow the line before it: one of them was replaced"),
        (lambda lines: [*lines[:1], *lines[2:]], "line 2 (entry 3) does not follow the line before it: entry 2 was"),
        (lambda lines: lines[3:], "line 1 (entry 4) does not follow the line before it: entries 1 to 3 were removed"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 2 (entry 1) is out of order: entry 3 was expected"),
        (lambda lines: [*lines[:2], b"{}\n", *lines[3:]], "line 3 is not an entry: it was changed"),
    ],
)
def test_tampering_is_noticed_and_named(log: Path, change: Callable[[Lines], Lines], said: str) -> None:
    path = log / audit.FILE
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    assert any(said in flaw for flaw in audit.verify(log).flaws), audit.verify(log).flaws


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (lambda log: log[:-1], "entry 5 had been written, and is missing at the end, but for {} bytes"),
        (lambda log: log[:-20], "entry 5 had been written, and is missing at the end, but for {} bytes"),
        (lambda log: b"".join(log.splitlines(keepends=True)[:3]), "entries 4 to 5 had been written, and are missing"),
        (lambda _: b"", "entries 1 to 5 had been written, and are missing at the end"),
    ],
)
def test_a_log_without_its_end_is_incomplete_and_not_called_tampered(
    log: Path, left: Callable[[bytes], bytes], said: str
) -> None:
    """Power failures, old backups and somebody's hand look alike; only a hash that was noted elsewhere shows more."""
    path, noted = log / audit.FILE, audit.verify(log).head
    path.write_bytes(left(path.read_bytes()))
    found = audit.verify(log)
    torn = len(path.read_bytes().rpartition(b"\n")[2])
    assert (found.flaws, found.torn) == ([], 0)
    assert said.format(torn) in found.lost[0]
    shown = CliRunner().invoke(app, ["audit", "verify", str(log)])
    assert (shown.exit_code, "INCOMPLETE: entr" in shown.output, "TAMPERED" in shown.output) == (1, True, False)
    assert "noted elsewhere" in audit.verify(log, noted).flaws[0]


@pytest.mark.parametrize(("head", "said"), [(None, "is missing"), (b"{", "is damaged"), (b"[1]", "is damaged")])
def test_without_its_head_the_end_of_a_log_cannot_be_told(log: Path, head: bytes | None, said: str) -> None:
    (log / audit.HEAD).unlink() if head is None else (log / audit.HEAD).write_bytes(head)
    found = audit.verify(log)
    assert (found.lines, found.flaws, len(found.lost)) == (5, [], 1)
    assert said in found.lost[0]
    assert "cannot be told" in found.lost[0]


def test_a_log_that_is_written_meanwhile_is_whole(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that comes between the two reads is in the log, and later than the head."""
    content = audit._content

    def slow(root: Path) -> bytes:
        audit.append(root, "answer", site="north")
        return content(root) + b'{"number": 7, "t'

    monkeypatch.setattr(audit, "_content", slow)
    found = audit.verify(log)
    assert (found.lines, found.flaws, found.lost, found.torn) == (6, [], [], 16)


def test_a_chain_that_was_written_anew_lacks_the_hash_that_was_noted_elsewhere(log: Path) -> None:
    noted = audit.verify(log).head
    for name in (audit.FILE, audit.HEAD):
        (log / name).unlink()
    for number in range(5):
        audit.append(log, "answer", site="north", examples=number)
    assert audit.verify(log).flaws == []
    assert "which was noted elsewhere: it was written anew, or its end removed" in audit.verify(log, noted).flaws[0]


def test_a_torn_last_line_is_no_tampering_and_the_log_goes_on_after_it(log: Path) -> None:
    path = log / audit.FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number": 6, "ti')
    assert (audit.verify(log).flaws, audit.verify(log).torn) == ([], 17)
    audit.append(log, "answer", site="north")
    found = audit.verify(log)
    assert (found.lines, found.flaws, found.torn) == (7, [], 0)
    torn = list(audit.entries(log))[5]
    assert (torn["kind"], torn["bytes"]) == ("torn", 17)


@pytest.mark.slow
def test_kill_9_leaves_a_log_that_is_whole_and_goes_on(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from fedclass.runs import audit\nwhile True: audit.append(pathlib.Path(sys.argv[1]), 'x')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    while not (tmp_path / audit.FILE).exists() or (tmp_path / audit.FILE).stat().st_size < 2000:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert audit.verify(tmp_path).flaws == audit.verify(tmp_path).lost == []
    audit.append(tmp_path, "y")
    assert audit.verify(tmp_path).flaws == []
    assert [entry["kind"] for entry in audit.entries(tmp_path)][-1] == "y"


def test_the_commands(log: Path, tmp_path: Path) -> None:
    call = CliRunner().invoke
    good = call(app, ["audit", "verify", str(log)])
    assert (good.exit_code, "5 entries, whole and in order" in good.output) == (0, True)
    lines = call(app, ["audit", "export", str(log)]).output.splitlines()
    assert [json.loads(line)["site"] for line in lines] == [f"söme-{number}" for number in range(5)]
    audit.append(log, "answer", site="=cmd()")
    call(app, ["audit", "export", str(log), "--out", str(tmp_path / "log.csv")])
    text = (tmp_path / "log.csv").read_text()
    assert text.startswith("number,time,kind,site,examples,previous,sha256")
    assert ",'=cmd()," in text
    path = log / audit.FILE
    path.write_bytes(path.read_bytes().replace(b'"examples": 3', b'"examples": 4'))
    bad = call(app, ["audit", "verify", str(log)])
    assert (bad.exit_code, "TAMPERED: line 4" in bad.output) == (1, True)
