"""Weights & Biases, offline: RUN/wandb, which `wandb sync RUN/wandb/offline-run-*` uploads on request."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedclass.sinks.base import Start


class WandB:
    def __init__(self, root: Path) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.root = root
        self._wandb = wandb
        self._run: Any = None

    def begin(self, start: Start) -> None:
        shutil.rmtree(self.root / "wandb", ignore_errors=True)
        settings = self._wandb.Settings(
            mode="offline",
            silent=True,
            symlink=False,
            console="off",
            disable_git=True,
            disable_code=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
        )
        self._run = self._wandb.init(
            dir=self.root,
            project=os.environ.get("WANDB_PROJECT", "fedclass"),
            id=start.identity,  # so that a resumed run replaces its earlier upload
            name=start.name,
            config=dict(start.parameters),
            reinit="create_new",  # `fedclass compare` has several at a time
            settings=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def finish(self, step: int, summary: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._run.summary.update(dict(summary))

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
