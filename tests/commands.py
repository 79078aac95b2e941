"""Commands as a user types them, carried out in this process: a new one takes seconds to import torch."""

import contextlib
import io
import os
import signal
import sys
from pathlib import Path
from subprocess import CompletedProcess
from unittest import mock

from fedclass.cli import main


def called(*words: str, cwd: Path, **environment: str) -> CompletedProcess[str]:
    """What `fedclass WORDS` in the folder cwd prints and returns. What it imports from there stays imported."""
    out, errors = io.StringIO(), io.StringIO()
    handler = signal.getsignal(signal.SIGTERM)
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", ["fedclass", *words]),
        mock.patch.object(sys, "path", [*sys.path]),
    ):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            signal.signal(signal.SIGTERM, handler)
    return CompletedProcess(words, code, out.getvalue(), errors.getvalue())
