"""Drawn digits and characters: data sets that need no download.

In the manner of the SYN-NUM images of Ganin and Lempitsky (arXiv:1409.7495), but our own drawing, not theirs:
32x32 RGB pictures of numbers with one to three digits, of which the centre one is the label. Font, colours,
position, rotation, slant, size, outline, background, blur and noise vary. The characters are drawn in the same way:
digits, letters and a few signs, so that there are classes for many tasks.

Image i has label i % classes and depends on (seed, split, i) alone, so a set of 1,000 images is the beginning of a set
of 10,000. The glyphs come from the fonts in the matplotlib package; another version of FreeType or another processor
may move single gray levels.
"""

import hashlib
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fedclass.data import readers
from fedclass.data.image_set import Split
from fedclass.errors import DataError
from fedclass.rng import bits

VERSION = 2  # of the drawing: raise it whenever a pixel changes, so that no cached file survives
TRAIN_PER_CLASS, TEST_PER_CLASS = 6000, 1000
SIDE = 32
WORTH_CACHING = 2000  # fewer images are drawn in less time than a file deserves
BLOCK = 128  # images drawn from one random stream
SLOTS = 3  # left neighbour, the digit that counts, right neighbour

CELL = 48  # side of a glyph's mask
GLYPH = 30  # height of the tallest digit in its mask, and the most that any character is wide
FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSans-BoldOblique",
    "DejaVuSansMono",
    "DejaVuSansMono-Bold",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "DejaVuSerif-BoldItalic",
    "STIXGeneral",
    "STIXGeneralBol",
    "STIXGeneralItalic",
    "STIXGeneralBolIta",
    "cmr10",
    "cmb10",
    "cmss10",
    "cmtt10",
    "cmti10",
)
# How much things vary; pixels are those of the image.
NUMBERS = np.array([[0, 1, 0], [1, 1, 0], [0, 1, 1], [1, 1, 1]], np.float32)  # which digits are shown
NUMBER_ODDS = (0.3, 0.2, 0.2, 0.3)
HEIGHT = (20.0, 26.0)
STRETCH = (0.8, 1.15)
ROTATION = 0.2  # radians, to either side
SLANT = 0.15
ROAM = 1.5  # pixels from the centre, along each axis
GAP = (0.5, 7.0)  # between digits, in pixels of a mask
OUTLINED = 0.3  # part of the images whose digits have an outline
UNEVEN = (0.0, 0.1)
BLUR = (0.3, 0.7)
GRAIN = (0.0, 0.04)
CONTRAST = 0.5  # least difference in luminance between digit and background; black on white has 1
CANDIDATES = 12  # colours tried before black or white is taken
LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)

AXIS = np.arange(SIDE, dtype=np.float32) - (SIDE - 1) / 2  # of a pixel's centre, as seen from the image's
WAVES = 4
WAVE = np.cos(np.pi / SIDE * (np.arange(SIDE)[:, None] + 0.5) * np.arange(WAVES)).astype(np.float32)

F32: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class Alphabet:
    """What is drawn: a class for each character. name: of the data set, and of its random streams."""

    name: str
    characters: str


DIGITS = Alphabet("synnum", "0123456789")
# Not among them: I, l, O and o, which are 1 and 0; small letters that are small capitals (c, k, p, s, u, v, w, x, y, z)
# or look like a digit (q); signs that some of the fonts lack.
CHARACTERS = Alphabet("drawn-characters", DIGITS.characters + "ABCDEFGHJKLMNPQRSTUVWXYZ" + "abdefghijmnrt" + "&#?+@")


@dataclass(frozen=True, eq=False)
class Atlas:
    """masks: (fonts, characters, CELL, CELL) in 0..1.  widths: (fonts, characters), in pixels of a mask."""

    masks: F32
    widths: F32

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.masks.tobytes()).hexdigest()[:8]


@cache
def glyphs(alphabet: Alphabet = DIGITS) -> Atlas:
    """All characters of all fonts, centred in their masks, each font scaled so that its tallest digit is GLYPH high.

    Characters that would be wider than that are drawn smaller: an image has no room for them.
    """
    import matplotlib  # for its fonts only

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    masks = np.zeros((len(FONTS), len(alphabet.characters), CELL, CELL), np.float32)
    widths = np.zeros((len(FONTS), len(alphabet.characters)), np.float32)
    for f, name in enumerate(FONTS):
        large = ImageFont.truetype(folder / f"{name}.ttf", 200)
        tallest = max(box[3] - box[1] for box in map(large.getbbox, DIGITS.characters))
        usual = 200 * GLYPH / tallest
        for c, character in enumerate(alphabet.characters):
            font = ImageFont.truetype(folder / f"{name}.ttf", usual)
            left, top, right, bottom = font.getbbox(character)
            if right - left > GLYPH:
                font = ImageFont.truetype(folder / f"{name}.ttf", usual * GLYPH / (right - left))
                left, top, right, bottom = font.getbbox(character)
            picture = Image.new("L", (CELL, CELL))
            corner = ((CELL - left - right) / 2, (CELL - top - bottom) / 2)
            ImageDraw.Draw(picture).text(corner, character, fill=255, font=font)
            masks[f, c] = np.asarray(picture, np.float32) / 255
            widths[f, c] = right - left
    return Atlas(masks, widths)


