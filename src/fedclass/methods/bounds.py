"""Bounds of what a method with exemplars can reach: FedAvg without any, and FedAvg with everything."""

from dataclasses import dataclass

from fedclass.methods.base import FedAvg
from fedclass.methods.declare import Declaration


@dataclass(frozen=True, kw_only=True)
class FineTune(FedAvg):
    """The lower bound: FedAvg without exemplars, whatever [memory] says; the stored recipe has per_client = 0."""

    source = "a lower bound, no published method"
    fidelity = "FedAvg without exemplars, bit for bit"

    @property
    def variant_name(self) -> str:
        return "no exemplars"

    def declare(self) -> Declaration:
        return Declaration(replay="none", balances=True, begins_like_fedavg=type(self) is FineTune)


@dataclass(frozen=True, kw_only=True)
class Joint(FedAvg):
    """The upper bound, and no method to deploy: FedAvg that trains on all images of all tasks so far.

    It ignores the memory budget: every client replays all images it has ever had, and all of them count in the mean.
    Beside methods with a budget, it shows what the budget costs. For simulations only: sites refuse it.
    """

    source = "an upper bound, no published method"
    fidelity = "FedAvg on all images so far, bit for bit in the first task"

    @property
    def variant_name(self) -> str:
        return "bound, all images"

    def declare(self) -> Declaration:
        return Declaration(replay="all", balances=True, begins_like_fedavg=type(self) is Joint)
