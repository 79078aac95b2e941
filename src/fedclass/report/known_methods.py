"""What reports know about methods, in one place and without torch.

A method that is not listed, new or a user's own, is named by its id and gets a free colour; its usual variant is called
"standard".
"""

from dataclasses import dataclass

# FedCLASS adds those of these to the name of its variant that differ from the variant's own values.
FORM = frozenset(
    {
        "method.temperature",
        "method.student_temperature",
        "method.teacher_temperature",
        "method.mass_temperature",
        "method.stop_gradient",
        "method.clip_ratio",
    }
)
MEMORY = frozenset({"memory.per_client", "memory.per_class"})  # the variants of bounds say what is trained on instead


@dataclass(frozen=True, kw_only=True)
class Known:
    """title: as written in papers.  colour: its place in the palette, the same in every report.  usual: the variant
    with this colour, if there are several.  told: keys of the recipe that the variant's name already implies.
    """

    title: str | None = None
    colour: int | None = None
    usual: str = "standard"
    told: frozenset[str] = frozenset()


KNOWN = {
    "fedavg": Known(title="FedAvg", colour=0),
    "fedclass": Known(title="FedCLASS", colour=1, usual="paper", told=FORM),
    "glfc": Known(title="GLFC", colour=2, usual="released"),
    "fedicarl": Known(title="FedICARL", colour=3, usual="icarl, nearest mean", told=frozenset({"method.classifier"})),
    "fedwa": Known(title="FedWA", colour=4, usual="wa"),
    "fedclass-tuned": Known(title="FedCLASS-tuned", colour=5, told=FORM),
    "fedeven": Known(title="FedEven", colour=6),
    "scaffold": Known(title="SCAFFOLD"),
    "derpp": Known(title="DER++"),
    "fedprox": Known(title="FedProx"),
    "lwf": Known(title="LwF"),
    "ewc": Known(title="EWC"),
    "fedgkd": Known(title="FedGKD"),
    "lga": Known(title="LGA"),
    "glfc-full": Known(title="GLFC", usual="glfc"),
    "target": Known(title="TARGET"),
    "refed": Known(title="Re-Fed"),
    "analytic": Known(title="Analytic head"),
    "finetune": Known(usual="no exemplars", told=MEMORY),
    "joint": Known(usual="bound, all images", told=MEMORY),
}


def about_method(method: str) -> Known:
    return KNOWN.get(method, Known())
