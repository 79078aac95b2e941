"""GLFC with its proxy server (Dong et al., 2022), which reconstructs clients' images: for simulations only."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from fedclass.errors import ClientError
from fedclass.methods.base import ClientContext, Outcome, ServerContext, State
from fedclass.methods.declare import Declaration, Spec
from fedclass.methods.glfc import GLFC
from fedclass.models.head import with_first_classes
from fedclass.models.incremental import IncrementalModel
from fedclass.rng import generator
from fedclass.wire import Tensors, Update, Weights

SIDE, OUTPUTS = 32, 100  # pixels and classes of the encoder, as in the authors' code
RATE, DECAY = 0.2, 1e-5  # of the steps that perturb a prototype
AT_ONCE = 256  # images whose features are in memory together


class Encoder(nn.Module):
    """A small network, the same everywhere and never trained, whose gradients stand for an image.

    Images of another size are scaled to 32x32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 12, 5, padding=2, stride=2), nn.Sigmoid()),
            *(nn.Conv2d(12, 12, 5, padding=2, stride=2), nn.Sigmoid()),
            *(nn.Conv2d(12, 12, 5, padding=2), nn.Sigmoid()),
        )
        self.fc = nn.Linear(12 * (SIDE // 4) ** 2, OUTPUTS)
        rng = generator(0, "glfc encoder")
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=rng)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[2:] != (SIDE, SIDE):
            images = F.interpolate(images, (SIDE, SIDE), mode="bilinear")
        logits: Tensor = self.fc(self.body(images).flatten(1))
        return logits

    def gradient(self, image: Tensor, label: Tensor, *, follow: bool = False) -> Tensor:
        """(G,): gradient of one image's cross-entropy by all parameters. follow: it can be differentiated again."""
        loss = F.cross_entropy(self(image), label)
        parts = torch.autograd.grad(loss, list(self.parameters()), create_graph=follow)
        return torch.cat([part.flatten() for part in parts])

    def label(self, gradient: Tensor) -> int:
        """The class of the image behind a gradient: only its row of the last layer is pushed up."""
        rows = gradient[-OUTPUTS * (self.fc.in_features + 1) : -OUTPUTS].view(OUTPUTS, -1)
        return int(rows.sum(dim=1).argmin())


GRADIENT = sum(parameter.numel() for parameter in Encoder().parameters())


def perturbed(model: IncrementalModel, image: Tensor, label: int, *, steps: int) -> Tensor:
    """A prototype after steps of SGD on its pixels that lower the model's sigmoid loss at its label."""
    image = image.detach().clone().requires_grad_()
    target = F.one_hot(torch.tensor([label], device=image.device), model.classes).float()
    optimizer = torch.optim.SGD([image], RATE, weight_decay=DECAY)
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(model(image), target), image)
        image.grad = gradient
        optimizer.step()
    return image.detach()


def rebuilt(encoder: Encoder, gradient: Tensor, image: Tensor, *, iterations: int, keep: int) -> Tensor:
    """(keep, 3, H, W): images reconstructed from a gradient, one from each of the last `keep` iterations of L-BFGS.

    image: (1, 3, H, W), the starting point.
    """
    image, label = image.clone().requires_grad_(), torch.tensor([encoder.label(gradient)], device=image.device)
    optimizer = torch.optim.LBFGS([image], lr=0.1)

    def gap() -> Tensor:
        optimizer.zero_grad()
        apart = (encoder.gradient(image, label, follow=True) - gradient).square().sum()
        apart.backward()
        return apart

    kept = []
    for iteration in range(iterations):
        optimizer.step(gap)
        if iteration >= iterations - keep:
            kept.append(image.detach().clone())
    return torch.cat(kept)


