"""The losses as their papers write them: one sample and one class at a time, in float64, nothing rearranged.

A batch is a list of rows. Keep logits moderate (within ±10): these formulas overflow and cancel, which is why
the package works in log space.
"""

from collections.abc import Sequence
from math import exp, log

Row = Sequence[float]
Rows = Sequence[Row]


def softmax(row: Row, temperature: float) -> list[float]:
    total = 0.0
    for logit in row:
        total += exp(logit / temperature)
    return [exp(logit / temperature) / total for logit in row]


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def mean(values: Sequence[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def divergence(p: Row, z: Row) -> float:
    total = 0.0
    for p_j, z_j in zip(p, z, strict=True):
        total += p_j * log(p_j / z_j)
    return total


def disagreement(student: Rows, teacher: Rows) -> float:
    """TARGET's adversary: minus KL(teacher || student), of samples on whose class both agree; the rest count as 0."""
    each = []
    for s, t in zip(student, teacher, strict=True):
        agree = max(range(len(s)), key=s.__getitem__) == max(range(len(t)), key=t.__getitem__)
        each.append(-divergence(softmax(t, 1.0), softmax(s, 1.0)) if agree else 0.0)
    return mean(each)


def cross_entropy(target: float, probability: float) -> float:
    """Of one binary outcome."""
    return -target * log(probability) - (1 - target) * log(1 - probability)


def augmented_target(
    current: Rows,
    previous: Rows,
    temperature: float,
    teacher_temperature: float | None = None,
    mass_temperature: float | None = None,
) -> list[list[float]]:
    """z of Eq. 5; the paper has one temperature."""
    rows = []
    for student, teacher in zip(current, previous, strict=True):
        g, p, q = len(teacher), softmax(student, temperature), softmax(teacher, teacher_temperature or temperature)
        new_mass = 0.0
        for c in range(g, len(student)):
            new_mass += softmax(student, mass_temperature or temperature)[c]
        z = []
        for j in range(len(student)):
            z.append(p[j] if j >= g else q[j] * (1 - new_mass))
        rows.append(z)
    return rows


def augmented_distillation(
    current: Rows,
    previous: Rows,
    temperature: float,
    student_temperature: float,
    teacher_temperature: float | None = None,
    mass_temperature: float | None = None,
) -> float:
    """J_KD-Aug of Eq. 9."""
    target = augmented_target(current, previous, temperature, teacher_temperature, mass_temperature)
    return mean(
        [divergence(softmax(student, student_temperature), z) for student, z in zip(current, target, strict=True)]
    )


def released_target(current: Rows, previous: Rows) -> list[list[float]]:
    """The z of the authors' release: the sum over new classes is at temperature 3, all else at 5."""
    rows = []
    for student, teacher in zip(current, previous, strict=True):
        g, p_3, p_5, q = len(teacher), softmax(student, 3), softmax(student, 5), softmax(teacher, 5)
        ratio = 1.0
        for c in range(g, len(student)):
            ratio -= p_3[c]
        rows.append([p_5[j] if j >= g else q[j] * ratio for j in range(len(student))])
    return rows


def released_distillation(current: Rows, previous: Rows) -> float:
    """The release's KL: each ratio p / z is kept above 1e-9 and below 1e3, after small constants were added."""
    losses = []
    for student, z in zip(current, released_target(current, previous), strict=True):
        loss = 0.0
        for p_j, z_j in zip(softmax(student, 3), z, strict=True):
            ratio = 1e-8 + p_j / (1e-9 + z_j)
            loss += p_j * log(min(max(ratio, 1e-9), 1e3))
        losses.append(loss)
    return mean(losses)


def distillation(current: Rows, previous: Rows, temperature: float) -> float:
    losses = []
    for student, teacher in zip(current, previous, strict=True):
        g = len(teacher)
        p, q = softmax(student[:g], temperature), softmax(teacher, temperature)
        loss = 0.0
        for j in range(g):
            loss -= q[j] * log(p[j])
        losses.append(loss)
    return mean(losses)


def icarl_loss(current: Rows, previous: Rows | None, labels: Sequence[int]) -> float:
    """Classification on the classes without a teacher, distillation on those with one (iCaRL, Alg. 3)."""
    losses = []
    for i, (student, label) in enumerate(zip(current, labels, strict=True)):
        g = 0 if previous is None else len(previous[i])
        loss = 0.0
        for y in range(g, len(student)):
            loss += cross_entropy(1.0 if y == label else 0.0, sigmoid(student[y]))
        for y in range(g):
            assert previous is not None
            loss += cross_entropy(sigmoid(previous[i][y]), sigmoid(student[y]))
        losses.append(loss)
    return mean(losses)


def released_icarl_loss(current: Rows, previous: Rows | None, labels: Sequence[int]) -> float:
    classification = mean([-log(softmax(student, 1)[label]) for student, label in zip(current, labels, strict=True)])
    if previous is None:
        return classification
    loss = classification
    for y in range(len(previous[0])):
        loss += mean(
            [
                cross_entropy(sigmoid(teacher[y]), sigmoid(sigmoid(student[y])))
                for student, teacher in zip(current, previous, strict=True)
            ]
        )
    return loss


def gradient_compensation_weights(current: Rows, labels: Sequence[int], old_classes: int) -> list[float]:
    if old_classes == 0:
        return [1.0 for _ in labels]
    gradients = [abs(sigmoid(student[y]) - 1) for student, y in zip(current, labels, strict=True)]
    weights = []
    for gradient, label in zip(gradients, labels, strict=True):
        group = []
        for other, other_label in zip(gradients, labels, strict=True):
            if (other_label < old_classes) == (label < old_classes):
                group.append(other)
        weights.append(gradient / mean(group))
    return weights


def compensated_loss(current: Rows, labels: Sequence[int], old_classes: int) -> float:
    weights = gradient_compensation_weights(current, labels, old_classes)
    entries = []
    for student, label, weight in zip(current, labels, weights, strict=True):
        for j in range(len(student)):
            entries.append(weight * cross_entropy(1.0 if j == label else 0.0, sigmoid(student[j])))
    return mean(entries)


def relation_distillation(current: Rows, previous: Rows, labels: Sequence[int]) -> float:
    entries = []
    for student, teacher, label in zip(current, previous, labels, strict=True):
        target = [1.0 if j == label else 0.0 for j in range(len(student))]
        for j in range(len(teacher)):
            target[j] = sigmoid(teacher[j])
        for j in range(len(student)):
            entries.append(cross_entropy(target[j], sigmoid(student[j])))
    return mean(entries)


def glfc_loss(current: Rows, previous: Rows | None, labels: Sequence[int], learned_classes: int | None = None) -> float:
    """learned_classes: how many old classes the client itself has learned, as its authors count them."""
    if previous is None:
        return compensated_loss(current, labels, 0)
    old_classes = len(previous[0]) if learned_classes is None else learned_classes
    compensated = compensated_loss(current, labels, old_classes)
    return 0.5 * compensated + 0.5 * relation_distillation(current, previous, labels)


def adaptive_weights(current: Rows, labels: Sequence[int], ends: Sequence[int]) -> list[float]:
    """LGA's weights as its authors' code computes them: of each earlier task, all up to it are one group."""
    tasks = len(ends)
    g = [abs(sigmoid(row[label]) - 1) ** (tasks / (tasks + 1)) for row, label in zip(current, labels, strict=True)]
    groups = [[i for i, label in enumerate(labels) if label >= ends[-1]]]
    for end in ends:
        groups.append([i for i, label in enumerate(labels) if label < end])
    weights = [0.0 for _ in labels]
    for group in groups:
        for i in group:
            weights[i] += g[i] / mean([g[k] for k in group])
    return [min(max(weight, 0.5), 5.0) for weight in weights]


def lga_loss(current: Rows, previous: Rows | None, labels: Sequence[int], ends: Sequence[int]) -> float:
    if previous is None:
        return compensated_loss(current, labels, 0)
    weights = adaptive_weights(current, labels, ends) if ends else [1.0 for _ in labels]
    entries = []
    for student, teacher, label, weight in zip(current, previous, labels, weights, strict=True):
        for j in range(len(student)):
            hard = 1.0 if j == label else 0.0
            soft = sigmoid(teacher[j]) if j < len(teacher) else hard
            p = sigmoid(student[j])
            entries.append(weight * (cross_entropy(hard, p) + cross_entropy(soft, p)))
    return mean(entries)


def balanced_cross_entropy(
    current: Rows, labels: Sequence[int], counts: Sequence[int], strength: float = 1.0, smoothing: float = 0.0
) -> float:
    """-log (pi_y^tau e^{f_y} / sum_j pi_j^tau e^{f_j}), over the client's own classes (Ren et al. 2020, Eq. 3)."""
    total = sum(n + smoothing for n in counts)
    values = []
    for logits, label in zip(current, labels, strict=True):
        terms = [((n + smoothing) / total) ** strength * exp(f) for f, n in zip(logits, counts, strict=True)]
        held = [term for term, n in zip(terms, counts, strict=True) if n + smoothing > 0]
        values.append(-log(terms[label] / sum(held)))
    return mean(values)


def teacher_divergence(current: Rows, previous: Rows, temperature: float) -> float:
    """FedGKD's term: T^2 * KL(teacher || student) over the classes that the teacher knows."""
    values = []
    for student, teacher in zip(current, previous, strict=True):
        q, p = softmax(teacher, temperature), softmax(student[: len(teacher)], temperature)
        values.append(temperature * temperature * divergence(q, p))
    return mean(values)


def stored_logits_error(current: Rows, stored: Rows) -> float:
    """DER++'s term (Buzzega et al., 2020, Eq. 6), over the classes that were known when logits were stored."""
    gaps = [(row[j] - kept[j]) ** 2 for row, kept in zip(current, stored, strict=True) for j in range(len(kept))]
    return sum(gaps) / len(gaps)
