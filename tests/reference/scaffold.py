"""SCAFFOLD (Karimireddy et al., 2020, Alg. 1, option II), written out parameter by parameter."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Weights

Named = dict[str, Tensor]


def scaffold_round(
    model: IncrementalModel,
    weights: Weights,
    c: Named,
    controls: Sequence[Named],
    data: Sequence[tuple[Tensor, Tensor]],
    sizes: Sequence[int],
    *,
    steps: int,
    learning_rate: float,
) -> tuple[Named, Named, list[Named]]:
    """All clients take `steps` steps on all of their data at once. Returns weights, c and the clients' controls."""
    results: list[Named] = []
    after: list[Named] = []
    for (images, labels), c_i in zip(data, controls, strict=True):
        model.load(weights)
        model.train()
        x = {name: p.detach().clone() for name, p in model.named_parameters()}
        for _ in range(steps):
            loss = F.cross_entropy(model(images), labels)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for (name, p), g in zip(model.named_parameters(), gradients, strict=True):
                    p -= learning_rate * (g - c_i[name] + c[name])
        y = {name: p.detach().clone() for name, p in model.named_parameters()}
        after.append({name: c_i[name] - c[name] + (x[name] - y[name]) / (steps * learning_rate) for name in x})
        results.append({name: t.clone() for name, t in model.state_dict().items()})
    total = sum(sizes)
    mean = {
        name: sum(n / total * r[name] for n, r in zip(sizes, results, strict=True))
        if results[0][name].is_floating_point()
        else torch.stack([r[name] for r in results]).amax(dim=0)
        for name in results[0]
    }
    c = {
        name: c[name] + sum(new[name] - old[name] for new, old in zip(after, controls, strict=True)) / len(data)
        for name in c
    }
    return mean, c, after  # type: ignore[return-value]


def widened(named: Named, like: Named) -> Named:
    """With zeros for the head's new rows."""
    wide = {name: torch.zeros_like(t) for name, t in like.items()}
    for name, t in named.items():
        wide[name][: len(t)] = t
    return wide
