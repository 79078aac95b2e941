"""Federated class-incremental learning: FedCLASS and its baselines.

    import fedclass

    experiment = fedclass.load("cifar10_2task", ["train.rounds=2"], method="fedavg", seed=1)
    summary = fedclass.run(experiment, "runs/mine")
    rows = fedclass.compare("demo", ["fedavg", MyMethod(beta=3)], seeds=range(3), out="runs/first")
    page = fedclass.report("runs/first")
    model = fedclass.load_model("runs/mine")
    print(model.predict(["cat.jpg"])[0].label)

Names are imported on first use, so that reading results does not wait for torch.
"""

import importlib
import time
from typing import TYPE_CHECKING

__version__ = "0.2.0"
_IMPORTED = time.time()  # no module of fedclass was read before

if TYPE_CHECKING:
    from fedclass.errors import FedclassError
    from fedclass.experiment.config import Experiment
    from fedclass.experiment.launch import run_one as run
    from fedclass.experiment.recipe import load
    from fedclass.experiment.trained import Evaluation, Prediction, TrainedModel, load_model
    from fedclass.methods import METHODS, Batch, ClientContext, FedAvg
    from fedclass.runs.dataframe import results
    from fedclass.studies import compare, sweep, table

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
    "compare": "fedclass.studies",
    "load": "fedclass.experiment.recipe",
    "load_model": "fedclass.experiment.trained",
    "report": "fedclass.report",
    "results": "fedclass.runs.dataframe",
    "run": "fedclass.experiment.launch",
    "sweep": "fedclass.studies",
    "table": "fedclass.studies",
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
    "compare",
    "load",
    "load_model",
    "report",
    "results",
    "run",
    "sweep",
    "table",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedclass' has no attribute {name!r}")
    home = importlib.import_module(_HOMES[name])
    if name == "report":
        return home  # a package that can be called
    return getattr(home, "run_one" if name == "run" else name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
