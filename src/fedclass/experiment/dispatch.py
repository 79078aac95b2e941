"""Jobs go out to clients; usable updates come back."""

from collections.abc import Callable, Iterator, Sequence

from fedclass.engines.base import Engine
from fedclass.experiment.checkpoint import Totals
from fedclass.federation.server import Missing, usable
from fedclass.methods.base import Method
from fedclass.methods.declare import Sizes
from fedclass.models.incremental import IncrementalModel
from fedclass.runs.events import Event, UpdateMissing, UpdateReceived, UpdateRejected
from fedclass.wire import Job, Update, nbytes


class Dispatch:
    """Runs jobs on an engine, counts bytes, reports what arrives, and leaves out updates that cannot be used.

    model: the global model; updates must fit it.  totals: where bytes are counted.
    """

    def __init__(
        self,
        engine: Engine,
        method: Method,
        model: IncrementalModel,
        tell: Callable[[Event], None],
        totals: Totals,
    ) -> None:
        self.engine, self.method, self.model, self.tell, self.totals = engine, method, model, tell, totals

    def run(self, jobs: Sequence[Job], rejected: list[int] | None = None) -> Iterator[Update]:
        """The usable updates, one at a time. rejected: a list that collects the clients whose update was not usable."""
        task, round = jobs[0].task, jobs[0].round

        def reject(client: int, reason: str) -> None:
            if rejected is not None:
                rejected.append(client)
            self.tell(UpdateRejected(task=task, round=round, client=client, reason=reason))

        return usable(self._received(jobs), jobs, self.method, Sizes.of(self.model), reject)

    def _received(self, jobs: Sequence[Job]) -> Iterator[Update]:
        task, round = jobs[0].task, jobs[0].round
        for done, update in enumerate(self.engine.run(jobs), start=1):
            if isinstance(update, Missing):
                self.tell(UpdateMissing(task=task, round=round, client=update.client, reason=update.reason))
                continue
            self.totals.bytes_up += nbytes(update.weights) + nbytes(update.extras)
            self.tell(UpdateReceived(task=task, round=round, done=done, of=len(jobs)))
            yield update
