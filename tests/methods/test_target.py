"""TARGET: what clients learn from, and the server's generator."""

from collections.abc import Callable
from statistics import fmean, pvariance

import pytest
import torch
from torch import nn

from fedclass.experiment.config import Experiment
from fedclass.experiment.setup import prepare
from fedclass.methods import TARGET
from fedclass.methods.base import Batch, ClientContext, ServerContext
from fedclass.methods.declare import Sizes, misfit
from fedclass.methods.target import as_inputs
from fedclass.models.generator import Generator, StatisticsGap
from reference import losses as oracle

Tiny = Callable[..., Experiment]
SMALL = TARGET(synthetic=6, made_at_once=4, steps=3, width=4, warmup=1, student_steps=2, synthetic_batch=3, kd=7.0)
NORMALISATION = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


def test_the_gap_is_between_statistics_of_inputs_and_those_of_training() -> None:
    """Euclidean norms over channels; past batches count with the momentum."""
    norm = nn.BatchNorm2d(2)
    norm.running_mean.copy_(torch.tensor([0.5, -1.0]))
    norm.running_var.copy_(torch.tensor([2.0, 0.5]))
    gap = StatisticsGap(norm.eval(), momentum=0.9)
    first, second = torch.randn(2, 3, 2, 4, 4, generator=torch.Generator().manual_seed(0))

    def literal(mean: list[float], var: list[float]) -> float:
        apart = [
            sum((a - b) ** 2 for a, b in zip(x, y, strict=True)) ** 0.5
            for x, y in ((mean, [0.5, -1.0]), (var, [2.0, 0.5]))
        ]
        return sum(apart)

    def moments(images: torch.Tensor) -> tuple[list[float], list[float]]:
        channels = [images[:, c].flatten().tolist() for c in range(2)]
        return [fmean(values) for values in channels], [pvariance(values) for values in channels]

    norm(first)
    assert gap.value.item() == pytest.approx(literal(*moments(first)), rel=1e-5)
    gap.remember()
    norm(second)
    mixed = [
        [0.1 * b + 0.9 * a for a, b in zip(x, y, strict=True)]
        for x, y in zip(moments(first), moments(second), strict=True)
    ]
    assert gap.value.item() == pytest.approx(literal(*mixed), rel=1e-5)


@pytest.mark.parametrize("image", [(8, 8), (9, 14)])
def test_a_generator_makes_images_of_any_size(image: tuple[int, int]) -> None:
    made = Generator(noise=5, width=2, image=image)(torch.randn(3, 5))
    assert made.shape == (3, 3, *image)
    assert (made >= 0).all()
    assert (made <= 1).all()


def test_the_server_makes_images_that_please_the_model_and_says_what_it_thinks_of_them(tiny: Tiny) -> None:
    setup = prepare(tiny("model.norm=batch", method="target"))

    def build():
        model = setup.build()
        model.grow_to(2, seed=0)
        return model

    teacher, sizes = build(), Sizes.of(build())
    server = ServerContext(
        task=0, round=2, rounds=2, old_classes=0, sizes=sizes, clients=3, weights=teacher.weights(), state={},
        generator=torch.Generator().manual_seed(0), device=torch.device("cpu"), build=build, mean=lambda _: {},
        normalisation=NORMALISATION,
    )  # fmt: skip
    torch.manual_seed(0)
    weights, made = SMALL.end_task(server, [])
    assert all(torch.equal(weights[name], server.weights[name]) for name in server.weights)
    assert misfit(made, SMALL.declare().server, sizes, every=True) is None
    assert len(made["images"].unique()) > 10
    with torch.no_grad():
        logits = teacher.eval()(as_inputs(made["images"] / 255, NORMALISATION))
    torch.testing.assert_close(made["logits"], logits)


def test_clients_learn_new_classes_among_themselves_and_old_ones_from_made_images(tiny: Tiny) -> None:
    setup = prepare(tiny(method="target"))
    model = setup.build()
    model.grow_to(4, seed=0)
    model.eval()
    images = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(2))
    context = ClientContext(
        model, 2, model.weights(), torch.ones(4), broadcast={"images": images, "logits": logits},
        normalisation=NORMALISATION, purpose=("test",),
    )  # fmt: skip
    new = Batch(torch.randn(3, 3, 8, 8), torch.tensor([2, 3, 0]), None)  # the last came late: of no use here
    got = SMALL.loss(context, new)
    drawn = torch.randint(6, (3,), generator=ClientContext(model, 2, {}, torch.ones(4), purpose=("test",)).generator)
    made = torch.stack(
        [
            (images[i] / 255 - torch.tensor(NORMALISATION[0])[:, None, None])
            / torch.tensor(NORMALISATION[1])[:, None, None]
            for i in drawn
        ]
    )
    with torch.no_grad():
        own, theirs = model(new.images).double(), model(made).double()
    labels = -(oracle.mean([own[0, 2:].log_softmax(0)[0].item(), own[1, 2:].log_softmax(0)[1].item()]))
    kept = oracle.distillation(theirs.tolist(), logits[drawn, :2].tolist(), 2.0)
    assert got.item() == pytest.approx(labels + 7.0 * kept, rel=1e-5)
