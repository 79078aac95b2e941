"""Each method as a difference from FedAvg."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedclass import losses
from fedclass.errors import RunError
from fedclass.federation.server import rejection
from fedclass.methods import (
    GLFC,
    LGA,
    METHODS,
    Batch,
    ClientContext,
    FedAvg,
    FedCLASS,
    FedCLASSTuned,
    FedEven,
    FedGKD,
    FedICARL,
    FedWA,
    LwF,
)
from fedclass.methods.base import Progress, Rates, ServerContext, parameters
from fedclass.methods.declare import Sizes, misfit
from fedclass.methods.fedclass import FORMS, Form
from fedclass.methods.wa import align
from fedclass.models.incremental import IncrementalModel
from fedclass.models.weights import weighted_mean
from fedclass.wire import Job, Tensors, Update, Weights
from reference import heads
from reference.batches import RELEASED

OLD, NEW, WIDTH = 3, 2, 6
TUNED = {
    "temperature": 4.0,
    "student_temperature": 2.0,
    "teacher_temperature": 2.0,
    "mass_temperature": 2.0,
    "stop_gradient": False,
}


class Flat(nn.Module):
    """(B, 3, H, W) -> (B, 6): enough of a backbone to call a loss."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)[:, :WIDTH]


def model() -> IncrementalModel:
    made = IncrementalModel(Flat(), WIDTH)
    made.grow_to(OLD + NEW, seed=0)
    return made


def context(net: IncrementalModel, **other: Any) -> ClientContext:
    counts = torch.arange(1, net.classes + 1)
    return ClientContext(model=net, old_classes=OLD, weights=net.weights(), counts=counts, **other)


def server(weights: Weights, *, old_classes: int = OLD, state: Tensors | None = None) -> ServerContext:
    def mean(updates: Iterable[Update]) -> Weights:
        return weighted_mean((update.weights, update.examples) for update in updates)

    return ServerContext(
        task=1,
        round=0,
        rounds=2,
        old_classes=old_classes,
        sizes=Sizes.of(model()),
        clients=2,
        weights=weights,
        state=state or {},
        generator=torch.Generator(),
        device=torch.device("cpu"),
        build=model,
        mean=mean,
    )


@dataclass
class Given:
    client: ClientContext
    batch: Batch
    logits: Tensor
    previous: Tensor


@pytest.fixture
def given() -> Given:
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(8, 3, 2, 2, generator=rng)
    labels = torch.randint(OLD + NEW, (8,), generator=rng)
    previous = torch.randn(8, OLD, generator=rng)
    net = model()
    client = context(net)
    return Given(client, Batch(images, labels, previous), net(images), previous)


def test_a_client_still_knows_the_parameters_it_received_after_its_own_have_moved() -> None:
    net = model()
    client = context(net)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 1
    assert len(client.received) == len(before)
    assert all(map(torch.equal, client.received, before))


def test_each_loss_is_the_sum_that_its_paper_writes(given: Given) -> None:
    ce = F.cross_entropy(given.logits, given.batch.labels)
    labels, current, previous = given.batch.labels, given.logits, given.previous
    soft = losses.augmented_distillation(current, previous, temperature=4.0, student_temperature=2.0)
    lam = OLD / (OLD + NEW)
    kept = losses.distillation(current, previous, temperature=2.0)
    prior = losses.log_prior(given.client.counts)
    expected: dict[FedAvg, Tensor] = {
        FedAvg(): ce,
        FedCLASS(beta=3.0, variant="paper", temperature=4.0, student_temperature=2.0): ce + 3.0 * soft,
        FedCLASS(beta=3.0, variant="released"): ce + 3.0 * losses.augmented_distillation(current, previous, **RELEASED),
        FedWA(): (1 - lam) * ce + lam * kept,
        FedWA(variant="pycil"): (1 - lam) * ce + lam * kept,
        FedWA(variant="released"): (1 - lam) * ce + lam * kept,
        FedCLASSTuned(beta=3.0): ce + 3.0 * losses.augmented_distillation(current, previous, **TUNED),
        LwF(distillation=0.5): ce + 0.5 * kept,
        FedGKD(gamma=0.3, temperature=2.0): ce + 0.3 * losses.teacher_divergence(current, previous, temperature=2.0),
        FedICARL(): losses.icarl_loss(current, previous, labels),
        FedICARL(variant="released"): losses.released_icarl_loss(current, previous, labels),
        METHODS["glfc"](): losses.glfc_loss(current, previous, labels),
    }
    for method, want in expected.items():
        torch.testing.assert_close(method.loss(given.client, given.batch), want)
    adjusted = replace(given.client, prior=prior)
    balanced = losses.balanced_cross_entropy(current, labels, prior)
    torch.testing.assert_close(FedEven(distillation=0.5).loss(adjusted, given.batch), balanced + 0.5 * kept)
    torch.testing.assert_close(FedWA().loss(adjusted, given.batch), (1 - lam) * balanced + lam * kept)
    for method in (FedCLASS(beta=3.0), FedCLASSTuned(beta=3.0)):
        plain, even = (method.loss(client, given.batch) for client in (given.client, adjusted))
        torch.testing.assert_close(even - plain, balanced - ce)


