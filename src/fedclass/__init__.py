"""Federated class-incremental learning: FedCLASS and its baselines."""

__version__ = "0.1.0"
