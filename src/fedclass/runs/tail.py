"""Runs that may still be under way: which ones there are, and what they say as they say it."""

from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from fedclass.errors import RunError
from fedclass.runs.events import Event, parsed


@dataclass
class Tail:
    """The events of a log that may still grow. A line counts once it is complete.

    When a run is resumed, its log is first cut back to the checkpoint. What the run then writes is news, also where the
    log has grown beyond its former length before anyone looked.
    """

    path: Path
    _lines: list[bytes] = field(default_factory=list, init=False, repr=False)  # those handed out

    def news(self) -> list[Event]:
        """What was written since the last call; nothing, if there is no log yet."""
        last = self._lines[-1] if self._lines else b""
        try:
            with self.path.open("rb") as file:
                file.seek(sum(map(len, self._lines)) - len(last))
                content = file.read()
                if content.startswith(last):
                    fresh = _complete(content[len(last) :])
                else:
                    file.seek(0)
                    fresh = self._unlike(_complete(file.read()))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.path}: cannot read it ({error.strerror})") from error
        known = len(self._lines)
        self._lines += fresh
        return [parsed(line, path=self.path, number=n) for n, line in enumerate(fresh, start=known + 1)]

    def written(self) -> float | None:
        """When the log last changed (seconds since the epoch); None, if there is none yet."""
        try:
            return self.path.stat().st_mtime
        except FileNotFoundError:
            return None

    def _unlike(self, lines: list[bytes]) -> list[bytes]:
        """Forget what is no longer in the log, and return what follows the rest."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._lines, lines, strict=False)))
        del self._lines[same:]
        return lines[same:]


def _complete(content: bytes) -> list[bytes]:
    return [line + b"\n" for line in content.split(b"\n")[:-1]]
