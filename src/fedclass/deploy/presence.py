"""What the server knows of its sites at this moment, for whoever looks at a run: RUN/presence.json."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedclass.runs.layout import write_atomically

if TYPE_CHECKING:  # `deploy status` reads presence without torch
    from fedclass.engines.flower.roster import Roster

FILE = "presence.json"
EVERY = 2.0  # seconds between two looks
STALE = 60.0  # seconds without one, after which the server is taken for gone


class Presence:
    """Written while the server waits for anything, at most every two seconds. clock: of the wall, in seconds."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root, self.clock = root, clock
        self.roster: Roster | None = None
        self._heard: dict[str, float] = {}
        self._said: dict[str, object] = {}
        self._written = 0.0

    def heard(self, site: str) -> None:
        self._heard[site] = round(self.clock(), 1)

    def failed(self, error: Exception) -> None:
        """The server ends before there is a run that could say so in its events."""
        reason = " ".join(str(error).split())[:500]
        write_atomically(self.root / FILE, json.dumps({"time": round(self.clock(), 1), "failure": reason}))

    def beat(self) -> None:
        now = self.clock()
        if self.roster is None or now - self._written < EVERY:
            return
        self._written, roster = now, self.roster
        for site, said in roster.said.items():
            if self._said.get(site) is not said:
                self._said[site] = said
                self.heard(site)
        there = set(roster.connected())
        sites = {site: {"online": site in there, "heard": self._heard.get(site)} for site in sorted(roster.said)}
        silent = {roster.called(node): reason for node, reason in roster.silent.items()}
        write_atomically(self.root / FILE, json.dumps({"time": round(now, 1), "sites": sites, "silent": silent}))


def read_presence(root: Path) -> dict[str, Any]:
    """Empty if there is none; one that cannot be read is as good as none, because the next is written soon."""
    try:
        found: dict[str, Any] = json.loads((root / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found
