"""Files of a site's store: each says its own SHA-256, is written atomically, and is readable by its owner only.

With a seal, all of them are encrypted; what was written without one is read, and encrypted by `seal_all`.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fedclass.errors import ClientError
from fedclass.runs.layout import write_atomically
from fedclass.schema import json_sha256, read_record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    # needs cryptography, which a store that is not encrypted can do without
    from fedclass.deploy.sealed import Seal

LOST = {  # with a file, by how its name begins
    "state": "exemplars are then chosen anew from the images that are still there",
    "task": "its images then count as new",
    "forgotten": "the classes it names may then come back",
}
OWNER_ONLY = 0o600
SEALED = b"fedclass sealed 1\n"  # how an encrypted file begins

T = TypeVar("T")


class StoreFiles:
    """Of one folder."""

    def __init__(self, root: Path, seal: "Seal | None" = None) -> None:
        self.root, self.seal = root, seal

    def _numbers(self, pattern: str) -> list[int]:
        found = (re.search(r"-(\d{4,})\.", path.name) for path in self.root.glob(pattern))
        return sorted(int(match[1]) for match in found if match)

    def _write(self, path: Path, content: bytes) -> None:
        sealed = content if self.seal is None else self.seal.close(content, path.name)
        write_atomically(path, sealed, mode=OWNER_ONLY)

    def _read(self, path: Path) -> bytes:
        content = path.read_bytes()
        if not content.startswith(SEALED):
            return content
        if self.seal is None:
            raise ValueError("it is encrypted; name the key, the site's setting store_key")
        return self.seal.open(content, path.name)

    def seal_all(self) -> int:
        """Encrypt what is not encrypted yet; returns how many files there were."""
        plain = [path for path in self.root.glob("*.*") if not path.name.startswith(".") and path.suffix != ".part"]
        found = [path for path in plain if not path.read_bytes().startswith(SEALED)]
        for path in found:
            self._write(path, path.read_bytes())
        return len(found)

    def _write_json(self, path: Path, record: "DataclassInstance") -> None:
        content = asdict(record)
        self._write(path, json.dumps({"sha256": json_sha256(content), **content}, indent=1).encode())

    def _read_json(self, path: Path, kind: type[T]) -> T:
        try:
            content = read_record(dict[str, Any], json.loads(self._read(path)))
            if content.pop("sha256") != json_sha256(content):
                raise ValueError("it does not match its SHA-256")
            return read_record(kind, content)
        except (OSError, ValueError, KeyError) as error:
            raise self._damaged(path, error) from error

    def _damaged(self, path: Path, error: Exception) -> ClientError:
        lost = LOST.get(path.name.split("-")[0].split(".")[0], "it is then written anew")
        return ClientError(f"{path}: damaged ({error}); restore it from a backup, or remove it ({lost})")