def test_without_a_teacher_distilling_methods_are_plain_cross_entropy(given: Given) -> None:
    first = Batch(given.batch.images, given.batch.labels, None)
    ce = F.cross_entropy(given.logits, given.batch.labels)
    methods = (
        *(FedAvg(), FedCLASS(), FedCLASS(variant="released"), FedCLASSTuned()),
        *(FedWA(), FedICARL(variant="released"), LwF(), FedGKD()),
    )
    for method in methods:
        torch.testing.assert_close(method.loss(given.client, first), ce)


def test_a_variant_is_named_with_whatever_differs_from_it() -> None:
    assert FedCLASS().variant_name == "paper"
    assert FedCLASS(variant="paper-literal").variant_name == "paper-literal"
    assert FedCLASS(variant="released").variant_name == "released"
    assert FedCLASS(variant="paper", temperature=9.0).variant_name == "paper, temperature=9.0"
    assert FedCLASS(variant="paper", stop_gradient=False).variant_name == "paper, stop_gradient=False"
    assert FedCLASS(variant="released", clip_ratio=False).variant_name == "released, clip_ratio=False"
    assert FedCLASSTuned().variant_name == "standard"
    assert FedCLASSTuned(teacher_temperature=5.0).variant_name == "standard, teacher_temperature=5.0"
    assert FedCLASS(variant="paper").form == FORMS["paper"]
    assert FedCLASSTuned().form == Form(**TUNED)
    assert vars(FORMS["released"]) == {**RELEASED, "teacher_temperature": None}


def test_the_paper_variant_is_equation_9_with_the_student_at_one(given: Given) -> None:
    assert FORMS["paper"].student_temperature == 1.0
    got = FedCLASS(variant="paper", temperature=2.5, beta=2.0).loss(given.client, given.batch)
    ce = F.cross_entropy(given.logits, given.batch.labels)
    torch.testing.assert_close(
        got, ce + 2 * losses.augmented_distillation(given.logits, given.previous, temperature=2.5)
    )


def test_paper_and_paper_literal_differ_in_the_gradient_through_z_alone(given: Given) -> None:
    read, literal = FedCLASS(), FedCLASS(variant="paper-literal")
    torch.testing.assert_close(read.loss(given.client, given.batch), literal.loss(given.client, given.batch))

    def gradient(method: FedCLASS) -> Tensor:
        loss = method.loss(given.client, given.batch)
        return torch.autograd.grad(loss, given.client.model.head.weight)[0]

    assert (gradient(read) - gradient(literal)).norm() > 0.1 * gradient(literal).norm()


