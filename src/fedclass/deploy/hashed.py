"""Files that say their own SHA-256."""

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors.torch import load, save

from fedclass.models.weights import plain
from fedclass.schema import read_record
from fedclass.wire import Tensors, sha256

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")


def closed(about: "DataclassInstance", tensors: Tensors) -> bytes:
    """A safetensors file."""
    text, plain_tensors = json.dumps(asdict(about)), {name: plain(tensor) for name, tensor in tensors.items()}
    return save(plain_tensors, {"content": text, "sha256": _digest(text, plain_tensors)})


def opened(data: bytes, kind: type[T]) -> tuple[T, dict[str, torch.Tensor]]:
    content, tensors = whole(data)
    return read_record(kind, content), tensors


def whole(data: bytes) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    metadata, tensors = _metadata(data), load(data)
    if _digest(metadata["content"], tensors) != metadata["sha256"]:
        raise ValueError("it does not match its SHA-256")
    return read_record(dict[str, Any], json.loads(metadata["content"])), tensors


def _metadata(data: bytes) -> dict[str, str]:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return read_record(dict[str, dict[str, Any]], header)["__metadata__"]


def _digest(text: str, tensors: Tensors) -> str:
    return hashlib.sha256(f"{text} {sha256(tensors)}".encode()).hexdigest()
