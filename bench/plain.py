"""Federated averaging as research code usually writes it, to compare with: nothing here is slowed down on purpose.

A deep copy of the global model per client, a DataLoader over a Dataset that normalises one image at a time, PyTorch's
own layout and optimizer, one process with PyTorch's default number of threads, an average over state dicts at the end.
"""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[tuple[Tensor, int]]):
    """What a client holds; normalised as torchvision's ToTensor and Normalize do it."""

    def __init__(self, images: NDArray[np.uint8], labels: NDArray[np.int64], mean: float, std: float) -> None:
        self.images, self.labels, self.mean, self.std = images, labels, mean, std

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.from_numpy(self.images[index]).permute(2, 0, 1).contiguous().float().div(255)
        return image.sub_(self.mean).div_(self.std), int(self.labels[index])


def plain_round(
    model: nn.Module, clients: Sequence[Images], *, epochs: int, batch_size: int, learning_rate: float
) -> dict[str, Tensor]:
    """One round over all clients; returns the averaged weights."""
    updates, sizes = [], []
    for client in clients:
        local = copy.deepcopy(model)
        local.train()
        optimizer = torch.optim.SGD(local.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-5)
        loader = DataLoader(client, batch_size=batch_size, shuffle=True)
        for _ in range(epochs):
            for images, labels in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(local(images), labels)
                loss.backward()
                optimizer.step()
                loss.item()  # for the log
        updates.append(copy.deepcopy(local.state_dict()))
        sizes.append(len(client))
    average = copy.deepcopy(updates[0])
    for name in average:
        total = sum(update[name] * (size / sum(sizes)) for update, size in zip(updates, sizes, strict=True))
        assert isinstance(total, Tensor)
        average[name] = total.to(average[name].dtype)
    return average
