"""TensorBoard: RUN/tensorboard, for `tensorboard --logdir RUN`. Needs neither TensorFlow nor torch."""

import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedclass.sinks.base import Start, numbers


class TensorBoard:
    """Writes its records at once: TensorBoard's own writer uses a thread, where errors surface late."""

    def __init__(self, root: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.folder = root / "tensorboard"
        self._event, self._summary, self._text, self._records = Event, Summary, text_pb, RecordWriter
        self._writer: Any = None

    def begin(self, start: Start) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        name = f"events.out.tfevents.{int(time.time())}.{start.identity}"
        self._writer = self._records((self.folder / name).open("wb"))
        self._write(file_version="brain.Event:2")
        lines = "\n".join(f"    {key} = {value}" for key, value in start.parameters.items())  # Markdown's code block
        self._write(step=0, summary=self._text("recipe", lines))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        figures = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(step=step, summary=self._summary(value=figures))

    def finish(self, step: int, summary: Mapping[str, Any]) -> None:
        self.log(step, numbers(summary))

    def close(self, *, finished: bool) -> None:  # noqa: ARG002
        self._writer.close()

    def _write(self, **content: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **content).SerializeToString())
        self._writer.flush()