@pytest.mark.parametrize(
    ("variant", "aligned"), [("wa", heads.align_zhao), ("pycil", heads.align_pycil)], ids=["wa", "pycil"]
)
@pytest.mark.parametrize("longer", [0.3, 1.0, 5.0])
def test_alignment_is_that_of_its_authors_code(variant: Any, aligned: Any, longer: float) -> None:
    """longer: how much longer new rows are than old ones. Zhao et al. only ever shrink them."""
    head = torch.randn(OLD + NEW, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    head[OLD:] *= longer
    weights = {"head.weight": head, "head.bias": torch.arange(5.0)}
    finished, _ = FedWA(variant=variant).end_rounds(server(weights))
    torch.testing.assert_close(finished["head.weight"], torch.tensor(aligned(head.tolist(), OLD), dtype=torch.float64))
    assert torch.equal(finished["head.weight"][:OLD], head[:OLD])
    assert torch.equal(finished["head.bias"], weights["head.bias"])
    if longer == 0.3:
        assert torch.equal(finished["head.weight"], head) == (variant == "wa")


def test_rows_that_are_all_zero_stay_so_instead_of_becoming_nan() -> None:
    head = torch.cat([torch.ones(OLD, WIDTH), torch.zeros(NEW, WIDTH)])
    for norm in (1, 2):
        assert torch.equal(align(head, OLD, norm=norm), head)


def test_fedwa_aligns_from_the_second_task_on_and_released_never_does() -> None:
    weights = model().weights()
    for variant in ("wa", "pycil", "released"):
        assert FedWA(variant=variant).end_rounds(server(weights, old_classes=0))[0] is weights
    assert FedWA(variant="released").end_rounds(server(weights))[0] is weights


def test_only_wa_keeps_the_head_from_falling_below_zero() -> None:
    for variant in ("wa", "pycil", "released"):
        net = model()
        before = net.head.weight.detach().clone()
        assert (before < 0).any()
        with torch.no_grad():
            FedWA(variant=variant).after_step(context(net))
        assert torch.equal(net.head.weight, before.clamp(min=0) if variant == "wa" else before)


def test_wa_and_the_analytic_head_have_no_bias_and_wa_does_not_begin_like_fedavg() -> None:
    assert {name for name, method in METHODS.items() if not method().declare().head_bias} == {"fedwa", "analytic"}
    for variant, bias in (("wa", False), ("pycil", True), ("released", True)):
        declared = FedWA(variant=variant).declare()
        assert declared.head_bias is declared.begins_like_fedavg is bias


def test_aggregate_is_the_mean_by_examples_and_glfcs_authors_count_all_clients_alike() -> None:
    def update(client: int, value: float, examples: int) -> Update:
        return Update(client, 0, 0, {"w": torch.full((2,), value)}, examples, {})

    updates = [update(0, 1.0, 3), update(1, 5.0, 1)]
    for method, mean in ((FedAvg(), 2.0), (GLFC(), 2.0), (GLFC(variant="glfc"), 3.0)):
        weights, state = method.aggregate(server({}), updates)
        assert torch.equal(weights["w"], torch.full((2,), mean))
        assert state == {}


RECIPES = Rates(learning_rate=0.01, momentum=0.9, weight_decay=1e-4)


def test_glfcs_authors_lower_the_learning_rate_within_three_of_ten_rounds() -> None:
    """Written out for their 10 rounds of 20 epochs: at epochs 100, 150 and 180 of a task, until that round ends."""
    method = GLFC(variant="glfc")
    want = {}
    for round in range(10):
        divisor = 1
        for epoch in range(20):
            divisor = {100: 5, 150: 25, 180: 125}.get(epoch + round * 20, divisor)
            want[round, epoch] = 2.0 / divisor
    assert {want[round, 19] for round in (5, 7, 9)} == {2 / 5, 2 / 25, 2 / 125}
    for (round, epoch), rate in want.items():
        rates = method.rates(RECIPES, progress=Progress(round, 10, epoch, 20))
        assert rates == Rates(learning_rate=rate, momentum=0.0, weight_decay=1e-5)


def test_lga_knows_the_ends_of_earlier_tasks_and_weighs_nothing_at_a_client_without_old_classes(given: Given) -> None:
    current, labels, previous = given.logits, given.batch.labels, given.previous
    for met, ends in ((frozenset({0}), [1, OLD]), (frozenset(), [])):
        client = replace(given.client, task_sizes=(1, OLD - 1, NEW), met=met)
        want = losses.lga_loss(current, previous, labels, ends=ends)
        torch.testing.assert_close(LGA().loss(client, given.batch), want)
        torch.testing.assert_close(LGA(scale=0.5).loss(client, given.batch), 0.5 * want)
    first = Batch(given.batch.images, labels, None)
    torch.testing.assert_close(LGA().loss(given.client, first), losses.glfc_loss(current, None, labels))


def test_the_authors_settings_of_glfc_are_parameters_and_released_takes_the_recipes() -> None:
    first = Progress(0, 10, 0, 20)
    assert GLFC().rates(RECIPES, progress=first) == RECIPES
    assert GLFC(momentum=0.5).rates(RECIPES, progress=first) == Rates(0.01, 0.5, 1e-4)
    assert parameters(GLFC(variant="glfc")) == {
        "variant": "glfc",
        "learning_rate": 2.0,
        "momentum": 0.0,
        "weight_decay": 1e-5,
    }
    assert GLFC(variant="glfc", learning_rate=0.5).rates(RECIPES, progress=first).learning_rate == 0.5
    assert FedAvg().rates(RECIPES, progress=first) is RECIPES


def test_glfcs_authors_do_not_compensate_where_a_client_has_had_no_old_class(given: Given) -> None:
    current, labels, previous = given.logits, given.batch.labels, given.previous
    plain = losses.glfc_loss(current, previous, labels, compensate=False)
    compensated = losses.glfc_loss(current, previous, labels)
    assert not torch.allclose(plain, compensated)
    with_old = replace(given.client, met=frozenset({1}))
    for method, client, want in (
        (GLFC(), given.client, compensated),
        (GLFC(variant="glfc"), given.client, plain),
        (GLFC(variant="glfc"), with_old, compensated),
    ):
        torch.testing.assert_close(method.loss(client, given.batch), want)


class TestNearestMeanOfExemplars:
    method = FedICARL()

    def sent(self, images: Tensor, labels: list[int]) -> dict[str, Any]:
        exemplars = Batch(images, torch.tensor(labels, dtype=torch.int64), None)
        return dict(self.method.report(context(model()), exemplars))

    def gathered(self, *reports: Tensors) -> Tensors:
        return self.method.end_task(server({}), reports)[1]

    def test_a_client_sends_means_of_unit_features_of_classes_it_has_two_images_of(self) -> None:
        images = torch.randn(5, 3, 2, 2, generator=torch.Generator().manual_seed(2))
        extras = self.sent(images, [0, 0, 4, 4, 2])
        features = F.normalize(images.flatten(1)[:, :WIDTH])
        assert misfit(extras, self.method.declare().uploads["end_task"], Sizes.of(model()), every=True) is None
        assert extras["class_counts"].tolist() == [2, 0, 0, 0, 2], "one image of class 2 would be a single sample"
        torch.testing.assert_close(extras["class_means"][0], features[:2].mean(0))
        torch.testing.assert_close(extras["class_means"][4], features[2:4].mean(0))
        assert extras["class_means"][[1, 2, 3]].abs().sum() == 0

    def test_no_exemplars_give_no_means(self) -> None:
        extras = self.sent(torch.zeros(0, 3, 2, 2), [])
        assert extras["class_counts"].tolist() == [0] * 5
        assert self.method.never_predicted(self.gathered(extras)) == [0, 1, 2, 3, 4]
        with pytest.raises(RunError, match=r"no class means.*method\.classifier=sigmoid"):
            self.method.predict(model(), torch.randn(4, 3, 2, 2), {})

    def test_with_sigmoids_nothing_is_sent_and_the_models_scores_predict(self) -> None:
        method = FedICARL(classifier="sigmoid")
        declared = method.declare()
        assert (declared.uploads, declared.predicts_with, declared.fewest_exemplars) == ({}, (), 0)
        assert declared.select == "herding"
        images = torch.randn(4, 3, 2, 2)
        assert torch.equal(method.predict(model(), images, {}), model()(images))
        assert self.method.declare().fewest_exemplars == 2

    def test_the_classifier_is_part_of_the_name(self) -> None:
        names = [m.variant_name for m in (FedICARL(), FedICARL(classifier="sigmoid"), FedICARL(variant="released"))]
        assert names == ["icarl, nearest mean", "icarl, sigmoids", "released"]

    def test_means_of_clients_are_weighted_by_their_counts(self) -> None:
        def extras(value: float, count: int) -> dict[str, Tensor]:
            return {"class_means": torch.full((2, 3), value), "class_counts": torch.tensor([count, 2])}

        gathered = self.gathered(extras(1.0, 2), extras(4.0, 4))
        assert torch.equal(gathered["class_means"][0], torch.full((3,), 3.0))
        assert gathered["class_counts"].tolist() == [6, 4]

    def test_a_class_without_a_mean_is_never_predicted(self) -> None:
        """Not even where its mean of zeros would be the nearest: 1 from every unit vector, the others 2 away."""
        means = -torch.eye(5, WIDTH)[[0, 0, 0, 0, 0]]
        means[3] = 0
        extras = self.gathered({"class_means": means, "class_counts": torch.tensor([2, 2, 2, 0, 2])})
        assert self.method.never_predicted(extras) == [3]
        images = torch.zeros(1, 3, 2, 2)
        images.flatten(1)[:, 0] = 1.0
        scores = self.method.predict(model(), images, extras)
        assert scores[0, 3] < scores[0, [0, 1, 2, 4]].min()

    def test_the_nearest_mean_wins(self) -> None:
        means = torch.eye(5, WIDTH)
        counts = torch.tensor([2, 2, 2, 2, 2])
        images = torch.zeros(5, 3, 2, 2)
        images.flatten(1)[:, :WIDTH].copy_(torch.eye(5, WIDTH) + 0.1)
        scores = self.method.predict(model(), images, {"class_means": means, "class_counts": counts})
        assert scores.argmax(dim=1).tolist() == [0, 1, 2, 3, 4]

    def test_malformed_means_are_refused(self) -> None:
        job = Job(0, 1, 2, "end_task", model().weights(), None)
        good = {"class_means": torch.zeros(5, WIDTH), "class_counts": torch.zeros(5, dtype=torch.int64)}

        def reason(**other: Tensor) -> str | None:
            update = Update(0, 1, 2, {}, 0, {"exemplars": 0.0}, {**good, **other})
            return rejection(update, job, self.method, Sizes.of(model()))

        assert reason() is None
        assert "class_means is (4, 6)" in str(reason(class_means=torch.zeros(4, WIDTH)))
        assert reason(class_counts=torch.full((5,), -1)) == "class counts below 0"
        assert "torch.float32 instead of" in str(reason(class_counts=torch.zeros(5)))
        assert "NaN" in str(reason(class_means=torch.full((5, WIDTH), torch.nan)))


def test_what_a_client_keeps_follows_from_the_declaration() -> None:
    """Exemplars of 100 bytes; DER++'s logits with each; TARGET's images and logits in their place."""
    sizes = Sizes(classes=7, features=5, parameters=11, height=4, width=3)
    kept = {name: method().declare().kept_bytes(sizes, exemplars=50, image=100) for name, method in METHODS.items()}
    assert kept["fedavg"] == kept["refed"] == 50 * 100
    assert kept["derpp"] == 50 * (100 + 4 * 7)
    assert kept["target"] == 2560 * (3 * 4 * 3 + 4 * 7)
    assert kept["scaffold"] == 50 * 100 + 2 * 4 * 11  # its own control variate, and the server's
    assert kept["analytic"] == kept["finetune"] == 0


def test_what_each_method_declares() -> None:
    """Only these send more than weights, keep anything, or insist on how exemplars are chosen."""
    declared = {name: method().declare() for name, method in METHODS.items()}
    assert {name for name, d in declared.items() if d.uploads} == {
        "fedicarl",
        "scaffold",
        "ewc",
        "analytic",
        "glfc-full",
    }
    assert {name for name, d in declared.items() if d.client} == {"scaffold"}
    assert {name for name, d in declared.items() if d.rows} == {"derpp"}
    stateful = {"fedicarl", "scaffold", "ewc", "fedgkd", "analytic", "target", "glfc-full"}
    assert {name for name, d in declared.items() if d.server} == stateful
    assert {name for name, d in declared.items() if d.select} == {"fedicarl", "refed", "glfc-full"}
    released = FedICARL(variant="released").declare()
    assert (released.uploads, released.select, released.teacher) == ({}, None, "received")
    assert GLFC(variant="glfc").declare().select == "herding-pycil"
