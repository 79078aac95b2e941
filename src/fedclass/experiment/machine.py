"""What the exact bits of a result depend on besides the recipe."""

import platform

import torch


def fingerprint() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
