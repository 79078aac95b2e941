"""A trained model: read from its run directory, to predict, to be tested, to be exported.

    model = load_model("runs/mine")
    for prediction in model.predict(["cat.jpg", "dog.png"]):
        print(prediction.label, prediction.score)

model.safetensors describes itself in its metadata, so that neither the recipe nor the data set is needed again.
"""

import json
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

import fedclass
from fedclass import metrics
from fedclass.data import datasets
from fedclass.data.catalogue import DATASETS
from fedclass.data.folder import class_files
from fedclass.data.image_files import Fitted, as_picture, fit, read_picture, shape_of, upright
from fedclass.data.image_set import ImageSet
from fedclass.errors import ConfigError, DataError, RunError
from fedclass.experiment.config import ModelSettings
from fedclass.experiment.curriculum import Curriculum
from fedclass.experiment.export import write_onnx
from fedclass.experiment.recipe import experiment
from fedclass.experiment.source_code import edited_since, listed
from fedclass.federation.evaluate import BATCH, scores
from fedclass.methods.base import Method, parameters
from fedclass.models.incremental import IncrementalModel
from fedclass.models.weights import flaw
from fedclass.runs.kept import check_not_kept
from fedclass.runs.layout import RunDirectory
from fedclass.schema import read_record
from fedclass.wire import Weights, sha256

KEY = "fedclass"  # of the description in the metadata of model.safetensors
EXTRAS = "extras."  # prefix of tensors that the method needs besides the model's
TEST_ONLY = 1e-9  # fraction of the training images: one of each class is the least that can be loaded

