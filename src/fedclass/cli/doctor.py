"""fedclass doctor."""

import sys
from pathlib import Path

from fedclass.errors import FedclassError


def doctor() -> None:
    """Check this machine: versions, cores, GPU, data folder, and one real training step. Exit code 0 if all is well."""
    import platform

    import torch

    import fedclass
    from fedclass.cli.display import console
    from fedclass.data.source import cache_folder
    from fedclass.engines.starting import cores

    def line(name: str, value: str) -> None:
        console.print(f"{name:<14} {value}", highlight=False)

    line("fedclass", f"{fedclass.__version__} ({Path(fedclass.__file__).parent})")
    line("python", f"{platform.python_version()} ({sys.executable})")
    line("torch", f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()} kernels")
    line("cores", f"{cores()}; runs use all of them if that saves time, or as many as --workers says")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none that torch can use"
    line("GPU", gpu)
    folder = cache_folder()
    line("data folder", f"{folder}" + ("" if folder.exists() else " (not there yet)") + "; FEDCLASS_DATA moves it")
    line("training step", _training_step())


def _training_step() -> str:
    """One small run in memory, with the real data, model and client."""
    import torch

    from fedclass.experiment.recipe import load
    from fedclass.experiment.setup import prepare
    from fedclass.federation.store import MemoryStore
    from fedclass.models.weights import flaw
    from fedclass.wire import Job

    small = ["data.fraction=0.01", "data.test_fraction=0.01", "partition.kind=iid", "memory.per_client=0"]
    setup = prepare(load(None, small))
    model = setup.build()
    model.grow_to(5, seed=0)
    before = model.weights()
    update = setup.client(MemoryStore()).run(Job(0, 0, 0, "train", before, None))
    problem = flaw(update.weights, before)
    if problem or all(torch.equal(update.weights[name], before[name]) for name in before):
        raise FedclassError(f"a training step on drawn digits went wrong: {problem or 'the weights did not change'}")
    return f"ok, loss {update.metrics['loss']:.2f}"
