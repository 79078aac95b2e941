"""What a method keeps from task to task, in bytes, so that methods can be compared at equal memory."""

from math import prod

from fedclass.experiment.curriculum import Curriculum
from fedclass.methods.declare import Sizes, Specs
from fedclass.models.head import with_shapes_for
from fedclass.wire import nbytes


def memory_bytes(curriculum: Curriculum) -> dict[str, int]:
    """The peak, for the classes known so far, at the server and at all clients together.

    exemplars: their pixels, one byte each; for a method that trains on all images so far, those of all images.  rows:
    tensors kept with each exemplar, such as logits.  clients, server: the method's own state there, such as control
    variates or a generator.  teacher: the model of the previous task, at every client.  The model itself is not
    counted: every method has one.
    """
    experiment, facts = curriculum.experiment, curriculum.facts()
    declared, model = experiment.method.declare(), curriculum.initial
    sizes = Sizes.of(model, len(curriculum.schedule.classes))
    clients, images = len(facts.counts), max(facts.exemplars, default=0)
    if declared.replay == "all":
        images = sum(map(sum, facts.counts))

    def total(specs: Specs) -> int:
        return sum(spec.nbytes(sizes) for spec in specs.values())

    return {
        "exemplars": images * prod(curriculum.image),
        "rows": images * total(declared.rows),
        "clients": clients * total(declared.client),
        "server": total({**declared.server, **experiment.server.declare()}),
        "teacher": clients * nbytes(with_shapes_for(model.packed, sizes.classes))
        if declared.teacher == "previous task"
        else 0,
    }
