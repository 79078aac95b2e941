"""A model for a hub: a folder with its files and a model card, written from what the run has stored."""

import shutil
from pathlib import Path
from typing import Any

import fedclass
from fedclass.errors import ConfigError, RunError
from fedclass.experiment.trained import TrainedModel, load_model
from fedclass.runs.layout import RunDirectory, write_atomically
from fedclass.runs.progress import left_out
from fedclass.runs.summary import Result

HEAD = """---
library_name: fedclass
pipeline_tag: image-classification
tags:
- federated-learning
- class-incremental-learning
---
"""


def write_card(run: Path, to: Path) -> None:
    """model.safetensors, classes.json and README.md; `load_model` takes the folder as it takes a run.

    The recipe stays here: it may name paths of this machine.
    """
    directory = RunDirectory(run.expanduser())
    model = load_model(directory.root)
    try:
        summary = Result.read(directory.root).summary
    except RunError as error:
        raise RunError(f"{directory.root}: a model card needs the results of the run ({error})") from error
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {to}: already exists and is not an empty folder; choose another name")
    try:
        to.mkdir(parents=True, exist_ok=True)
        for file in (directory.model, directory.classes):
            shutil.copyfile(file, to / file.name)
        write_atomically(to / "README.md", card(model, summary))
    except OSError as error:
        raise RunError(f"{to}: cannot be written ({error.strerror}); choose another place") from error


def card(model: TrainedModel, summary: dict[str, Any]) -> str:
    """What a user of the model has to know. All figures were measured by the run."""
    about = model.description
    height, width, channels = about.image
    parameters = ", ".join(
        f"{key} = {value}" for key, value in about.method.items() if key != "name" and value is not None
    )
    sizes = ", ".join(map(str, summary["tasks"]))
    figures = {
        "accuracy per image, all classes (accuracy_last)": summary["accuracy_last"],
        "mean over classes (accuracy_last_macro)": summary["accuracy_last_macro"],
        "forgetting (forgetting_fedclass)": summary["forgetting_fedclass"],
    }
    lines = [
        f"# {about.method['name']} on {about.dataset}",
        "",
        f"An image classifier that several clients learned together, in tasks of {sizes} classes,",
        f"by federated class-incremental learning. Made by fedclass {about.version}.",
        "",
        f"- Input: {height} x {width} pixels, {channels} channel{'s' * (channels > 1)}",
        f"- Classes: {', '.join(model.classes)}",
        f"- Method: {about.method['name']} ({summary['variant']})" + (f"; {parameters}" if parameters else ""),
        f"- Backbone: {about.model.name}",
        f"- Seed: {summary['seed']}; SHA-256 of the tensors: `{about.sha256}`",
        "",
        "On the data set's test images, in percent, one run:",
        "",
        "| figure | value |",
        "|---|---|",
        *(f"| {name} | {value:.1f} |" for name, value in figures.items() if value is not None),
        "",
    ]
    if parts := left_out(summary):
        lines += [f"Not on all of the data: it {'; '.join(parts)}.", ""]
    if summary["official_data"] is False:
        lines += [f"The files of {about.dataset} did not have the published checksums.", ""]
    use = ["```python", "import fedclass", "", 'model = fedclass.load_model("FOLDER")']
    use += ['print(model.predict(["image.png"])[0].label)', "```", ""]
    note = (
        f"Written by fedclass {fedclass.__version__} from what the run has stored. Its licence is for its owner to say."
    )
    return "\n".join([HEAD, *lines, *use, note, ""])
