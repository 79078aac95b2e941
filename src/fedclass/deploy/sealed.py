"""Files that only the holder of the key can read: AES-256-GCM, each with a nonce of its own and bound to its name.

Against whoever gets the disk or a backup without the key. Not against whoever runs code as the site's user: the key is
readable there.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedclass.deploy.store_files import SEALED
from fedclass.errors import ConfigError

KEY, NONCE = 32, 12  # bytes


@dataclass(frozen=True)
class Seal:
    """A key, to close and open files with."""

    key: bytes

    @classmethod
    def read(cls, path: Path) -> "Seal":
        make = f"head -c {KEY} /dev/urandom > {path} && chmod 600 {path}"
        try:
            if path.stat().st_mode & 0o077:
                raise ConfigError(f"{path}: others can read this key; chmod 600 {path}, or make a new one")
            key = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror}); to make a key: {make}") from error
        if len(key) != KEY:
            raise ConfigError(f"{path}: must hold {KEY} bytes, and holds {len(key)}; to make a key: {make}")
        return cls(key)

    def close(self, content: bytes, name: str) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        return SEALED + nonce + AESGCM(self.key).encrypt(nonce, content, name.encode())

    def open(self, closed: bytes, name: str) -> bytes:
        """ValueError if it was closed with another key or under another name, or was changed."""
        nonce, content = closed[len(SEALED) : len(SEALED) + NONCE], closed[len(SEALED) + NONCE :]
        try:
            return AESGCM(self.key).decrypt(nonce, content, name.encode())
        except (InvalidTag, ValueError):
            raise ValueError("it was encrypted with another key, or changed") from None
