"""A network as an ONNX file, compared with the original before the file is written."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedclass.errors import EXTRA, ConfigError, FedclassError
from fedclass.rng import array_generator
from fedclass.runs.layout import write_atomically

TOLERANCE = 1e-4  # of scores, relative to the largest one if that is above 1
BATCHES = (1, 7)  # two sizes show that the batch is free


def write_onnx(network: nn.Module, to: Path, *, image: tuple[int, int, int], about: Mapping[str, str]) -> float:
    """Write `network`, which maps (N, *image) uint8 to (N, classes); returns the largest difference of scores.

    onnxruntime runs the graph on random images; unless it agrees with torch, no file is written.
    """
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401, torch.onnx needs it
    except ImportError as error:
        need = f"export needs {error.name}, which is not installed; {EXTRA.format('onnx')}"
        raise ConfigError(need) from error
    if to.is_dir() or not to.parent.is_dir():
        problem = "is a folder" if to.is_dir() else f"there is no folder {to.parent}"
        raise ConfigError(f"--to {to}: {problem}; name a file in a folder that exists")
    example = torch.zeros(2, *image, dtype=torch.uint8)
    try:
        with _quiet():
            program = torch.onnx.export(
                network,
                (example,),
                input_names=["images"],
                output_names=["scores"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
        assert program is not None  # it is None only if torch writes the file itself
        graph = program.model_proto
        onnx.helper.set_model_props(graph, dict(about))
        content = graph.SerializeToString()
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # a user's backbone or method may use operations that ONNX lacks
        cause = error.__cause__ or error
        reason = next(iter(str(cause).splitlines()), type(cause).__name__)
        raise FedclassError(f"export: this model cannot be converted to an ONNX graph ({reason})") from error
    difference = 0.0
    for count in BATCHES:
        images = array_generator(0, "export", count).integers(0, 256, (count, *image), np.uint8)
        with torch.no_grad():
            expected = network(torch.from_numpy(images)).numpy()
        (got,) = session.run(["scores"], {"images": images})
        apart = float(np.abs(got - expected).max())
        if not apart <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
            raise FedclassError(f"export: onnxruntime's scores differ from torch's by {apart:.2g}; nothing was written")
        difference = max(difference, apart)
    try:
        write_atomically(to, content)
    except OSError as error:
        raise ConfigError(f"--to {to}: cannot be written ({error.strerror}); choose another name") from error
    return difference


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch.onnx says about its own deprecations and about torchvision: a user can change neither."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
