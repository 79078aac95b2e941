"""Federated class-incremental learning: FedCLASS and its baselines.

    import fedclass

    experiment = fedclass.load("cifar10_2task", ["train.rounds=2"], method="fedavg", seed=1)
    summary = fedclass.run(experiment, "runs/mine")
    rows = fedclass.results("runs")
    model = fedclass.load_model("runs/mine")
    print(model.predict(["cat.jpg"])[0].label)

Names are imported when they are first used, so that reading results does not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fedclass.errors import FedclassError
    from fedclass.experiment.config import Experiment
    from fedclass.experiment.launch import run_one as run
    from fedclass.experiment.recipe import load
    from fedclass.experiment.trained import Evaluation, Prediction, TrainedModel, load_model
    from fedclass.methods import METHODS, Batch, ClientContext, FedAvg
    from fedclass.runs.dataframe import results

_HOMES = {
    "METHODS": "fedclass.methods",
    "Batch": "fedclass.methods",
    "ClientContext": "fedclass.methods",
    "Evaluation": "fedclass.experiment.trained",
    "Experiment": "fedclass.experiment.config",
    "FedAvg": "fedclass.methods",
    "FedclassError": "fedclass.errors",
    "Prediction": "fedclass.experiment.trained",
    "TrainedModel": "fedclass.experiment.trained",
    "load": "fedclass.experiment.recipe",
    "load_model": "fedclass.experiment.trained",
    "results": "fedclass.runs.dataframe",
    "run": "fedclass.experiment.launch",
}

__all__ = [
    "METHODS",
    "Batch",
    "ClientContext",
    "Evaluation",
    "Experiment",
    "FedAvg",
    "FedclassError",
    "Prediction",
    "TrainedModel",
    "load",
    "load_model",
    "results",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedclass' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), "run_one" if name == "run" else name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
