"""Commands as a user types them, carried out in this process: a new one takes seconds to import torch."""

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess, run
from unittest import mock

from fedclass.cli import main
from fedclass.cli.display import console

WIDTH = 160  # of what is printed, as in a pipe


def called(*words: str, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """What `fedclass WORDS` in the folder cwd prints and returns. What it imports from there stays imported."""
    out, errors = io.StringIO(), io.StringIO()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    width = console.width
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH), **environment}),
        mock.patch.object(sys, "argv", ["fedclass", *words]),
        mock.patch.object(sys, "path", [*sys.path]),
    ):
        console.width = WIDTH
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            console.width = width
    return CompletedProcess(words, code, out.getvalue(), errors.getvalue())


def started(*words: str, cwd: Path) -> CompletedProcess[str]:
    """The same in a process of its own, which imports a user's modules as they are now."""
    code = [sys.executable, "-c", "from fedclass.cli import main; main()", *words]
    return run(code, cwd=cwd, capture_output=True, text=True, env={**os.environ, "COLUMNS": str(WIDTH)})
