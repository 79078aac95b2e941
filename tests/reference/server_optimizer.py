"""FedAvgM and FedAdam, number by number."""


def momentum(before: list[float], means: list[list[float]], *, eta: float, beta: float) -> list[float]:
    """means[t][i]: by how much the clients' mean moved parameter i in round t."""
    x, m = list(before), [0.0] * len(before)
    for deltas in means:
        for i, delta in enumerate(deltas):
            m[i] = beta * m[i] + delta
            x[i] += eta * m[i]
    return x


def adam(
    before: list[float], means: list[list[float]], *, eta: float, beta1: float, beta2: float, tau: float
) -> list[float]:
    """Reddi et al. 2021, Algorithm 2, without bias correction, v_{-1} = tau^2."""
    x, m, v = list(before), [0.0] * len(before), [tau**2] * len(before)
    for deltas in means:
        for i, delta in enumerate(deltas):
            m[i] = beta1 * m[i] + (1 - beta1) * delta
            v[i] = beta2 * v[i] + (1 - beta2) * delta * delta
            x[i] += eta * m[i] / (v[i] ** 0.5 + tau)
    return x
