"""Partitions as FedML and the FedCLASS authors' release draw them, one image and one client at a time.

The random draws come from outside, so that both sides see the same ones.
"""

from collections.abc import Sequence

import numpy as np

Shares = list[list[int]]


def cut(images: Sequence[int], proportions: Sequence[float]) -> Shares:
    """Pieces that end at floor(n * (p_1 + ... + p_k)); the last client takes what is left."""
    pieces: Shares = []
    start, until = 0, 0.0
    for share in proportions[:-1]:
        until += share
        end = int(until * len(images))
        pieces.append(list(images[start:end]))
        start = end
    return [*pieces, list(images[start:])]


def fedml(classes: Sequence[Sequence[int]], draws: Sequence[Sequence[float]], clients: int) -> Shares:
    """classes: the images of each class, shuffled, in the order in which classes take their turn.

    draws: a draw from the Dirichlet distribution for each class. A client that has N / K images gets no more.
    """
    images = sum(len(members) for members in classes)
    held: Shares = [[] for _ in range(clients)]
    for members, draw in zip(classes, draws, strict=True):
        allowed = [share if len(held[k]) < images / clients else 0.0 for k, share in enumerate(draw)]
        total = np.array(allowed).sum()  # as FedML does: Python 3.12 and newer add floats in another way
        for k, piece in enumerate(cut(members, [share / total for share in allowed])):
            held[k] += piece
    return held


def released(classes: Sequence[Sequence[int]], draws: Sequence[Sequence[float]], clients: int) -> Shares:
    """classes: the images of each class in file order. No cap, no minimum."""
    held: Shares = [[] for _ in range(clients)]
    for members, draw in zip(classes, draws, strict=True):
        for k, piece in enumerate(cut(members, draw)):
            held[k] += piece
    return held
