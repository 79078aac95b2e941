"""Steps of optimizers, number by number: Sutskever's momentum as in torch, and AdamW (Loshchilov and Hutter, 2019)."""

from math import sqrt


def clipped(gradients: list[float], most: float) -> list[float]:
    """All of a step's gradient, scaled down to a norm of `most` if it is longer."""
    norm = sqrt(sum(g * g for g in gradients))
    return [g * most / norm for g in gradients] if most and norm > most else gradients


def sgd(
    w: list[float], steps: list[list[float]], rates: list[float], decays: list[float], *, momentum: float, clip: float
) -> list[float]:
    """w after steps with these gradients; each parameter has its own learning rate and weight decay."""
    w, velocity = list(w), [0.0] * len(w)
    for number, gradients in enumerate(steps):
        for i, g in enumerate(clipped(gradients, clip)):
            g += decays[i] * w[i]
            velocity[i] = g if number == 0 else momentum * velocity[i] + g
            w[i] -= rates[i] * velocity[i]
    return w


def adamw(
    w: list[float],
    steps: list[list[float]],
    rates: list[float],
    decays: list[float],
    *,
    beta1: float,
    beta2: float,
    clip: float,
    epsilon: float = 1e-8,
) -> list[float]:
    w, m, v = list(w), [0.0] * len(w), [0.0] * len(w)
    for number, gradients in enumerate(steps, start=1):
        for i, g in enumerate(clipped(gradients, clip)):
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g * g
            w[i] -= rates[i] * decays[i] * w[i]
            w[i] -= rates[i] * (m[i] / (1 - beta1**number)) / (sqrt(v[i] / (1 - beta2**number)) + epsilon)
    return w
