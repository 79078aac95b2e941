"""SCAFFOLD: control variates against client drift (Karimireddy et al., 2020), with exemplars."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedclass.methods.base import ClientContext, FedAvg, Outcome, ServerContext, State
from fedclass.methods.declare import Declaration, Spec
from fedclass.wire import Update, Weights


@dataclass(frozen=True, kw_only=True)
class SCAFFOLD(FedAvg):
    """FedAvg whose clients correct each gradient by c - c_i; all control variates 0 would be FedAvg.

        g <- g - c_i + c                              every step (Alg. 1, line 10)
        c_i+ = c_i - c + (x - y_i) / (K * eta)        after K steps from x to y_i (line 12, option II)
        c <- c + sum over the round's clients of (c_i+ - c_i) / N    N: all clients (line 17)

    Option II assumes plain SGD: set optimizer.momentum=0 and optimizer.weight_decay=0 for the paper's algorithm. With
    momentum the estimate is too large by up to 1 / (1 - momentum). Other optimizers, clipped gradients and a learning
    rate of the head's own are refused. Entries of new classes begin at 0.
    """

    source = "Karimireddy et al., 2020, arXiv 1910.06378"
    fidelity = "re-implemented from the paper (Alg. 1, option II)"

    def declare(self) -> Declaration:
        control = Spec(("parameters",))
        return Declaration(
            balances=True,
            server={"control": control},
            broadcast=("control",),
            client={"control": control},
            uploads={"train": {"control_change": control}},
            assumes_sgd=True,
        )

    def adjust(self, client: ClientContext, gradient: Tensor) -> None:
        gradient.add_(client.broadcast["control"])
        if "control" in client.state:
            gradient.sub_(client.state["control"])

    def end_round(self, client: ClientContext) -> Outcome:
        moved = client.received_flat - client.model.flat
        before = client.state.get("control", torch.zeros_like(moved))
        now = before - client.broadcast["control"] + moved / (client.steps * client.rates.learning_rate)
        return Outcome(state={"control": now}, uploads={"control_change": now - before})

    def start(self, server: ServerContext) -> State:
        return {"control": torch.zeros(server.sizes.parameters)}

    def aggregate(self, server: ServerContext, updates: Iterable[Update]) -> tuple[Weights, State]:
        change = torch.zeros(server.sizes.parameters, dtype=torch.float64)

        def counted() -> Iterator[Update]:
            for update in updates:
                change.add_(update.extras["control_change"])
                yield update

        weights = server.mean(counted())
        return weights, {"control": (server.state["control"] + change / server.clients).float()}
