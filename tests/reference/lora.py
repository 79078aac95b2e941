"""LoRA, element by element."""

from collections.abc import Sequence

Matrix = Sequence[Sequence[float]]


def adapted(weight: Matrix, up: Matrix, down: Matrix, *, alpha: float) -> list[list[float]]:
    """W_ij + alpha / r * sum_k B_ik A_kj."""
    rank = len(down)
    return [
        [weight[i][j] + alpha / rank * sum(up[i][k] * down[k][j] for k in range(rank)) for j in range(len(weight[0]))]
        for i in range(len(weight))
    ]
