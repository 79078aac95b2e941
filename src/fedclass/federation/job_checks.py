"""Whether a client can do a job."""

from typing import Protocol

from fedclass.models.incremental import IncrementalModel


class Asked(Protocol):
    """A job, or a part of an evaluation."""

    @property
    def where(self) -> str: ...
    @property
    def frozen(self) -> str: ...


def frozen_flaw(job: Asked, model: IncrementalModel) -> str | None:
    """Why the server's weights do not fit this model, or None."""
    if job.frozen == model.frozen_sha256:
        return None
    ours, theirs = (digest[:12] or "none" for digest in (model.frozen_sha256, job.frozen))
    return (
        f"the frozen part of the model differs from the server's (SHA-256 {ours} here, {theirs} there); build it from "
        "the same file, with the same normalisation"
    )
