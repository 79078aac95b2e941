"""Three sites with folders of drawn digits, on this machine; later on, two of them get digits that nobody has seen."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from fedclass.data.synnum import draw

FIRST = {"north": "012", "south": "234", "west": "01234"}  # the digits that each site has from the start
LATER = {"north": "6785", "south": "6789"}  # what a site alone has comes last: then all is there
PER_CLASS = 120  # images at each site
CONFIG = {
    "set": "train.rounds=4 train.local_epochs=4 train.batch_size=16 optimizer.learning_rate=0.03 "
    "server.participation=1.0 memory.per_client=50 evaluation.every=0",
    "next-task": "classes",
    "new-classes": 5,
    "classes-admit": "all",
    "tasks": 2,
    "min-sites": 3,
    "ask-every-seconds": 5.0,
    "deadline-seconds": 300.0,
}


def settings_of(root: Path) -> dict[str, dict[str, object]]:
    """Of each site."""
    return {
        site: {"data": str(root / site / "images"), "store": str(root / site / "store"), "announce": "exact"}
        for site in FIRST
    }


def add_images(root: Path, digits: Mapping[str, str]) -> None:
    """Draw pictures of these digits for each site. A digit's folder appears with all of them, in the given order."""
    for number, site in enumerate(FIRST):
        drawn, images = draw(10 * PER_CLASS, seed=number), root / site / "images"
        images.mkdir(parents=True, exist_ok=True)
        for digit in digits.get(site, ""):
            drawing = root / site / f"drawing-{digit}"
            drawing.mkdir()
            for i, position in enumerate(np.flatnonzero(drawn.labels == int(digit))):
                Image.fromarray(drawn.images[position]).save(drawing / f"{i:03d}.png")
            drawing.rename(images / digit)
