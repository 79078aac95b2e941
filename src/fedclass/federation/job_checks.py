"""Whether a client can do a job."""

from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Job


def frozen_flaw(job: Job, model: IncrementalModel) -> str | None:
    """Why weights for the server's model are of no use to this one, or None."""
    if job.frozen == model.frozen_sha256:
        return None
    ours, theirs = (digest[:12] or "none" for digest in (model.frozen_sha256, job.frozen))
    return (
        f"what is frozen in the model differs from the server's (SHA-256 {ours} here, {theirs} there); build it from "
        "the same file, with the same normalisation"
    )