@dataclass(frozen=True, kw_only=True)
class GLFCFull(GLFC):
    """GLFC with a proxy server, which chooses the teacher by images that it reconstructs from clients' gradients.

    In the first round of a task each client sends, for each new class, the gradient of one image: the one closest to
    the mean of the class, perturbed by some steps on its pixels. The server reconstructs these images, keeps the model
    of the round that classifies them best, and sends it as the teacher of the next task.

    An image can be reconstructed from its gradient, and the server does so; only the perturbation separates the result
    from the client's own image. The method thus breaks the promise that nothing computed from a single image leaves a
    client. Sites refuse it; it is for simulations only.

    Clients are told when a task begins; the authors' clients detect it by entropy. The search for the best model
    starts over with each task. The teacher has the best model's trained weights; statistics of batch normalisation are
    the received model's. The rest is `glfc` in its variant `glfc`.
    """

    source = "Dong et al., 2022, arXiv 2203.11473"
    fidelity = (
        "compared with the authors' code, in float64: gradients that clients send 0, images rebuilt from them 0; "
        "loss as glfc's; partial: no entropy"
    )

    variant: Annotated[Literal["glfc"], Field(description="its own authors' settings")] = "glfc"
    perturbation: Annotated[int, Field(ge=0, description="steps on the pixels of a prototype")] = 50
    iterations: Annotated[int, Field(ge=1, description="of L-BFGS for each image that is rebuilt")] = 250
    keep: Annotated[int, Field(ge=1, description="the last so many of them are kept of each image")] = 20
    proxies: Annotated[int, Field(ge=1, description="rebuilt images that the server keeps at most")] = 1000

    def declare(self) -> Declaration:
        flat = Spec(("parameters",))
        return Declaration(
            teacher="own",
            select="herding-pycil",
            assumes_sgd=True,
            task_data=True,
            discloses="gradients of single images, from which the server rebuilds them",
            server={
                "images": Spec((self.proxies, 3, "height", "width")),
                "labels": Spec((self.proxies,), torch.int64),  # -1: there is no such image
                "best": flat,
                "score": Spec(()),
                "teacher": flat,
            },
            broadcast=("teacher",),
            uploads={"train": {"prototypes": Spec(("classes", GRADIENT))}},
        )

    # On the client.

    def teacher(self, client: ClientContext) -> Weights | None:
        if "teacher" not in client.broadcast:
            return None
        known = client.model.with_flat(client.weights, client.broadcast["teacher"])
        return with_first_classes(known, client.old_classes)

    def end_round(self, client: ClientContext) -> Outcome:
        """prototypes: rows of zeros for classes without one, and in all rounds but a task's first."""
        if client.model.classes > OUTPUTS:
            raise ClientError(f"its encoder has {OUTPUTS} classes, but there are {client.model.classes}")
        sent = torch.zeros(client.model.classes, GRADIENT, device=client.device)
        if client.round == 0:
            encoder = Encoder().to(client.device)
            client.model.eval()
            for label, image in self._prototypes(client).items():
                with torch.enable_grad():
                    masked = perturbed(client.model, image, label, steps=self.perturbation)
                    sent[label] = encoder.gradient(masked, torch.tensor([label], device=client.device))
        return Outcome(client.state, {"prototypes": sent})

    def _prototypes(self, client: ClientContext) -> dict[int, Tensor]:
        """For each new class, the image whose feature is closest to the mean of the class."""
        batches = list(client.task_data(AT_ONCE))
        if not batches:
            return {}
        images, labels = torch.cat([batch.images for batch in batches]), torch.cat([batch.labels for batch in batches])
        features = torch.cat([F.normalize(client.model.features(batch.images)) for batch in batches])
        found = {}
        for label in labels.unique().tolist():
            mine = features[labels == label]
            closest = (mine - mine.mean(dim=0)).norm(dim=1).argmin()
            found[label] = images[labels == label][closest][None]
        return found

    # On the server.

    def aggregate(self, server: ServerContext, updates: Iterable[Update]) -> tuple[Weights, State]:
        gradients: list[Tensor] = []

        def collected() -> Iterator[Update]:
            for update in updates:
                sent = update.extras["prototypes"]
                gradients.extend(sent[sent.any(dim=1)])
                yield update

        weights, _ = super().aggregate(server, collected())
        state = dict(server.state)
        if server.round == 0 or "images" not in state:  # the first round may have been undone
            state |= self._rebuilt(server, gradients)
        model = server.build()
        model.load(weights)
        score = knows(model, state["images"], state["labels"])
        if "best" not in state or score >= float(state["score"]):
            state |= {"best": model.flattened(weights).cpu().clone(), "score": torch.tensor(score)}
        return weights, state

    def _rebuilt(self, server: ServerContext, gradients: Sequence[Tensor]) -> State:
        encoder, size = Encoder().to(server.device), (server.sizes.height, server.sizes.width)
        images, labels = torch.zeros(self.proxies, 3, *size), torch.full((self.proxies,), -1)
        at = 0
        for gradient in gradients:
            if at < self.proxies:
                begin = torch.randn(1, 3, *size, generator=server.generator).to(server.device)
                made = rebuilt(encoder, gradient.to(server.device), begin, iterations=self.iterations, keep=self.keep)
                made = made[: self.proxies - at]
                images[at : at + len(made)], labels[at : at + len(made)] = made.cpu(), encoder.label(gradient)
                at += len(made)
        return {"images": images, "labels": labels}

    def end_task(self, server: ServerContext, reports: Sequence[Tensors]) -> tuple[Weights, State]:  # noqa: ARG002
        """The best model of the task teaches the next; a new search for the best begins."""
        return server.weights, {"teacher": server.state["best"]} if "best" in server.state else {}


@torch.no_grad()
def knows(model: IncrementalModel, images: Tensor, labels: Tensor) -> float:
    """The share of these images that the model classifies correctly; 0 if there are none."""
    there = labels >= 0
    if not bool(there.any()):
        return 0.0
    model.eval()
    found = torch.cat([model(part.to(model.device)).argmax(dim=1).cpu() for part in images[there].split(AT_ONCE)])
    return float((found == labels[there]).float().mean())
