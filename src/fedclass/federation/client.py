"""A client's work: the one training loop, for every method and engine."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedclass.data.batches import Transform, as_input, normalise, varied
from fedclass.data.memory import Exemplars, MemorySettings, remember
from fedclass.data.partition import Index
from fedclass.errors import ClientError, ConfigError
from fedclass.federation.client_stream import ClientStream
from fedclass.federation.faults import FaultSettings, epochs_done
from fedclass.federation.hooks import Checks, failures_named
from fedclass.federation.job_checks import frozen_flaw
from fedclass.federation.optimizer import OptimizerSettings, Steps
from fedclass.federation.quotas import check_quotas, counted
from fedclass.federation.selection import BY_MODEL, Selection, ranked, scores_flaw
from fedclass.federation.server_optimizer import Weighting
from fedclass.federation.store import ClientState, ClientStore, Kept
from fedclass.federation.teacher import INFERENCE_BATCH, Teacher
from fedclass.federation.train_settings import TrainSettings, chosen_device
from fedclass.losses import log_prior
from fedclass.methods.base import Batch, ClientContext, Method, Outcome, Progress, Rates, no_task_data
from fedclass.methods.declare import Balance, Sizes, Specs, grown
from fedclass.models.head import with_first_classes
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import array_generator, generator, seed_streams
from fedclass.wire import Job, Tensors, Update, Weights


def _purpose(job: Job) -> tuple[object, ...]:
    return job.phase, "client", job.client, "task", job.task, "round", job.round


class Client:
    """Does the jobs of any client, one after the other, on one resident model.

    All state that outlives a job is in the store; everything else is derived from the job and can be dropped.
    Global random streams are seeded before any user code runs; the caller may restore them.
    """

    def __init__(
        self,
        stream: ClientStream,
        method: Method,
        *,
        train: TrainSettings,
        optimizer: OptimizerSettings,
        weighting: Weighting,
        memory: MemorySettings,
        normalisation: tuple[Sequence[float], Sequence[float]],
        build: Callable[[], IncrementalModel],
        store: ClientStore,
        seed: int,
        transform: Transform | None = None,
        faults: FaultSettings | None = None,
    ) -> None:
        self.stream, self.method, self.train, self.store, self.seed = stream, method, train, store, seed
        self.optimizer, self.weighting = optimizer, weighting
        self.declared = method.declare()
        self.memory = memory
        self._select: Selection = self.declared.select or memory.select
        self.faults = faults or FaultSettings()
        self.device = chosen_device(train.device)
        self.model = build().to(self.device)
        self.normalisation, self.transform = self.model.normalisation or normalisation, transform
        self._vary = partial(varied, augment=train.augment, transform=transform, normalisation=self.normalisation)
        self.teacher = Teacher(build().to(self.device)) if self.declared.teacher else None
        self._images = torch.from_numpy(stream.train.images)
        self._targets = torch.from_numpy(stream.train.labels)

    def run(self, job: Job) -> Update:
        if (fault := frozen_flaw(job, self.model)) is not None:
            raise ClientError(f"{job.where}: {fault}")
        with failures_named(job.where, self.method), self.model.frozen_kept():
            phases = {"train": self._train, "count": self._count, "end_task": self._end_task}
            return phases[job.phase](job)

    def _train(self, job: Job) -> Update:
        state = self._caught_up(job)
        new = self.stream.new_data(job.client, job.task, job.round)
        held = self._held(job, state, new)
        index = new if self.declared.replay == "own" else held
        if not len(index):  # no step is taken, so the method's state stays as it is; the server uses no such update
            return Update(job.client, job.task, job.round, {}, 0, {"loss": 0.0, "samples": 0.0})
        self.model.load(job.weights)
        self.model.train()
        batches_per_epoch = math.ceil(len(index) / self.train.batch_size)
        where = {"client": job.client, "task": job.task, "round": job.round}
        epochs = epochs_done(self.faults, self.train.local_epochs, seed=self.seed, **where)
        context = self._context(job, state, held, steps=epochs * batches_per_epoch)
        steps = Steps(self.optimizer, self.model)
        adjusts = type(self.method).adjust is not Method.adjust
        check, unchanged = Checks(job.where, self.method), self._unchanged(job, context)
        total = torch.zeros((), device=self.device)
        for number, batch in enumerate(self._batches(job, index, context, epochs)):
            if number % batches_per_epoch == 0:
                steps.set(self._rates(job, epoch=number // batches_per_epoch))
            steps.clear()
            loss = self._loss(job, context, batch)
            loss.backward()
            if adjusts:
                gradient = self.model.flat.grad
                assert gradient is not None
                check.nothing("adjust", self.method.adjust(context, gradient))  # type: ignore[func-returns-value]
            steps.step()
            with torch.no_grad():
                check.nothing("after_step", self.method.after_step(context))  # type: ignore[func-returns-value]
            total += loss.detach() * len(batch.labels)
        unchanged("loss", "adjust", "after_step")
        with torch.no_grad():
            outcome = self.method.end_round(context)
        check.outcome(outcome)
        unchanged("end_round")
        samples = epochs * len(index)
        counted = self.weighting == "with-exemplars" or self.declared.replay == "all"
        update = Update(
            client=job.client,
            task=job.task,
            round=job.round,
            weights=self.model.weights(),
            examples=len(held) if counted else len(new),
            metrics={"loss": float(total) / samples, "samples": float(samples)},
            extras=self._checked(job, "end_round", outcome.uploads, self.declared.uploads.get("train", {})),
        )
        self._keep(job, state, outcome)  # only now: an update that cannot be sent must leave no trace
        return update

    def _loss(self, job: Job, context: ClientContext, batch: Batch) -> Tensor:
        try:
            loss = self.method.loss(context, batch)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ConfigError(
                f"client {job.client} has a batch of one image, which this model cannot normalise ({error}); "
                "change train.batch_size, or set model.norm=group"
            ) from error
        Checks(job.where, self.method).loss(loss)
        return loss

    def _rates(self, job: Job, *, epoch: int) -> Rates:
        progress = Progress(job.round, self.train.rounds, epoch, self.train.local_epochs)
        rates = self.method.rates(self.optimizer.rates(progress), progress=progress)
        Checks(job.where, self.method).rates(rates)
        return rates

    def _count(self, job: Job) -> Update:
        state = self.store.load(job.client)
        late = [self.stream.new_data(job.client, task) for task in range(state.tasks, job.task + 1)]
        arrived, targets = np.concatenate([np.empty(0, np.int64), *late]), self.stream.train.labels
        return counted(job, state.exemplars, arrived, targets, self.memory, self.stream.classes_until(job.task))

    def _end_task(self, job: Job) -> Update:
        """Choose exemplars with the task's final model, and send what the method declares."""
        uploads = self.declared.uploads.get("end_task", {})
        if uploads or self.declared.rows or self._select in BY_MODEL:
            self.model.load(job.weights)
            self.model.eval()
        state = self.store.load(job.client)
        if state.tasks <= job.task:
            state = self._remember(job, state, job.task + 1)
        extras: Tensors = {}
        if uploads:
            new = self.stream.new_data(job.client, job.task)
            context = self._context(job, state, self._held(job, state, new))
            exemplars, unchanged = self._exemplars(state), self._unchanged(job, context)
            self._seed(job)
            extras = self.method.report(context, exemplars)
            unchanged("report")
        return Update(
            client=job.client,
            task=job.task,
            round=job.round,
            weights={},
            examples=len(state.exemplars),
            metrics={"exemplars": float(len(state.exemplars))},
            extras=self._checked(job, "report", extras, uploads),
        )

    def _seed(self, job: Job) -> None:
        seed_streams(self.seed, "user code", *_purpose(job))

    # What the method keeps and sends.

    def _held(self, job: Job, state: ClientState, new: Index) -> Index:
        """The images that the client has in this task."""
        if self.declared.replay == "all":
            return np.concatenate([*(self.stream.new_data(job.client, task) for task in range(job.task)), new])
        return np.concatenate([new, state.exemplars.index])

    def _prior(self, counts: Tensor) -> Tensor | None:
        balance = self.declared.balance or (Balance() if self.train.balanced else None)
        if balance is None:
            return None
        return log_prior(counts, strength=balance.strength, smoothing=balance.smoothing).float().to(self.device)

    def _context(self, job: Job, state: ClientState, held: Index, *, steps: int = 0) -> ClientContext:
        counts = torch.bincount(self._targets[torch.from_numpy(held)], minlength=self.model.classes)
        old = self.stream.classes_until(job.task) - self.stream.task_sizes[job.task]
        arrived = self.stream.new_data(job.client, job.task, job.round if job.phase == "train" else None)
        made = grown(state.method.tensors, self.declared.client, self.model, state.method.classes)
        return ClientContext(
            model=self.model,
            old_classes=old,
            weights=job.weights,
            counts=counts,
            round=job.round,
            task_sizes=self.stream.task_sizes[: job.task + 1],
            met=frozenset(label for label in state.exemplars.of_class if label < old),
            rates=self._rates(job, epoch=0),
            steps=steps,
            state={name: made[name].to(self.device) for name in self.declared.client if name in made},
            broadcast={n: job.broadcast[n].to(self.device) for n in self.declared.broadcast if n in job.broadcast},
            replay=self._replay(job, state),
            prior=self._prior(counts),
            normalisation=self.normalisation,
            task_data=partial(self._task_data, arrived) if self.declared.task_data else no_task_data,
            seed=self.seed,
            purpose=("context", *_purpose(job)),
        )

    def _unchanged(self, job: Job, context: ClientContext) -> Callable[..., None]:
        given = {"client.state": context.state, "broadcast": context.broadcast, "client.weights": context.weights}
        return Checks(job.where, self.method).unchanged(**given)

    def _keep(self, job: Job, state: ClientState, outcome: Outcome) -> None:
        """Save the method's state, if it has any."""
        if self.declared.client or outcome.state:
            kept = self._checked(job, "end_round", outcome.state, self.declared.client)
            self.store.save(job.client, replace(state, method=Kept(kept, self.model.classes)))

    def _checked(self, job: Job, hook: str, tensors: Tensors, specs: Specs, rows: int | None = None) -> Tensors:
        """What a hook returned, copied to the CPU; ClientError if it is not as declared."""
        Checks(job.where, self.method).tensors(hook, tensors, specs, Sizes.of(self.model), rows=rows, every=True)
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}

    # Batches.

    def _normalised(self, index: Tensor) -> Tensor:
        return normalise(self._images[index], *self.normalisation)

    def _batches(self, job: Job, index: Index, context: ClientContext, epochs: int) -> Iterator[Batch]:
        """`epochs` passes over the images, each in a new order, with the teacher's logits beside them."""
        rng = generator(self.seed, "client", job.client, "task", job.task, "round", job.round)
        images, targets = torch.from_numpy(index), self._targets[torch.from_numpy(index)]
        logits = self._teacher_logits(job, images, context)
        self._seed(job)
        for _ in range(epochs):
            for chosen in torch.randperm(len(index), generator=rng).split(self.train.batch_size):
                inputs = as_input(self._vary(self._images[images[chosen]], rng)).to(self.device)
                previous: Tensor | None = None
                if logits is not None:
                    previous = logits[chosen.to(self.device)]
                elif self.teacher is not None and self.teacher.loaded:
                    previous = self.teacher(inputs)
                yield Batch(inputs, targets[chosen].to(self.device), previous)

    def _task_data(self, new: Index, size: int) -> Iterator[Batch]:
        """New images without augmentation or teacher, in file order."""
        for part in torch.from_numpy(new).split(size) if len(new) else ():
            images = as_input(self._normalised(part)).to(self.device)
            yield Batch(images, self._targets[part].to(self.device), None)

    def _teacher_logits(self, job: Job, images: Tensor, context: ClientContext) -> Tensor | None:
        """(n, g), for all of the client's images at once, if they are the same in every epoch."""
        if self.teacher is None:
            return None
        self.teacher.load(self._teacher_weights(job, context))
        if self.train.augment != "none" or self.transform is not None or not self.teacher.loaded:
            return None
        parts = (as_input(self._normalised(part)).to(self.device) for part in images.split(INFERENCE_BATCH))
        return self.teacher.logits(parts, len(images), client=job.client, task=job.task, seed=self.seed)

    def _teacher_weights(self, job: Job, context: ClientContext) -> Weights | None:
        if self.declared.teacher == "received" and job.task > 0:
            return with_first_classes(job.weights, self.stream.classes_until(job.task - 1))
        if self.declared.teacher == "own":
            self._seed(job)
            weights = self.method.teacher(context)
            Checks(job.where, self.method).teacher(weights, self.model.packed)
            return weights
        return job.teacher

    # Exemplars.

    def _exemplars(self, state: ClientState, chosen: Tensor | None = None) -> Batch:
        """All exemplars, or those at the chosen positions of `exemplars.index`."""
        index = torch.from_numpy(state.exemplars.index)
        rows = grown(state.rows.tensors, self.declared.rows, self.model, state.rows.classes, rows=True)
        if chosen is not None:
            index, rows = index[chosen], {name: kept[chosen] for name, kept in rows.items()}
        images = as_input(self._normalised(index)).to(self.device)
        on_device = {name: kept.to(self.device) for name, kept in rows.items()}
        return Batch(images, self._targets[index].to(self.device), None, on_device)

    def _replay(self, job: Job, state: ClientState) -> Callable[[int], Batch]:
        rng = generator(self.seed, "replay", *_purpose(job)) if self.declared.replay == "own" else None

        def replay(count: int) -> Batch:
            return self._exemplars(state, torch.randperm(len(state.exemplars), generator=rng)[:count])

        return replay

    def _caught_up(self, job: Job) -> ClientState:
        """The client's state as the task begins. A client that missed a task's end chooses its exemplars now."""
        state = self.store.load(job.client)
        if state.tasks < job.task:
            self.model.load(job.teacher if job.teacher is not None else job.weights)
            self.model.eval()
            state = self._remember(job, state, job.task)
        return state

    def _remember(self, job: Job, state: ClientState, tasks: int) -> ClientState:
        """Choose exemplars of all tasks before `tasks`; save and return the state."""
        exemplars = state.exemplars
        check_quotas(job, self.memory)
        for task in range(state.tasks, tasks):
            seed_streams(self.seed, "exemplars", "client", job.client, "task", task)

            arrived = self.stream.new_data(job.client, task)
            importance = self._importance(job, exemplars, arrived) if self._select == "own" else {}

            def rank(label: int, images: Index, count: int, importance: Mapping[int, float] = importance) -> Index:
                rng = partial(array_generator, self.seed, "memory", job.client, label)
                return ranked(self._select, images, count, rng=rng, features=self._features, importance=importance)

            classes = sum(self.stream.offered[: task + 1])
            quotas = job.quotas if task == job.task else None
            targets = self.stream.train.labels
            exemplars = remember(exemplars, arrived, targets, self.memory, rank, classes=classes, quotas=quotas)
        rows = Kept(self._annotated(job, state, exemplars), self.model.classes) if self.declared.rows else Kept()
        state = replace(state, tasks=tasks, exemplars=exemplars, rows=rows)
        self.store.save(job.client, state)
        return state

    @torch.no_grad()
    def _annotated(self, job: Job, before: ClientState, exemplars: Exemplars) -> Tensors:
        """Rows for these exemplars: kept images keep theirs, new images get theirs now."""
        place = {image: at for at, image in enumerate(before.exemplars.index.tolist())}
        after = exemplars.index.tolist()
        kept = [(at, place[image]) for at, image in enumerate(after) if image in place]
        new = [at for at, image in enumerate(after) if image not in place]
        old = grown(before.rows.tensors, self.declared.rows, self.model, before.rows.classes, rows=True)
        fresh = self._new_rows(job, exemplars, torch.tensor(new)) if new else {}
        sizes = Sizes.of(self.model)
        rows = {}
        for name, spec in self.declared.rows.items():
            rows[name] = torch.zeros((len(after), *spec.resolved(sizes)), dtype=spec.dtype)
            if kept and name in old:
                to, source = (torch.tensor(side) for side in zip(*kept, strict=True))
                rows[name][to] = old[name][source]
            if new:
                rows[name][torch.tensor(new)] = fresh[name]
        return rows

    def _new_rows(self, job: Job, exemplars: Exemplars, new: Tensor) -> Tensors:
        """What the method keeps with the exemplars at these positions of `exemplars.index`."""
        chosen = ClientState(exemplars=exemplars)
        context = self._context(job, chosen, exemplars.index)
        unchanged = self._unchanged(job, context)
        made = []
        for positions in new.split(INFERENCE_BATCH):
            part = self._exemplars(chosen, positions)
            rows = self.method.annotate(context, part.images, part.labels)
            made.append(self._checked(job, "annotate", rows, self.declared.rows, rows=len(part.labels)))
        unchanged("annotate")
        return {name: torch.cat([rows[name] for rows in made]) for name in self.declared.rows}

    def _importance(self, job: Job, exemplars: Exemplars, arrived: Index) -> dict[int, float]:
        """The method's score of each image that has arrived."""
        context = self._context(job, ClientState(exemplars=exemplars), arrived)
        scores = self.method.importance(replace(context, task_data=lambda size: self._task_data(arrived, size)))
        if (fault := scores_flaw(scores, len(arrived))) is not None:
            raise ClientError(f"{job.where}: {type(self.method).__name__}.importance: {fault}")
        return dict(zip(arrived.tolist(), scores.tolist(), strict=True))

    @torch.no_grad()
    def _features(self, index: Index) -> np.ndarray:
        parts = [
            F.normalize(self.model.features(as_input(self._normalised(part)).to(self.device)))
            for part in torch.from_numpy(index).split(INFERENCE_BATCH)
        ]
        features: np.ndarray = torch.cat(parts).cpu().numpy()
        return features