Picture = str | os.PathLike[str] | Image.Image | NDArray[np.uint8]
Pictures = Picture | Iterable[Picture]


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a model file says about itself.

    image: (H, W, C) of the training images.  mean, std: pixels in 0..1 become (x - mean) / std.  method: the recipe's
    table [method].  sha256: of all tensors in the file.  transposed: it learned from images with rows and columns
    exchanged (data.orientation = "raw"); images to predict are upright nevertheless.
    """

    version: str
    dataset: str
    image: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    model: ModelSettings
    method: dict[str, Any]
    sha256: str
    transposed: bool = False


def describe(curriculum: Curriculum, tensors: Weights) -> dict[str, str]:
    """The metadata of model.safetensors."""
    e = curriculum.experiment
    mean, std = curriculum.initial.normalisation or curriculum.normalisation
    description = Description(
        version=fedclass.__version__,
        dataset=e.data.name,
        image=curriculum.image,
        mean=mean,
        std=std,
        model=e.model,
        method={"name": e.method_name, **parameters(e.method)},
        sha256=sha256(tensors),
        transposed=e.data.orientation == "raw",
    )
    return {KEY: json.dumps(asdict(description), separators=(",", ":"), ensure_ascii=False)}


@dataclass(frozen=True)
class Prediction:
    """What the model says about one image.

    scores: by class name, the best first. They are what the method compares (logits; for FedICARL minus the distance to
    the class's mean), not probabilities.  resized_from: (width, height) of an image that had another size than the
    training images.  converted_from: its mode, as Pillow calls it, if that was another one.
    """

    scores: Mapping[str, float]
    resized_from: tuple[int, int] | None
    converted_from: str | None

    @property
    def label(self) -> str:
        return next(iter(self.scores))

    @property
    def score(self) -> float:
        return self.scores[self.label]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How well a model does on the test images of a data set, in percent.

    Classes are matched by name. Images of `unknown` classes are left out; `missing` classes could be predicted (all of
    the model's classes compete), but have no images.
    """

    dataset: str
    official_data: bool | None  # None: a user's own data
    images: int
    accuracy_micro: float  # every image counts the same
    accuracy_macro: float  # every class counts the same
    accuracy_per_class: dict[str, float]
    images_per_class: dict[str, int]
    unknown: dict[str, int]  # classes that the model never met, and how many images they have
    missing: list[str]  # classes of the model that the data does not have
    resized_from: tuple[int, int] | None
    converted_from: str | None


class Network(nn.Module):
    """(B, H, W, C) uint8 images to (B, classes) scores: normalisation, backbone, head and method in one."""

    def __init__(
        self, model: IncrementalModel, method: Method, extras: Mapping[str, Tensor], description: Description
    ) -> None:
        super().__init__()
        self.model, self.method, self.extras = model, method, extras
        self.normalisation = description.mean, description.std
        self.transposed = description.transposed

    def forward(self, images: Tensor) -> Tensor:
        images = images.transpose(1, 2) if self.transposed else images
        return scores(self.model, self.method, self.extras, images, self.normalisation)


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """The model that a run has learned. `load_model` returns one."""

    classes: tuple[str, ...]  # names, in the order of the scores
    description: Description
    network: Network

    def predict(self, images: Pictures) -> list[Prediction]:
        """Predict the class of each image: a path, a Pillow image, a uint8 array (H, W, C), several of these, or one
        uint8 array (N, H, W, C).

        All of them are read before the first is predicted. Other sizes and modes are converted, and the prediction
        says so.
        """
        fitted = self._fit(images)
        predictions = []
        for row, image in zip(self._scores(fitted), fitted, strict=True):
            best = np.argsort(-row, kind="stable")
            named = {self.classes[i]: float(row[i]) for i in best}
            predictions.append(Prediction(named, image.resized_from, image.converted_from))
        return predictions

    def scores(self, images: Pictures) -> NDArray[np.float32]:
        """(N, classes) scores of the images, in the order of `classes`; the highest wins."""
        return self._scores(self._fit(images))

    def evaluate(self, dataset: str | Path, *, path: Path | str | None = None, fraction: float = 1.0) -> Evaluation:
        """Test the model on a data set's test images.

        dataset: a name of `fedclass data list` (path: where its files are), package.module:function, a folder with
        train/<class>/ and test/<class>/, or an .npz file.  fraction: the first part of each class to test on.
        """
        data, resized_from = _dataset(dataset, path, fraction, self.description.image[:2])
        rows = np.array([self.classes.index(name) if name in self.classes else -1 for name in data.classes])
        truth = rows[data.test.labels]
        known = truth >= 0
        if not known.any():
            raise DataError(
                f"{dataset}: has no class of this model; it has {_some(data.classes)}, "
                f"the model knows {_some(self.classes)}"
            )
        fitted = self._fit(data.test.images[known])
        taken_for = self._scores(fitted).argmax(axis=1)
        width = len(self.classes)
        confusion = np.bincount(truth[known] * width + taken_for, minlength=width**2).reshape(width, width)
        present = sorted(set(truth[known].tolist()))
        left_out = [name for name in data.classes if name not in self.classes]
        return Evaluation(
            dataset=data.name,
            official_data=data.official,
            images=int(known.sum()),
            accuracy_micro=metrics.accuracy_micro(confusion),
            accuracy_macro=metrics.accuracy_macro(confusion, present),
            accuracy_per_class=dict(
                zip((self.classes[i] for i in present), metrics.class_accuracy(confusion, present), strict=True)
            ),
            images_per_class={self.classes[i]: int(confusion[i].sum()) for i in present},
            unknown={name: int((data.test.labels == data.classes.index(name)).sum()) for name in left_out},
            missing=[name for i, name in enumerate(self.classes) if i not in present],
            resized_from=resized_from or fitted[0].resized_from,
            converted_from=fitted[0].converted_from,
        )

    def export(self, to: Path | str) -> float:
        """Write the model to an ONNX file and return the largest difference from this model's scores.

        Input "images": (N, H, W, C) uint8.  Output "scores": (N, classes) float.  Normalisation and the method's own
        way to predict are part of the graph; class names and the rest are in its metadata.
        """
        about = {
            "classes": json.dumps(self.classes),
            **{name: json.dumps(value) for name, value in asdict(self.description).items()},
        }
        return write_onnx(self.network, Path(to).expanduser(), image=self.description.image, about=about)

    def _fit(self, images: Pictures) -> list[Fitted]:
        if isinstance(images, np.ndarray) and images.ndim != 4:
            raise DataError(
                f"images: an array must be (N, H, W, C), got {images.shape}; "
                "write [image] for a single one, images[..., None] for gray ones"
            )
        several = [images] if isinstance(images, str | os.PathLike | Image.Image) else images
        return [self._fit_one(image, number) for number, image in enumerate(several)]

    def _fit_one(self, image: Picture, number: int) -> Fitted:
        shape, where = self.description.image, f"image {number}"
        if isinstance(image, np.ndarray):
            if image.shape == shape and image.dtype == np.uint8:
                return Fitted(image, None, None)
            return fit(as_picture(image, where), shape, where)
        if isinstance(image, Image.Image):
            return fit(upright(image, where), shape, where)
        if isinstance(image, str | os.PathLike):
            return fit(read_picture(Path(image)), shape, image)
        raise DataError(f"{where}: must be a path, a Pillow image or a uint8 array, got {type(image).__name__}")

    @torch.no_grad()
    def _scores(self, fitted: list[Fitted]) -> NDArray[np.float32]:
        pixels = np.array([image.pixels for image in fitted], np.uint8).reshape(-1, *self.description.image)
        return torch.cat([self.network(part) for part in torch.from_numpy(pixels).split(BATCH)]).numpy()


def load_model(run: Path | str) -> TrainedModel:
    """The model of a finished run, from its directory's model.safetensors and classes.json, on the CPU.

    A method or backbone of your own (package.module:name) must be importable, as it was when the run was made. There is
    a warning if its code has changed since.
    """
    directory = RunDirectory(Path(run).expanduser())
    description, tensors = _read(directory)
    classes = _read_classes(directory.classes)
    where = f"{directory.model}"
    recipe = experiment({"model": asdict(description.model), "method": description.method}, where=where)
    model = recipe.build(description.image[:2])
    model.grow_to(len(classes), seed=recipe.seed_of("initialisation"))
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(EXTRAS)}
    problem = flaw({name: tensor for name, tensor in weights.items() if name not in model.frozen}, model.packed)
    try:
        if problem is None:
            model.load_state_dict(weights)  # including frozen tensors, which may have changed since
    except RuntimeError as error:
        problem = str(error).splitlines()[-1].strip()
    if problem:
        raise RunError(f"{where}: does not fit {description.model.name} with {len(classes)} classes: {problem}")
    changed = edited_since(directory, recipe)
    if changed:
        warnings.warn(f"{where}: its code has changed since: {listed(changed)}; it may predict otherwise", stacklevel=2)
    extras = {name.removeprefix(EXTRAS): tensor for name, tensor in tensors.items() if name.startswith(EXTRAS)}
    return TrainedModel(classes, description, Network(model, recipe.method, extras, description).eval())


