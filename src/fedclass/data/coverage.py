"""How much of a data set a run uses. Fractions, the stream and the partition may leave images out."""

from typing import Any

from fedclass.data.stream import Stream


def coverage(stream: Stream) -> dict[str, Any]:
    """How many images a run trains on, holds out and tests on, and how many are available."""
    data = stream.data
    train, test = data.available or (len(data.train), len(data.test))
    return {
        "images_used": sum(map(len, stream.shares)),
        "images_available": train,
        "validation_images": sum(map(len, stream.held_out)),
        "test_images_used": int((stream.test_targets >= 0).sum()),
        "test_images_available": test,
    }