def draw(count: int, *, seed: int = 0, split: str = "train", first: int = 0, alphabet: Alphabet = DIGITS) -> Split:
    """Images first .. first + count - 1 of the endless set (seed, split)."""
    if count < 0 or first < 0:
        raise ValueError(f"count and first must not be negative, got {count} and {first}")
    blocks = range(first // BLOCK, -(-(first + count) // BLOCK))
    start = first - blocks.start * BLOCK
    images = np.empty((len(blocks) * BLOCK, SIDE, SIDE, 3), np.uint8)
    for at, block in enumerate(blocks):
        images[at * BLOCK : (at + 1) * BLOCK] = _draw_block(alphabet, seed, split, block)
    labels = np.arange(first, first + count, dtype=np.int64) % len(alphabet.characters)
    return Split(images[start : start + count], labels)


def _draw_block(alphabet: Alphabet, seed: int, split: str, block: int) -> NDArray[np.uint8]:
    """(BLOCK, SIDE, SIDE, 3).

    All in NumPy and in one thread: the many small steps would gain nothing from a thread pool, and on a busy machine
    lose tenfold by waiting for it.
    """
    drawn_with = bits(seed, alphabet.name, split, block) >> 65  # 63 bits, as ever: more would give other images
    rng = np.random.Generator(np.random.PCG64(drawn_with))
    labels = np.arange(block * BLOCK, (block + 1) * BLOCK) % len(alphabet.characters)
    ink, outline = _lettering(rng, labels, alphabet)
    digit, rim, canvas = _colours(rng)
    canvas += (rim[:, None, None] - canvas) * outline[..., None]
    canvas += (digit[:, None, None] - canvas) * ink[..., None]
    canvas = _blur(canvas, _uniform(rng, *BLUR, BLOCK))
    grain = rng.standard_normal(canvas.shape, np.float32)
    grain *= _uniform(rng, *GRAIN, (BLOCK, 1, 1, 1))
    canvas += grain
    return np.rint(canvas.clip(0, 1, out=canvas) * 255).astype(np.uint8)


def _uniform(rng: np.random.Generator, low: float, high: float, size: int | tuple[int, ...]) -> F32:
    return np.float32(low) + np.float32(high - low) * rng.random(size, np.float32)


def _lettering(rng: np.random.Generator, labels: NDArray[np.int64], alphabet: Alphabet) -> tuple[F32, F32]:
    """Coverage of the characters and of the outline around them, each (BLOCK, SIDE, SIDE) in 0..1."""
    atlas, classes = glyphs(alphabet), len(alphabet.characters)
    font = rng.integers(len(FONTS), size=(BLOCK, 1))
    digits = rng.integers(classes, size=(BLOCK, SLOTS))
    digits[:, 1] = labels
    shown = NUMBERS[rng.choice(len(NUMBERS), size=BLOCK, p=NUMBER_ODDS)]

    # Where the neighbours stand, in pixels of a mask, as seen from the digit in the centre.
    half = atlas.widths[font, digits] / 2
    gap = _uniform(rng, *GAP, (BLOCK, 1))
    step = half[:, 1:2] + gap + half[:, 0::2]
    place = np.stack([-step[:, 0], np.zeros(BLOCK, np.float32), step[:, 1]], 1)

    # Text to image is slant, scale, rotate, shift; what is sampled needs the inverse.
    height = _uniform(rng, *HEIGHT, (BLOCK, 1, 1)) / GLYPH
    width = height * _uniform(rng, *STRETCH, (BLOCK, 1, 1))
    angle = _uniform(rng, -ROTATION, ROTATION, (BLOCK, 1, 1))
    slant = _uniform(rng, -SLANT, SLANT, (BLOCK, 1, 1))
    # A digit beside a neighbour roams less: the one nearest to the centre, by far, has to be the label.
    nearest = np.where(shown[:, 0::2] > 0, step, np.inf).min(1) * width[:, 0, 0]
    right = np.minimum(nearest / 5, ROAM).astype(np.float32) * _uniform(rng, -1, 1, BLOCK)
    down = _uniform(rng, -ROAM, ROAM, BLOCK)
    x, y = AXIS - right[:, None, None], AXIS[:, None] - down[:, None, None]
    cos, sin = np.cos(angle), np.sin(angle)
    x, y = cos * x + sin * y, (cos * y - sin * x) / height  # (BLOCK, SIDE, SIDE) each
    x = x / width - slant * y

    # A point of the text belongs to the digit on its side of the gap's middle.
    border = (half[:, 1:2] + gap / 2)[..., None]
    slot = 1 + (x > border).astype(np.int8) - (x < -border)
    image = np.arange(BLOCK)[:, None, None]
    x -= place[image, slot]
    ink = _sample(atlas.masks, (font * classes + digits)[image, slot], x, y) * shown[image, slot]

    thick = np.pad(ink, ((0, 0), (1, 1), (1, 1)))
    thick = np.maximum(np.maximum(thick[:, :-2], thick[:, 1:-1]), thick[:, 2:])
    thick = np.maximum(np.maximum(thick[:, :, :-2], thick[:, :, 1:-1]), thick[:, :, 2:])
    return ink, thick * (rng.random((BLOCK, 1, 1)) < OUTLINED)


def _sample(masks: F32, which: NDArray[np.int64], x: F32, y: F32) -> F32:
    """Bilinear value of mask `which` at (x, y), counted from its centre; outside it is 0, as its border is."""
    last = np.float32(CELL - 1)
    x, y = ((axis + last / 2).clip(0, last - np.float32(0.01)) for axis in (x, y))
    column, row = x.astype(np.intp), y.astype(np.intp)
    x, y = x - column.astype(np.float32), y - row.astype(np.float32)
    flat = masks.reshape(-1)
    at = (which * CELL + row) * CELL + column
    top: F32 = flat[at] * (1 - x) + flat[at + 1] * x
    bottom: F32 = flat[at + CELL] * (1 - x) + flat[at + CELL + 1] * x
    return top + (bottom - top) * y


def _colours(rng: np.random.Generator) -> tuple[F32, F32, F32]:
    """Colour of the digits (BLOCK, 3), of their outline (BLOCK, 3), and the background (BLOCK, SIDE, SIDE, 3)."""
    base = _uniform(rng, 0, 1, (BLOCK, 3))
    digit = _contrasting(rng, base)
    rim = _contrasting(rng, digit)
    # Uneven light behind the number: random waves, together at most 1 high.
    light = (WAVE @ _uniform(rng, -1, 1, (BLOCK, 3, WAVES, WAVES)) @ WAVE.T).transpose(0, 2, 3, 1)
    strength = _uniform(rng, *UNEVEN, (BLOCK, 1, 1, 1)) / np.abs(light).max((1, 2, 3), keepdims=True)
    return digit, rim, base[:, None, None] + strength * light


def _contrasting(rng: np.random.Generator, base: F32) -> F32:
    """Random colours whose luminance differs from that of `base` by CONTRAST or more.  (BLOCK, 3), as `base`."""
    tried = _uniform(rng, 0, 1, (BLOCK, CANDIDATES, 3))
    light = np.sum(base * LUMINANCE, 1)
    enough = np.abs(np.sum(tried * LUMINANCE, 2) - light[:, None]) >= CONTRAST
    chosen: F32 = tried[np.arange(BLOCK), enough.argmax(1)]
    extreme = (light < 0.5).astype(np.float32)[:, None]  # white on dark, black on light
    return np.asarray(np.where(enough.any(1)[:, None], chosen, extreme), np.float32)


def _blur(canvas: F32, sigma: F32) -> F32:
    """Gaussian blur with a width per image: two products with a banded matrix that keeps the border's brightness."""
    kernel = np.exp(-0.5 * ((AXIS[:, None] - AXIS) / sigma[:, None, None]) ** 2)
    kernel /= kernel.sum(2, keepdims=True)
    for _ in range(2):  # columns, then rows
        canvas = (kernel @ canvas.transpose(0, 2, 1, 3).reshape(-1, SIDE, SIDE * 3)).reshape(-1, SIDE, SIDE, 3)
    return canvas


def cached(folder: Path, count: int, *, seed: int = 0, split: str = "train", alphabet: Alphabet = DIGITS) -> Split:
    """draw(count), kept in `folder` for the next time.

    The file is a mere copy of what can be drawn again: a damaged one is replaced, and where none can be written the
    images are drawn every time. Its name holds all that the images depend on.
    """
    if count < WORTH_CACHING:
        return draw(count, seed=seed, split=split, alphabet=alphabet)
    path = folder / f"{alphabet.name}-v{VERSION}-{glyphs(alphabet).digest}-seed{seed}-{split}-{count}.npz"
    kept = _read_cache(path, count)
    if kept is not None:
        return kept
    drawn = draw(count, seed=seed, split=split, alphabet=alphabet)
    _write_cache(path, drawn)
    return drawn


def _read_cache(path: Path, count: int) -> Split | None:
    if not path.is_file():
        return None
    try:
        arrays = readers.npz_arrays(path)
    except DataError:
        return None  # damaged: it will be drawn again and replaced
    images, labels = arrays.get("images"), arrays.get("labels")
    if images is None or labels is None or images.shape != (count, SIDE, SIDE, 3) or labels.shape != (count,):
        return None
    return Split(images, labels)


def _write_cache(path: Path, split: Split) -> None:
    """Atomically, so that a second process never reads half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".writing-") as draft:
            complete = Path(draft) / path.name
            np.savez(complete, images=split.images, labels=split.labels)
            complete.replace(path)
    except OSError:
        pass  # read-only or full: the images are in memory, only the next start will be slower
