"""A browser whose mouse and keyboard are a test's: Chromium by its own protocol, over a pair of pipes.

https://chromedevtools.github.io/devtools-protocol; messages are JSON, each with a zero byte after it.
"""

import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from waiting import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
WORDS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
]


class Tab:
    """complaints: what went wrong in the page's scripts, and what it said of errors in its console."""

    def __init__(self, sent: IO[bytes], received: IO[bytes]) -> None:
        self._sent, self._received, self._numbers = sent, received, itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def _call(self, method: str, **given: Any) -> dict[str, Any]:
        number = next(self._numbers)
        asked = {"id": number, "method": method, "params": given}
        asked |= {} if self._session is None else {"sessionId": self._session}
        self._sent.write(json.dumps(asked).encode() + b"\0")
        self._sent.flush()
        while (said := self._next()).get("id") != number:
            self._listen(said)
        if "error" in said:
            raise RuntimeError(f"{method}: {said['error']}")
        return dict(said["result"])

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._received.read(1)) != b"\0":
            if not byte:
                raise ConnectionError("the browser has ended")
            text += byte
        return dict(json.loads(text))

    def _listen(self, said: dict[str, Any]) -> None:
        if said.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(said["params"]["exceptionDetails"]))
        if said.get("method") == "Log.entryAdded" and said["params"]["entry"]["level"] == "error":
            self.complaints.append(said["params"]["entry"]["text"])

    def open(self, address: str) -> None:
        self._call("Page.navigate", url=address)

    def value(self, expression: str) -> Any:
        """Of JavaScript in the page; None while there is none to ask."""
        with suppress(RuntimeError):  # the page is being replaced by another
            return self._call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def click(self, element: str) -> None:
        """Press and release the mouse in the middle of what this JavaScript finds, once it is there."""
        middle = f"""(() => {{ const found = {element}; if (!found) return null;
            found.scrollIntoView({{block: "center"}}); const box = found.getBoundingClientRect();
            return box.width && [box.x + box.width / 2, box.y + box.height / 2]; }})()"""
        wait_until(lambda: bool(self.value(middle)), element)
        x, y = self.value(middle)
        for kind in ("mousePressed", "mouseReleased"):
            self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def write(self, text: str) -> None:
        """By the keyboard, where the cursor is."""
        self._call("Input.insertText", text=text)


@contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """Its files are in `folder`."""
    ours, its = folder / "to-browser", folder / "from-browser"
    for pipe in (ours, its):
        os.mkfifo(pipe)
    words = [str(CHROMIUM), *WORDS, f"--user-data-dir={folder / 'profile'}"]
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" 3<"{ours}" 4>"{its}" 2>"{folder / "browser.log"}"', "sh", *words]
    )
    try:
        with ours.open("wb") as sent, its.open("rb") as received:
            yield Tab(sent, received)
    finally:
        process.terminate()
        process.wait()
