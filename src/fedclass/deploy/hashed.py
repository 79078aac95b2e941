"""Files that say their own SHA-256."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save

from fedclass.models.weights import plain
from fedclass.wire import Tensors, sha256


def json_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def closed(content: Mapping[str, Any], tensors: Tensors) -> bytes:
    """A safetensors file."""
    text, plain_tensors = json.dumps(content), {name: plain(tensor) for name, tensor in tensors.items()}
    return save(plain_tensors, {"content": text, "sha256": _digest(text, plain_tensors)})


def opened(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    metadata, tensors = _metadata(data), load(data)
    if _digest(metadata["content"], tensors) != metadata["sha256"]:
        raise ValueError("it does not match its SHA-256")
    content: dict[str, Any] = json.loads(metadata["content"])
    return content, tensors


def _metadata(data: bytes) -> dict[str, str]:
    found: dict[str, str] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    return found


def _digest(text: str, tensors: Tensors) -> str:
    return hashlib.sha256(f"{text} {sha256(tensors)}".encode()).hexdigest()
