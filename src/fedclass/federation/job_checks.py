"""Whether a client can do a job, and errors that say in which job they happened."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch

from fedclass.errors import ClientError, FedclassError
from fedclass.models.incremental import IncrementalModel

TORCH = str(Path(torch.__file__).parent)


class Asked(Protocol):
    """A job, or a part of an evaluation."""

    @property
    def where(self) -> str: ...
    @property
    def frozen(self) -> str: ...


@contextlib.contextmanager
def failures_named(job: Asked) -> Iterator[None]:
    """Methods and backbones may be the user's: whatever comes out of them becomes a ClientError that says where."""
    try:
        yield
    except FedclassError:
        raise
    except Exception as error:
        ours = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(TORCH)]
        place = f"{ours[-1].filename}, line {ours[-1].lineno}, in {ours[-1].name}"
        raise ClientError(f"{job.where}: {type(error).__name__}: {error} ({place})") from error


def frozen_flaw(job: Asked, model: IncrementalModel) -> str | None:
    """Why weights for the server's model are of no use to this one, or None."""
    if job.frozen == model.frozen_sha256:
        return None
    ours, theirs = (digest[:12] or "none" for digest in (model.frozen_sha256, job.frozen))
    return (
        f"what is frozen in the model differs from the server's (SHA-256 {ours} here, {theirs} there); build it from "
        "the same file, with the same normalisation"
    )
