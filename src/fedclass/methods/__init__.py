"""Methods by name. A new one is a file, an entry here, a test, and a row in docs/fidelity.md."""

from fedclass.methods.analytic import Analytic
from fedclass.methods.base import Batch, ClientContext, FedAvg, Method, Outcome, ServerContext, State
from fedclass.methods.bounds import FineTune, Joint
from fedclass.methods.declare import Balance, Declaration, Spec
from fedclass.methods.derpp import DERpp
from fedclass.methods.ewc import EWC
from fedclass.methods.fedclass import FedCLASS
from fedclass.methods.fedclass_tuned import FedCLASSTuned
from fedclass.methods.fedeven import FedEven
from fedclass.methods.fedgkd import FedGKD
from fedclass.methods.fedprox import FedProx
from fedclass.methods.glfc import GLFC
from fedclass.methods.glfc_full import GLFCFull
from fedclass.methods.icarl import FedICARL
from fedclass.methods.lga import LGA
from fedclass.methods.lwf import LwF
from fedclass.methods.refed import ReFed
from fedclass.methods.scaffold import SCAFFOLD
from fedclass.methods.target import TARGET
from fedclass.methods.wa import FedWA

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "fedeven": FedEven,
    "fedclass": FedCLASS,
    "fedclass-tuned": FedCLASSTuned,
    "glfc": GLFC,
    "glfc-full": GLFCFull,
    "lga": LGA,
    "fedicarl": FedICARL,
    "fedwa": FedWA,
    "scaffold": SCAFFOLD,
    "derpp": DERpp,
    "fedprox": FedProx,
    "lwf": LwF,
    "ewc": EWC,
    "fedgkd": FedGKD,
    "refed": ReFed,
    "target": TARGET,
    "analytic": Analytic,
    "finetune": FineTune,
    "joint": Joint,
}

# What a method is written with. The classes of methods are reached through METHODS, or imported from their files.
__all__ = [
    "METHODS",
    "Balance",
    "Batch",
    "ClientContext",
    "Declaration",
    "FedAvg",
    "Method",
    "Outcome",
    "ServerContext",
    "Spec",
    "State",
]
