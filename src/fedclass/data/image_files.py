"""Image files and pictures in memory, turned into what a data set holds.

Training (`folder.py`) and prediction both read files with `read_picture`, so that they see the same pixels.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from fedclass.errors import DataError

GRAY_MODES = frozenset({"1", "L", "LA"})
DEEP_MODES = ("I", "F")  # 16 or 32 bits per pixel; Pillow would clip them to 255, not scale them
QUARTER_TURNED = 5  # Exif's orientations from here on exchange width and height
SIXTEEN_BITS = frozenset({"I;16", "I;16L", "I;16B", "I;16N"})


@dataclass(frozen=True, eq=False)
class Fitted:
    """A picture as the model takes it, and what had to be done to it.

    pixels: (H, W, C) uint8.  resized_from: (width, height) if it had another size.  converted_from: Pillow's name of
    its mode ("RGBA", "P", "CMYK", "I;16", ...) if it had another one.
    """

    pixels: NDArray[np.uint8]
    resized_from: tuple[int, int] | None
    converted_from: str | None


def read_picture(file: Path) -> Image.Image:
    """The first picture of a file, upright."""
    with _opened(file) as opened:
        return upright(opened, file)


def shape_of(file: Path) -> tuple[int, int, int]:
    """(H, W, C) of the picture in a file, upright; of most formats, only the header is read."""
    with _opened(file) as opened:
        try:
            turned = opened.getexif().get(ExifTags.Base.Orientation, 1) >= QUARTER_TURNED
        except Exception as error:
            raise _unreadable(file, error) from error
        width, height = opened.size[::-1] if turned else opened.size
        gray = opened.mode in GRAY_MODES or opened.mode.startswith(DEEP_MODES)
        return height, width, 1 if gray else 3


def _opened(file: Path) -> Image.Image:
    if file.exists() and not file.is_file():  # opening a pipe would block until something is written to it
        what = "a folder" if file.is_dir() else "not a regular file"
        raise DataError(f"{file}: is {what}, where an image should be; remove it")
    try:
        return Image.open(file)
    except Exception as error:  # on damaged files Pillow raises almost anything: RuntimeError, struct.error, ...
        raise _unreadable(file, error) from error


def upright(picture: Image.Image, where: object) -> Image.Image:
    """The picture, decoded and rotated: cameras store the rotation beside the pixels."""
    try:
        turned = ImageOps.exif_transpose(picture)
    except Exception as error:
        raise _unreadable(where, error) from error
    sixteen_bit_pgm = picture.format == "PPM" and picture.mode == "I"
    return turned.convert("I;16") if sixteen_bit_pgm else turned


def _unreadable(where: object, error: Exception) -> DataError:
    reason = getattr(error, "strerror", None) or error
    return DataError(f"{where}: cannot be read as an image ({reason}); remove or replace it")


def as_picture(pixels: NDArray[np.uint8], where: object) -> Image.Image:
    """(H, W), (H, W, 1) or (H, W, 3) uint8 as a picture."""
    gray = pixels.ndim == 3 and pixels.shape[2] == 1
    flat = pixels[..., 0] if gray else pixels
    if pixels.dtype != np.uint8 or not (flat.ndim == 2 or flat.shape[2:] == (3,)) or not flat.size:
        raise DataError(f"{where}: must be (H, W, 1 or 3) uint8, is {pixels.shape} {pixels.dtype}")
    return Image.fromarray(np.ascontiguousarray(flat))


def eight_bits(picture: Image.Image, where: object) -> Image.Image:
    """In mode "L" if it is gray, else "RGB". Transparency is dropped; the colours under it stay."""
    if picture.mode in SIXTEEN_BITS:
        values = np.asarray(picture, np.uint32)
        return Image.fromarray(((values * 255 + 32767) // 65535).astype(np.uint8))
    if picture.mode.startswith(DEEP_MODES):
        raise DataError(
            f"{where}: has 32 bits per pixel ({picture.mode}), and its white value is unknown; "
            "save it with 8 or 16 bits"
        )
    try:
        return picture.convert("L" if picture.mode in GRAY_MODES else "RGB")
    except ValueError as error:
        raise DataError(f"{where}: cannot be turned into RGB ({error}); save it as RGB") from error


def fit(picture: Image.Image, shape: tuple[int, int, int], where: object) -> Fitted:
    """Turn any picture into (H, W, C) pixels of `shape`.

    Colour becomes gray by Pillow's luma (ITU-R 601-2), and gray becomes three equal channels. Other sizes are scaled in
    both directions, without cropping, by Pillow's bilinear filter, which averages when it shrinks an image.
    """
    height, width, channels = shape
    mode = "L" if channels == 1 else "RGB"
    fitted = eight_bits(picture, where).convert(mode)
    resized = fitted.size != (width, height)
    if resized:
        fitted = fitted.resize((width, height), Image.Resampling.BILINEAR)
    return Fitted(
        np.asarray(fitted).reshape(shape),
        resized_from=picture.size if resized else None,
        converted_from=picture.mode if picture.mode != mode else None,
    )
