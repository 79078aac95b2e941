"""A recipe's stream, cut into one file per client, so that sites can repeat what a simulation does."""

import io
from pathlib import Path

import numpy as np

from fedclass.errors import RunError
from fedclass.experiment.config import Experiment
from fedclass.experiment.setup import prepare
from fedclass.runs.layout import create, write_atomically


def split(experiment: Experiment, out: Path) -> list[Path]:
    """Write site-000.npz, ... to `out`, new or empty: each client's images in the order of its share.

    Labels count in order of arrival, and `classes` names them so. There is no test split, and a site that is to learn
    from all of its images, as the client does, must set holdout to 0. What data.validation holds out is in no file.
    """
    stream = prepare(experiment).stream
    root = create(out).root
    written = []
    for client, share in enumerate(stream.shares):
        content = io.BytesIO()
        np.savez(
            content,
            x_train=stream.data.train.images[share],
            y_train=stream.targets[share],
            classes=np.array(stream.classes),
        )
        path = root / f"site-{client:03d}.npz"
        try:
            write_atomically(path, content.getvalue())
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror}); choose another --out") from error
        written.append(path)
    return written