def _read(directory: RunDirectory) -> tuple[Description, dict[str, Tensor]]:
    root, path = directory.root, directory.model
    if not path.exists():
        if not root.is_dir():
            raise RunError(f"{root}: no such run directory; `fedclass list` shows the runs there are")
        check_not_kept(root)
        if not directory.events.exists():
            raise RunError(f"{root}: is not a run directory (no model.safetensors, no events.jsonl)")
        raise RunError(f"{root}: this run has not finished: it has no model.safetensors yet")
    try:
        with safe_open(path, framework="pt") as file:
            stored = (file.metadata() or {}).get(KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path}: is damaged ({error}); copy it again, or run {directory.config} again") from error
    if stored is None:
        raise RunError(f"{path}: does not describe its images, because an older version wrote it; run it again")
    try:
        description = read_record(Description, json.loads(stored))
    except ValueError as error:
        raise RunError(f"{path}: its metadata is damaged ({error})") from error
    if sha256(tensors) != description.sha256:
        raise RunError(f"{path}: is damaged (the SHA-256 of its tensors has changed)")
    return description, tensors


def _read_classes(path: Path) -> tuple[str, ...]:
    try:
        return read_record(tuple[str, ...], json.loads(path.read_bytes()))
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); the model's class names are in it") from error
    except ValueError as error:
        raise RunError(f"{path}: is damaged; it must be a JSON list of class names") from error


def _dataset(
    dataset: str | Path, path: Path | str | None, fraction: float, size: tuple[int, int]
) -> tuple[ImageSet, tuple[int, int] | None]:
    """The data set, and (width, height) of a folder's first test image if that is not `size`.

    Images in a folder may have any size: they are resized as they are read.
    """
    own = Path(dataset).expanduser()
    if dataset in DATASETS or ":" in str(dataset):
        name, where = str(dataset), None if path is None else Path(path)
    elif path is None and own.exists():
        name, where = "folder" if own.is_dir() else "npz", own
    else:
        known = ", ".join(DATASETS)
        raise ConfigError(f"{dataset}: neither a known data set ({known}) nor, without --path, a folder or .npz file")
    if name != "folder" or where is None:
        return datasets.load(name, path=where, fraction=TEST_ONLY, test_fraction=fraction), None
    data = datasets.load(name, path=where, fraction=TEST_ONLY, test_fraction=fraction, size=size)
    height, width, _ = shape_of(next(iter(class_files(where / "test").values()))[0])
    return data, None if (height, width) == size else (width, height)


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
