"""New events of runs that may still be under way."""

import lzma
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from fedclass.errors import RunError
from fedclass.runs.events import Event, parsed


@dataclass
class Tail:
    """The events of a log that may still grow. A line counts once it is complete.

    A resumed run first cuts its log back to the checkpoint. All events written after that are news, even if the log has
    grown beyond its former length before the next call.
    """

    path: Path
    _lines: list[bytes] = field(default_factory=list, init=False, repr=False)  # lines returned so far

    def news(self) -> list[Event]:
        """Events written since the last call; empty if there is no log yet."""
        last = self._lines[-1] if self._lines else b""
        try:
            with (lzma.open if self.path.suffix == ".xz" else open)(self.path, "rb") as file:  # .xz: of a kept run
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
            raise RunError(f"{self.path}: cannot be read ({error.strerror})") from error
        except (lzma.LZMAError, EOFError) as error:
            raise RunError(f"{self.path}: is damaged ({error})") from error
        known = len(self._lines)
        self._lines += fresh
        return [parsed(line, path=self.path, number=n) for n, line in enumerate(fresh, start=known + 1)]

    def written(self) -> float | None:
        """When the log last changed (seconds since the epoch); None if there is no log yet."""
        try:
            return self.path.stat().st_mtime
        except FileNotFoundError:
            return None

    def _unlike(self, lines: list[bytes]) -> list[bytes]:
        """Forget lines that are no longer in the log, and return those that follow the rest."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._lines, lines, strict=False)))
        del self._lines[same:]
        return lines[same:]


def _complete(content: bytes) -> list[bytes]:
    return [line + b"\n" for line in content.split(b"\n")[:-1]]
