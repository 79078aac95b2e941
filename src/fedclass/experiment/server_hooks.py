"""The method's hooks at the server: what they get, and what they return."""

from collections.abc import Sequence

from fedclass.errors import HookError
from fedclass.experiment.curriculum import Curriculum
from fedclass.federation.aggregation import Aggregation
from fedclass.federation.hooks import Checks, failures_named
from fedclass.methods.base import ServerContext
from fedclass.methods.declare import Sizes
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import generator, seed_streams
from fedclass.wire import Tensors, Weights, sha256


class ServerHooks:
    """model: the global model, with its current head."""

    def __init__(self, curriculum: Curriculum, model: IncrementalModel) -> None:
        self.curriculum, self.model = curriculum, model
        self.experiment, self.method = curriculum.experiment, curriculum.experiment.method
        self.declared = self.method.declare()
        self._sent: tuple[str, Tensors] = "", {}  # the last broadcast

    def seed(self, hook: str, *where: int) -> None:
        """Seed the global random streams before user code runs."""
        seed_streams(self.experiment.seed_of("training"), "user code", "server", hook, *where)

    def context(self, task: int, round: int, weights: Weights, own: Tensors) -> ServerContext:
        """What a hook gets.  own: the method's state."""
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
            mean=Aggregation(self.experiment.aggregation, weights, self.curriculum, at=(task, round)),
            normalisation=self.model.normalisation or self.curriculum.normalisation,
        )

    def call(self, hook: str, server: ServerContext, *rest: object) -> tuple[Weights, Tensors]:
        """The weights and the state that a hook returns; HookError if they are not as declared.

        `start` returns a state only.
        """
        check = Checks(self.where(server.task, server.round), self.method, HookError)
        unchanged = check.unchanged(**{"server.state": server.state, "server.weights": server.weights})
        with failures_named(check.where, self.method, HookError):
            made = getattr(self.method, hook)(server, *rest)
        unchanged(hook)
        if hook == "start":
            made = server.weights, made
        else:
            check.weights_and_state(hook, made, server.weights, sane=hook != "aggregate")
        weights, own = made
        check.tensors(hook, own, self.declared.server, server.sizes)
        return weights, {name: tensor.detach().cpu() for name, tensor in own.items()}

    def where(self, task: int, round: int) -> str:
        rounds = self.experiment.train.rounds
        return f"task {task + 1}, {f'round {round + 1}' if round < rounds else 'end of the task'}"

    def broadcast(self, names: Sequence[str], own: Tensors) -> Tensors:
        """The same object as before if the content is the same, so that it is not sent again."""
        now = {name: own[name] for name in names if name in own}
        if sha256(now) != self._sent[0]:
            self._sent = sha256(now), now
        return self._sent[1]
