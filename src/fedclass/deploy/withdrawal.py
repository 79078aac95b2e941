"""Sites that take no part any more: RUN/withdrawn.json, read by the server whenever it looks who is there."""

import difflib
import json
import time
from pathlib import Path
from typing import Any

from fedclass.errors import ConfigError, RunError
from fedclass.runs import audit
from fedclass.runs.events import SitesKnown, read_events
from fedclass.runs.layout import RunDirectory, write_atomically

FILE = "withdrawn.json"


def withdrawn(root: Path) -> dict[str, Any]:
    """By site: when, and on whose word."""
    try:
        found: dict[str, Any] = json.loads((root / FILE).read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"{root / FILE}: cannot be read ({error}); restore it") from error
    return found


def withdraw(root: Path, site: str, *, since: int | None = None, by: str) -> None:
    """Leave a site out from now on. since: go back to before this task, counted from 0, and learn on without it."""
    directory = RunDirectory(root)
    if not directory.lease.is_file():
        raise RunError(f"{root}: is not the run directory of a federation; it is the app's `out`")
    known = _sites(directory)
    if site not in known:
        near = difflib.get_close_matches(site, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known) or 'none yet'}"
        raise ConfigError(f"{root}: no site {site!r} has taken part; {hint}")
    if since is not None and since < 0:
        raise ConfigError(f"--since {since + 1}: tasks count from 1")
    gone = withdrawn(root)
    if site not in gone:
        write_atomically(root / FILE, json.dumps(gone | {site: {"time": round(time.time(), 3), "by": by}}) + "\n")
    if since is not None:
        from fedclass.deploy.back import go_back  # reads checkpoints, with torch

        go_back(root, since, by=by)
    audit.append(root, "withdrawn", site=site, since=None if since is None else since + 1, by=by)


def _sites(directory: RunDirectory) -> list[str]:
    known: list[str] = []
    for event in read_events(directory.events):
        if isinstance(event, SitesKnown):
            known = event.sites
    return known
