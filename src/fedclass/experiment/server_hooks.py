"""The method's hooks at the server: what they are given, and what they give back."""

from collections.abc import Sequence

from fedclass.errors import RunError
from fedclass.experiment.curriculum import Curriculum
from fedclass.federation.aggregation import Aggregation
from fedclass.methods.base import ServerContext
from fedclass.methods.declare import Sizes, misfit
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import generator, seed_streams
from fedclass.wire import Tensors, Weights, sha256


class ServerHooks:
    """model: the run's own, as large as the head is at the moment."""

    def __init__(self, curriculum: Curriculum, model: IncrementalModel) -> None:
        self.curriculum, self.model = curriculum, model
        self.experiment, self.method = curriculum.experiment, curriculum.experiment.method
        self.declared = self.method.declare()
        self._sent: tuple[str, Tensors] = "", {}  # the last broadcast

    def seed(self, hook: str, *where: int) -> None:
        """Before the user's code runs here."""
        seed_streams(self.experiment.seed_of("training"), "user code", "server", hook, *where)

    def context(self, task: int, round: int, weights: Weights, own: Tensors) -> ServerContext:
        """What a hook is given.  own: the method's state."""
        new = self.curriculum.schedule.new_classes(task)

        def build() -> IncrementalModel:
            model = self.curriculum.build().to(self.model.device)
            model.grow_to(new.stop, seed=self.experiment.seed_of("initialisation"))
            return model

        return ServerContext(
            task=task,
            round=round,
            rounds=self.experiment.train.rounds,
            old_classes=new.start,
            sizes=Sizes.of(self.model),
            clients=len(self.curriculum.everyone()),
            weights=weights,
            state={name: own[name] for name in self.declared.server if name in own},  # in the declared order
            generator=generator(self.experiment.seed_of("training"), "server", "task", task, "round", round),
            device=self.model.device,
            build=build,
            mean=Aggregation(self.experiment.aggregation, weights, self.curriculum),
        )

    def checked(self, hook: str, own: Tensors) -> Tensors:
        """What a hook has returned as the method's state; RunError if that is not what the method declares."""
        if (fault := misfit(own, self.declared.server, Sizes.of(self.model))) is not None:
            raise RunError(f"{self.experiment.method_name}: {type(self.method).__name__}.{hook}: {fault}")
        return {name: tensor.detach().cpu() for name, tensor in own.items()}

    def broadcast(self, names: Sequence[str], own: Tensors) -> Tensors:
        """The same object as before if it has the same content, so that it need not be sent again."""
        now = {name: own[name] for name in names if name in own}
        if sha256(now) != self._sent[0]:
            self._sent = sha256(now), now
        return self._sent[1]
