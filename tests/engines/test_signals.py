"""Ctrl-C, SIGTERM and kill -9, at any moment: one line, no process left behind, nothing half written."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedclass.engines.starting import signals_later
from waiting import alive, below, session, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc"),
]

COMPARE = ["compare", "--methods", "fedavg,fedwa"]  # the first task is learned once, by a process with workers
# Imports once what commands need; each is then carried out by a copy, in a session of its own, as in a terminal.
COPIES = """
import json, os, sys
import torch
import fedclass.cli, fedclass.experiment.launch, fedclass.report.tables, fedclass.sinks
torch.set_num_threads(1)
print("ready", flush=True)
for line in sys.stdin:
    folder, *words = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        for file, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), file)
        os.close(0)
        sys.argv = ["fedclass", *words]
        code = 0
        try:
            fedclass.cli.main()
        except SystemExit as error:
            code = error.code
        sys.stdout.flush()
        os._exit(code or 0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Copies:
    """fedclass commands with workers, one after the other."""

    process: subprocess.Popen[str]
    words: list[str]

    def start(self, *words: str, cwd: Path, rounds: int = 100000) -> int:
        """The number of its process, which leads a session; usually one that goes on until it is stopped."""
        assert self.process.stdin
        words = (*words, "--workers", "2", *self.words, "--set", f"train.rounds={rounds}")
        print(json.dumps([str(cwd), *words]), file=self.process.stdin, flush=True)
        return self._answer()

    def ended(self) -> int:
        """Its exit code, or minus the signal that ended it."""
        return self._answer()

    def _answer(self) -> int:
        assert self.process.stdout
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def copies(tiny_settings: list[str]) -> Iterator[Copies]:
    with subprocess.Popen(
        [sys.executable, "-c", COPIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield Copies(process, [word for setting in tiny_settings for word in ("--set", setting)])
        assert process.stdin
        process.stdin.close()


def test_an_interrupt_of_all_processes_at_any_moment_ends_in_one_line(copies: Copies, tmp_path: Path) -> None:
    """While the first process starts, while that one starts its workers, while they work; each some time later.

    The second one is followed by more of them: who presses Ctrl-C is impatient.
    """
    chance = random.Random(0)
    for number, processes in enumerate((2, 3, 4)):  # in the session, with Python's own
        name = f"trial-{number}"
        leader = copies.start(*COMPARE, "--out", name, cwd=tmp_path)
        wait_until(lambda: len(below(leader)) >= processes, f"{processes} processes")  # noqa: B023
        time.sleep(chance.uniform(0, 1))
        os.killpg(leader, signal.SIGINT)
        for _ in range(number % 2 * 30):
            time.sleep(0.02)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGINT)
        assert copies.ended() == 130
        wait_until(lambda: not session(leader), "the end of all processes")  # noqa: B023
        said = (tmp_path / "stderr").read_text()
        assert said == f"stopped; to go on, type the same again with --out {name}\n"
        (tmp_path / "stderr").unlink()


def test_what_other_processes_hear_of_an_interrupt_changes_nothing(copies: Copies, tmp_path: Path) -> None:
    """Each gets it over and over, from its first moment to its last; the first one, which would end them, does not."""
    leader = copies.start(*COMPARE, "--out", "both", cwd=tmp_path, rounds=12)
    interrupted: dict[int, int] = {}
    while alive(leader):
        for pid in below(leader):
            try:
                os.kill(pid, signal.SIGINT)
            except ProcessLookupError:
                continue
            interrupted[pid] = interrupted.get(pid, 0) + 1
        time.sleep(0.002)
    assert copies.ended() == 0
    assert (tmp_path / "stderr").read_text() == ""
    assert len(interrupted) >= 4
    assert sum(interrupted.values()) > 100
    assert (tmp_path / "both" / "results.md").exists()


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        ("run", signal.SIGINT, 130),
        ("compare", signal.SIGTERM, 143),
        ("run", signal.SIGKILL, -9),
    ],
)
def test_a_signal_to_the_first_process_ends_all_of_them(
    command: str, number: signal.Signals, code: int, copies: Copies, tmp_path: Path
) -> None:
    leader = copies.start(command, "--out", "out", cwd=tmp_path)
    events = tmp_path / "out" / ("" if command == "run" else "fedavg-s0") / "events.jsonl"
    wait_until(
        lambda: not alive(leader) or (events.exists() and events.read_text().count("RoundFinished") > 2), "three rounds"
    )
    assert len([pid for pid in below(leader) if alive(pid)]) >= (3 if command == "run" else 4)
    os.kill(leader, number)
    assert copies.ended() == code
    wait_until(lambda: not session(leader), "the end of all processes")
    how = "type: fedclass run --resume out" if command == "run" else "type the same again with --out out"
    said = (tmp_path / "stderr").read_text()
    assert said == ("" if number == signal.SIGKILL else f"stopped; to go on, {how}\n")
    lines = events.read_text().splitlines(keepends=True)
    assert all(json.loads(line) for line in lines if line.endswith("\n"))
    assert not [path for path in (tmp_path / "out").rglob("*") if path.suffix == ".tmp"]


# The block in which processes start and end.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    heard: list[str] = []
    before = signal.signal(number, lambda *_: heard.append("signal"))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    try:
        with signals_later():
            os.kill(os.getpid(), number)
            sender = threading.Thread(target=os.kill, args=(os.getpid(), number))  # which has no mask of its own
            sender.start()
            sender.join()
            heard.append("end")
        assert heard[:2] == ["end", "signal"]
        os.kill(os.getpid(), number)
        assert len(heard) >= 3, "handled at once again"
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    finally:
        signal.signal(number, before)


def test_an_interrupt_within_the_block_is_an_interrupt_after_it() -> None:
    done = False
    with pytest.raises(KeyboardInterrupt), signals_later():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        done = True
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_than_the_first_may_start_processes_too() -> None:
    """Only the first one hears signals, and keeps hearing them."""
    seen: list[str] = []

    def start() -> None:
        with signals_later():
            code = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
            seen.append(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert seen == ["True\n"]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
