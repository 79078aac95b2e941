"""FedCLASS: new-class augmented self-distillation (Wu et al., 2024, arXiv 2401.00622)."""

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.losses import augmented_distillation
from fedclass.methods.base import Batch, ClientContext, FedAvg
from fedclass.methods.declare import Declaration

Variant = Literal["tuned", "paper", "released"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """How z and the divergence are computed: the keywords of `losses.augmented_distillation`."""

    temperature: float
    student_temperature: float
    teacher_temperature: float | None = None  # theta, as in the paper
    mass_temperature: float | None = None  # theta, as in the paper
    stop_gradient: bool = True


# "tuned" was chosen by measurement: docs/decisions/0001-fedclass-defaults.md.
FORMS: dict[str, Form] = {
    "tuned": Form(
        temperature=5.0, student_temperature=3.0, teacher_temperature=3.0, mass_temperature=3.0, stop_gradient=False
    ),
    "paper": Form(temperature=3.0, student_temperature=1.0),
    "released": Form(temperature=5.0, student_temperature=3.0, mass_temperature=3.0, stop_gradient=False),
}


@dataclass(frozen=True, kw_only=True)
class FedCLASS(FedAvg):
    """FedAvg plus beta * KL(student || z) from the second task on (Eq. 7); beta = 0 is FedAvg.

    z completes the previous global model's scores over old classes with the current model's over new ones (Eq. 5). The
    default variant reads z's parts at two temperatures, so that z need not sum to 1; `paper` is the paper's formula.
    """

    beta: Annotated[float, Field(ge=0, description="weight of the distillation")] = 5.0
    variant: Annotated[
        Variant,
        Field(description="tuned: our default; paper: Eq. 5 and 9 to the letter; released: the authors' code"),
    ] = "tuned"
    temperature: Annotated[float | None, Field(gt=0, description="theta, softens z")] = None
    student_temperature: Annotated[float | None, Field(gt=0, description="softens the student; 1 in Eq. 9")] = None
    teacher_temperature: Annotated[float | None, Field(gt=0, description="softens the teacher; theta in Eq. 5")] = None
    mass_temperature: Annotated[float | None, Field(gt=0, description="of z's old mass; theta in Eq. 5")] = None
    stop_gradient: Annotated[bool | None, Field(description="z is a constant to the gradient")] = None

    def __post_init__(self) -> None:
        """What is not given is the variant's, so that a stored recipe says all of it."""
        for name, value in vars(FORMS[self.variant]).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def declare(self) -> Declaration:
        return Declaration(teacher="previous task", begins_like_fedavg=type(self) is FedCLASS)

    @property
    def form(self) -> Form:
        return Form(**{f.name: getattr(self, f.name) for f in fields(Form)})

    @property
    def variant_name(self) -> str:
        """The variant, and whatever differs from it."""
        changed = {k: v for k, v in vars(self.form).items() if v != getattr(FORMS[self.variant], k)}
        return ", ".join([self.variant, *(f"{name}={value}" for name, value in changed.items())])

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits = client.model(batch.images)
        loss = F.cross_entropy(logits, batch.labels)
        if batch.previous is None or self.beta == 0:
            return loss
        return loss + self.beta * augmented_distillation(logits, batch.previous, **vars(self.form))
