"""FedCLASS with other temperatures: a loss of ours, not the paper's."""

from dataclasses import dataclass, replace

from fedclass.methods.declare import Declaration
from fedclass.methods.fedclass import Form, SelfDistillation

# How it was found: docs/decisions/0001-fedclass-defaults.md.
TUNED = Form(
    temperature=4.0, student_temperature=2.0, teacher_temperature=2.0, mass_temperature=2.0, stop_gradient=False
)


@dataclass(frozen=True, kw_only=True)
class FedCLASSTuned(SelfDistillation):
    """Ours, not the paper's: FedCLASS with student, teacher and old mass at 2, new classes in z at 4, through z.

    z need not sum to 1, so the divergence can be negative. The teacher is softened at the student's temperature, so a
    student that agrees with the teacher is equally sharp. beta = 0 is FedAvg.
    """

    source = "ours, after Wu et al., 2024, arXiv 2401.00622"
    fidelity = "ours: compared with a literal oracle"

    def declare(self) -> Declaration:
        return replace(super().declare(), begins_like_fedavg=type(self) is FedCLASSTuned)

    @property
    def usual(self) -> Form:
        return TUNED
