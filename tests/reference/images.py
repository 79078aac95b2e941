"""Augmentation as its papers describe it: one image, one pixel at a time. An image is an (H, W, C) array."""

import numpy as np
from numpy.typing import NDArray


def crop_and_flip(image: NDArray, top: int, left: int, mirrored: bool, pad: int) -> NDArray:
    """Put the image on a black canvas, cut a window of its own size out of that, mirror the window."""
    height, width, channels = image.shape
    canvas = np.zeros((height + 2 * pad, width + 2 * pad, channels), image.dtype)
    for y in range(height):
        for x in range(width):
            canvas[y + pad, x + pad] = image[y, x]
    window = np.empty_like(image)
    for y in range(height):
        for x in range(width):
            window[y, x] = canvas[top + y, left + x]
    if not mirrored:
        return window
    mirror = np.empty_like(image)
    for x in range(width):
        mirror[:, x] = window[:, width - 1 - x]
    return mirror


def cut_out(image: NDArray, y: int, x: int, size: int) -> NDArray:
    """Zero `size` rows and columns that begin half a size before the centre; what lies outside does not count."""
    result = image.copy()
    for row in range(y - size // 2, y - size // 2 + size):
        for column in range(x - size // 2, x - size // 2 + size):
            if 0 <= row < image.shape[0] and 0 <= column < image.shape[1]:
                result[row, column] = 0
    return result
