"""Methods by name. A new one is a file, a line here, a test, and a row in the reproduction page."""

from fedclass.methods.base import Batch, ClientContext, FedAvg
from fedclass.methods.fedclass import FedCLASS
from fedclass.methods.fedclass_tuned import FedCLASSTuned
from fedclass.methods.glfc import GLFC
from fedclass.methods.icarl import FedICARL
from fedclass.methods.wa import FedWA

METHODS: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedclass": FedCLASS,
    "fedclass-tuned": FedCLASSTuned,
    "glfc": GLFC,
    "fedicarl": FedICARL,
    "fedwa": FedWA,
}

__all__ = ["GLFC", "METHODS", "Batch", "ClientContext", "FedAvg", "FedCLASS", "FedCLASSTuned", "FedICARL", "FedWA"]
