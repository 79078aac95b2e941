"""FedCLASS: new-class augmented self-distillation (Wu et al., 2024, arXiv 2401.00622)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedclass.errors import ConfigError
from fedclass.losses import augmented_distillation, released_distillation
from fedclass.methods.base import Batch, ClientContext, FedAvg, Teacher

Variant = Literal["tuned", "paper", "released"]


@dataclass(frozen=True)
class Form:
    """The three things that Eq. 5 and 9 leave open."""

    temperature: float
    student_temperature: float
    stop_gradient: bool


FORMS: dict[str, Form] = {
    "tuned": Form(temperature=5.0, student_temperature=3.0, stop_gradient=True),
    "paper": Form(temperature=3.0, student_temperature=1.0, stop_gradient=True),
}


@dataclass(frozen=True, kw_only=True)
class FedCLASS(FedAvg):
    """FedAvg plus beta * KL(student || z) from the second task on (Eq. 7); beta = 0 is FedAvg.

    z completes the previous global model's scores over old classes with the current model's over new ones (Eq. 5).
    """

    teacher: ClassVar[Teacher | None] = "previous task"

    beta: Annotated[float, Field(ge=0, description="weight of the distillation")] = 5.0
    variant: Annotated[
        Variant,
        Field(description="tuned: our default; paper: Eq. 5 and 9 to the letter; released: the authors' code"),
    ] = "tuned"
    temperature: Annotated[float | None, Field(gt=0, description="theta, softens z")] = None
    student_temperature: Annotated[float | None, Field(gt=0, description="softens the student")] = None
    stop_gradient: Annotated[bool | None, Field(description="z is a constant to the gradient")] = None

    def __post_init__(self) -> None:
        """What is not given is the variant's, so that a stored recipe says all of it."""
        given = (self.temperature, self.student_temperature, self.stop_gradient)
        if self.variant == "released":
            if given != (None, None, None):
                raise ConfigError('[method] variant = "released" has its own temperatures; remove them, or the variant')
            return
        for name, value in vars(FORMS[self.variant]).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    @property
    def form(self) -> Form | None:
        """None for the released arithmetic."""
        if self.temperature is None or self.student_temperature is None or self.stop_gradient is None:
            return None
        return Form(self.temperature, self.student_temperature, self.stop_gradient)

    @property
    def variant_name(self) -> str:
        form = self.form
        if form is None or form == FORMS[self.variant]:
            return self.variant
        z = "z stopped" if form.stop_gradient else "through z"
        return f"student {form.student_temperature:g}, theta {form.temperature:g}, {z}"

    def loss(self, client: ClientContext, batch: Batch) -> Tensor:
        logits = client.model(batch.images)
        loss = F.cross_entropy(logits, batch.labels)
        if batch.previous is None or self.beta == 0:
            return loss
        return loss + self.beta * self.distillation(logits, batch.previous)

    def distillation(self, current: Tensor, previous: Tensor) -> Tensor:
        if self.form is None:
            return released_distillation(current, previous)
        return augmented_distillation(current, previous, **vars(self.form))
