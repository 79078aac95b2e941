"""GLFC's proxy server: what clients send, what the server makes of it, and that no site takes part."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from fedclass.deploy.check import check_replay
from fedclass.errors import ClientError, ConfigError
from fedclass.experiment.config import Experiment
from fedclass.experiment.launch import run_one
from fedclass.experiment.server_hooks import ServerHooks
from fedclass.experiment.setup import prepare
from fedclass.federation.store import MemoryStore
from fedclass.methods import METHODS, glfc_full
from fedclass.methods.glfc_full import GRADIENT, Encoder, knows, perturbed, rebuilt
from fedclass.models.incremental import IncrementalModel
from fedclass.wire import Job

Tiny = Callable[..., Experiment]
SMALL = ("method.perturbation=2", "method.iterations=2", "method.keep=1", "method.proxies=5", "model.norm=group")


def grown(tiny: Tiny, *overrides: str, classes: int = 2) -> IncrementalModel:
    model = prepare(tiny(*SMALL, *overrides, method="glfc-full")).build()
    model.grow_to(classes, seed=0)
    return model.eval()


def test_a_gradient_gives_away_the_class_and_an_image_with_that_gradient_is_found() -> None:
    encoder, rng = Encoder(), torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, 4, 4, generator=rng)  # scaled to 32x32: a smooth picture
    gradient = encoder.gradient(image, torch.tensor([7]))
    assert gradient.shape == (GRADIENT,)
    assert encoder.label(gradient) == 7
    begin = torch.randn(1, 3, 4, 4, generator=rng)
    made = rebuilt(encoder, gradient, begin, iterations=12, keep=2)
    assert made.shape == (2, 3, 4, 4)
    apart = [(encoder.gradient(one, torch.tensor([7])) - gradient).norm().item() for one in (begin, made[-1:])]
    assert apart[1] < apart[0] / 20
    assert (made[-1] - image[0]).norm() < (begin - image).norm() / 5  # which is why no site takes part


def test_the_gradient_is_that_of_each_parameter_by_hand() -> None:
    """Of the last layer: (softmax - one-hot) times the features, a row for each class."""
    encoder = Encoder()
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))  # scaled to 32x32 first
    features = encoder.body(F.interpolate(image, (32, 32), mode="bilinear")).flatten().tolist()
    logits = [sum(w * x for w, x in zip(row.tolist(), features, strict=True)) + b.item()
              for row, b in zip(encoder.fc.weight, encoder.fc.bias, strict=True)]  # fmt: skip
    shares = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
    want = [[(share - (label == 3)) * x for x in features] for label, share in enumerate(shares)]
    got = encoder.gradient(image, torch.tensor([3]))
    torch.testing.assert_close(got[-100 * 769 : -100].view(100, 768), torch.tensor(want), atol=1e-5, rtol=1e-4)


def test_a_prototype_is_moved_towards_its_class(tiny: Tiny) -> None:
    """By steps of 0.2 against the gradient of the sigmoid loss, with weight decay 1e-5."""
    model = grown(tiny)
    image = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    want = image.clone()
    for _ in range(3):
        at = want.clone().requires_grad_()
        p = model(at).sigmoid()[0]
        (gradient,) = torch.autograd.grad(-(torch.log(1 - p[0]) + torch.log(p[1])) / 2, at)
        want = want - 0.2 * (gradient + 1e-5 * want)
    torch.testing.assert_close(perturbed(model, image, 1, steps=3), want, atol=1e-5, rtol=0)


def test_clients_send_one_gradient_for_each_new_class_in_the_first_round_alone(tiny: Tiny) -> None:
    setup = prepare(tiny(*SMALL, method="glfc-full"))
    weights = grown(tiny).weights()
    first, second = (
        setup.client(MemoryStore()).run(Job(0, 0, round, "train", weights, None)).extras["prototypes"]
        for round in (0, 1)
    )
    assert [Encoder().label(row) for row in first] == [0, 1]
    assert not second.any()


def test_a_first_round_that_was_undone_leaves_no_proxy_images_and_the_task_goes_on(tiny: Tiny) -> None:
    setup, model = prepare(tiny(*SMALL, method="glfc-full")), grown(tiny)
    weights = model.weights()
    update = setup.client(MemoryStore()).run(Job(0, 0, 1, "train", weights, None))
    server = ServerHooks(setup, model).context(0, 1, weights, {})
    _, state = setup.experiment.method.aggregate(server, [update])
    assert state["labels"].tolist() == [-1] * 5
    assert state["best"].equal(model.flattened(update.weights))


def test_the_share_that_a_model_recognises(tiny: Tiny) -> None:
    model = grown(tiny)
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    right = model(images).argmax(dim=1)
    labels = torch.stack([right[0], 1 - right[1], right[2], torch.tensor(-1)])
    assert knows(model, images, labels) == pytest.approx(2 / 3)
    assert knows(model, images, torch.full((4,), -1)) == 0


def test_no_site_takes_part_and_the_encoder_has_its_limit(tiny: Tiny) -> None:
    assert [name for name, method in METHODS.items() if method().declare().discloses] == ["glfc-full"]
    with pytest.raises(ConfigError, match=r"'glfc-full' sends gradients of single images.*run it in a simulation"):
        check_replay(tiny(method="glfc-full"))
    setup = prepare(tiny(*SMALL, method="glfc-full"))
    with pytest.raises(ClientError, match="its encoder has 100 classes, but there are 101"):
        setup.client(MemoryStore()).run(Job(0, 0, 0, "train", grown(tiny, classes=101).weights(), None))


def test_where_every_model_is_as_good_as_the_last_it_is_glfc_bit_for_bit(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the last model of a task teaches the next one, which is what glfc does without a proxy server."""
    monkeypatch.setattr(glfc_full, "knows", lambda *_: 0.0)
    proxy = tiny(*SMALL, "method.iterations=1", method="glfc-full")
    plain = tiny("model.norm=group", "method.variant=glfc", method="glfc")
    one, other = (
        run_one(experiment, tmp_path / experiment.method_name, engine="inprocess", reuse=False)
        for experiment in (proxy, plain)
    )
    assert one["weights_sha256"] == other["weights_sha256"]
