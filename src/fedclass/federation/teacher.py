"""The teacher of a client's batches: an earlier model, and the logits it gave."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedclass.models.incremental import IncrementalModel
from fedclass.rng import seed_streams
from fedclass.wire import Weights

INFERENCE_BATCH = 256


class Teacher:
    """A model that is only asked for logits. They are cached for each client until other weights are loaded."""

    def __init__(self, model: IncrementalModel) -> None:
        self.model = model.eval()
        self._weights: Weights | None = None  # what the model holds
        self._cached: dict[int, Tensor] = {}  # logits by client

    @property
    def loaded(self) -> bool:
        return self._weights is not None

    def load(self, weights: Weights | None) -> None:
        """None: there is no teacher in this job."""
        if weights is not None and weights is not self._weights:
            self.model.load(weights)
            self._cached.clear()
        self._weights = weights

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(inputs)
        return logits

    def logits(self, parts: Iterable[Tensor], count: int, *, client: int, task: int, seed: int) -> Tensor:
        """(count, g) for all of a client's images. Cached ones are used until the number of images changes.

        parts: the images, (n, 3, H, W) each; read only if needed.
        """
        if len(self._cached.get(client, ())) != count:
            seed_streams(seed, "teacher", "client", client, "task", task)
            self._cached[client] = torch.cat([self(part) for part in parts])
        return self._cached[client]
