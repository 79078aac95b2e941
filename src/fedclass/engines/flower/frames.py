"""What a message between the server and a site consists of. Needs no torch, so that a ClientApp starts quickly."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedclass.errors import ClientError

HEADER, TENSORS = "fedclass", "tensors"  # the records of a message
MOST_HEADER = 64 * 2**20  # bytes


@dataclass(frozen=True)
class Frame:
    """header: words and numbers, as JSON.  tensors: safetensors files, each with all tensors of one kind."""

    header: Mapping[str, Any]
    tensors: Mapping[str, bytes] = field(default_factory=dict)

    def to_record(self) -> RecordDict:
        """One array per kind: Flower sends each array with requests of its own."""
        arrays = {
            name: Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
            for name, data in self.tensors.items()
        }
        words = ConfigRecord({"json": json.dumps(self.header, allow_nan=False)})
        return RecordDict({HEADER: words, TENSORS: ArrayRecord(arrays)})

    @classmethod
    def from_record(cls, record: RecordDict) -> "Frame":
        if set(record) != {HEADER, TENSORS}:
            raise ClientError(f"not a message of fedclass: it holds {', '.join(sorted(record)) or 'nothing'}")
        words, arrays = record[HEADER], record[TENSORS]
        if not isinstance(words, ConfigRecord) or not isinstance(arrays, ArrayRecord) or set(words) != {"json"}:
            raise ClientError("not a message of fedclass: its records are of other kinds")
        return cls(_header(words["json"]), {name: array.data for name, array in arrays.items()})


def _header(text: object) -> Mapping[str, Any]:
    if not isinstance(text, str) or len(text) > MOST_HEADER:
        raise ClientError("not a message of fedclass: no header, or one that is too long")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: brackets within brackets within ...
        raise ClientError(f"not a message of fedclass: {error}") from error
    if not isinstance(header, dict):
        raise ClientError("not a message of fedclass: its header is not a table")
    return cast(Mapping[str, Any], header)
