import itertools
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch

from fedclass.experiment.config import Experiment
from fedclass.experiment.recipe import load
from users import Project
from waiting import alive

# No limit of time, which would be one on how busy the machine is; pytest's own is for what hangs.
hypothesis.settings.register_profile(
    "fedclass", max_examples=50, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("fedclass")

# What is printed depends on no terminal, and on no service that runs the tests; rich and typer look at these.
for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
    os.environ.pop(name, None)
os.environ["COLUMNS"] = "160"

# Whoever starts the tests in the background (`make test &`, nohup) may have them ignore interrupts, and with them all
# processes that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


MEMORY, ROOM = Path("/dev/shm"), 8 * 2**30  # a file system in memory, and the bytes that it must have for us
FOLDER = "fedclass-tests-"


def pytest_configure(config: pytest.Config) -> None:
    """Tests write and delete files by the ten thousand, and wait for disks: in memory, where there is enough of it."""
    if hasattr(config, "workerinput") or config.option.basetemp or not MEMORY.is_dir():
        return
    for left in MEMORY.glob(f"{FOLDER}*"):  # of tests that were killed
        if not alive(int(left.name.removeprefix(FOLDER))):
            shutil.rmtree(left, ignore_errors=True)
    about = os.statvfs(MEMORY)
    if about.f_bavail * about.f_frsize >= ROOM and not about.f_flag & (os.ST_NOEXEC | os.ST_RDONLY):
        folder = MEMORY / f"{FOLDER}{os.getpid()}"
        config.option.basetemp = str(folder)
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


WHOLE_RUNS = {"tiny_file", "federation", "project"}  # what a test that trains asks for
LONGEST = (  # modules, or tests of them, that wait for many processes; the longest one first
    "deploy/test_loopback.py::test_rounds_go_on",
    "deploy/test_security.py",
    "engines/test_signals.py",
    "tests/test_packaging.py",
    "engines/test_processes.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs are slow. The longest tests go first, so that no worker is left with one of them at the end."""
    for item in items:
        if isinstance(item, pytest.Function) and WHOLE_RUNS & set(item.fixturenames):
            item.add_marker(pytest.mark.slow)
    items[:] = dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def dealt(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Each worker begins with its share of the longest: `--dist worksteal` cuts the list into a piece for each."""
    longest = [[item for item in items if name in item.nodeid] for name in LONGEST]
    others = [item for item in items if not any(name in item.nodeid for name in LONGEST)]
    order: list[pytest.Item] = []
    for worker in range(workers):
        size = (len(items) - len(order)) // (workers - worker)
        own = [item for group in longest[worker::workers] for item in group]
        rest = max(0, size - len(own))
        order += own + others[:rest]
        del others[:rest]
    return order + others


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What this machine lacks, each once, with what to do about it: that is what reasons to skip say."""
    reasons = Counter(str(report.longrepr[-1]) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section("not tested on this machine")
    for reason, count in sorted(reasons.items()):
        terminalreporter.line(f"{count} test{'s' * (count > 1)}: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As in a run; several threads per test worker would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CACHES = itertools.count()


@pytest.fixture(autouse=True)
def _no_cache_of_others(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has learned must not be taken over by another, or by the person who runs the tests."""
    own = tmp_path_factory.getbasetemp() / "caches" / str(next(CACHES))  # mktemp looks through all that there are
    own.mkdir(parents=True)
    monkeypatch.setenv("FEDCLASS_DATA", str(own))


def write_tiny(path: Path, *, classes: int = 4, train: int = 24, test: int = 10, side: int = 8) -> Path:
    """A data set that a small network learns in seconds: each class has its own pattern under noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(40, 216, size=(classes, side, side, 3))

    def split(count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.tile(np.arange(classes), count)
        noise = rng.integers(-40, 40, size=(len(labels), side, side, 3))
        return (patterns[labels] + noise).astype(np.uint8), labels

    (x_train, y_train), (x_test, y_test) = split(train), split(test)
    np.savez(path, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    return path


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("data") / "tiny.npz")


@pytest.fixture(scope="session")
def tiny_settings(tiny_file: Path) -> list[str]:
    """Four classes in two tasks, over three clients: a run of about a second."""
    return [
        "data.name=npz",
        f"data.path={tiny_file}",
        "stream.tasks=2,2",
        "partition.clients=3",
        "partition.kind=iid",
        "memory.per_client=8",
        "train.rounds=2",
        "train.local_epochs=1",
        "train.batch_size=8",
        "optimizer.learning_rate=0.03",
        "evaluation.every=1",
    ]


@pytest.fixture(scope="session")
def tiny(tiny_settings: list[str]) -> Callable[..., Experiment]:
    """tiny("method.beta=0", method="fedclass", seed=1): an experiment on the tiny data set."""

    def build(*overrides: str, method: str | None = None, seed: int | None = None) -> Experiment:
        return load(None, [*tiny_settings, *overrides], method=method, seed=seed)

    return build


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are made but not drawn, which takes longest: for tests of the words and tables of a page."""
    from fedclass.report import rendering

    empty = b'<svg viewBox="0 0 1 1"></svg>'
    monkeypatch.setattr(rendering, "_drawn", lambda *_, **__: empty)


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """user_module("mine", source): a module of a user's own, importable by that name."""
    made = []

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A folder of a user's modules that can be imported, and edited."""
    made = Project(tmp_path / "project")
    monkeypatch.syspath_prepend(made.root)
    yield made
    made.forget()
