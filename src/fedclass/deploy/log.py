"""A site's log: who asked what and when, and what was sent, in plain words and once each."""

import json
from collections.abc import Mapping
from typing import Any

from fedclass.engines.flower.frames import Frame

LONGEST_LINE = 2000  # characters, where the server's words are quoted


def printable(text: str) -> str:
    """On one line, and of a length that can be read: the server must not write into a site's log."""
    short = text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} ..."
    return "".join(letter if letter.isprintable() else "?" for letter in short)


def asked(frame: Frame) -> str:
    """For whom, and what. Whatever the frame says is quoted, not believed."""
    header = frame.header
    plan, job = _table(header.get("plan")), _table(header.get("job"))
    if header.get("ask") == "announcement":
        task = _number(header.get("task"))
        return f"{_word(header.get('federation'))}: what this site holds, before task {task}"
    where = f"task {_number(job.get('task'))}"
    what = {
        "train": f"training, {where}, round {_number(job.get('round'))}",
        "count": f"how many images of each class it could keep, end of {where}",
        "end_task": f"the choice of exemplars, end of {where}",
        "evaluate": f"a test of the model, {where}",
    }.get(str(job.get("phase")), f"{_word(header.get('ask'))} {_word(job.get('phase'))}")
    return f"{_word(plan.get('federation'))}: {what}"


def sent(frame: Frame) -> str:
    """What went to the server: bytes and names, or why nothing did."""
    header = frame.header
    size = sum(map(len, frame.tensors.values())) + len(json.dumps(header))
    if header.get("answer") == "refused":
        return f"REFUSED: {header.get('reason')}"
    if header.get("answer") == "announcement":
        said = header["announcement"]
        return f"sent {size} bytes: {_held(said['classes'])}, image size, versions of Python, PyTorch and processor"
    update = header["update"]
    parts = [f"number of images ({update['examples']})", *sorted(update["metrics"])]
    names = {name: _tensors(data) for name, data in frame.tensors.items()}
    if names["weights"]:
        parts.append(f"weights ({len(names['weights'])} tensors)")
    return f"sent {size} bytes: {', '.join([*parts, *names['extras']])}"


def _held(classes: Mapping[str, int | None]) -> str:
    counts = [count for count in classes.values() if count is not None]
    numbers = f" and their numbers of images ({sum(counts)})" if counts else ""
    return f"names of {len(classes)} classes{numbers}"


def _tensors(data: bytes) -> list[str]:
    """Names in a safetensors file of ours."""
    end = 8 + int.from_bytes(data[:8], "little")
    return sorted(name for name in json.loads(data[8:end]) if name != "__metadata__")


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> str:
    """Counted from 1."""
    return str(value + 1) if type(value) is int and abs(value) < 2**31 else _word(value)


def _word(value: Any) -> str:
    return str(value)[:80]
