"""Probes on hand-made vectors: planted directions, control tasks, and an outside implementation of the same loss."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from interp import InputError
from interp import probes as p

K = 5  # classes
TYPES = 200  # word types


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy(n_sites: int = 3, n_items: int = 700, size: int = 11, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Correlated vectors, and labels of two tasks, of which site 0 partly encodes the first."""
    random = generator(seed)
    vectors = torch.randn(n_sites, n_items, size, generator=random) @ torch.randn(n_sites, size, size, generator=random)
    scores = vectors[0] @ torch.randn(size, K, generator=random) + 3 * torch.randn(n_items, K, generator=random)
    return vectors, torch.stack([scores.argmax(-1), torch.randint(K, (n_items,), generator=random)])


def rotation(size: int) -> torch.Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=generator(9), dtype=torch.float64))[0]


def text(n_items: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Equally frequent word types and their tags: each type has one tag, each tag many types."""
    types = torch.randint(TYPES, (n_items,), generator=generator(seed))
    return types, types % K


def accuracies(train: torch.Tensor, test: torch.Tensor, seed: int = 0) -> tuple[float, float]:
    """Accuracy of the tag and of its control task, from vectors of the items of `text(.., 1)` and `text(.., 2)`."""
    sides = [text(train.shape[0], 1), text(test.shape[0], 2)]
    classes = p.control_labels([str(number) for number in range(TYPES)], sides[0][1].tolist(), seed=seed)
    labels, expected = (
        torch.stack([tags, torch.tensor([classes[str(kind)] for kind in types.tolist()])]) for types, tags in sides
    )
    right = p.fit(train[None], labels, K).predict(test[None])[0] == expected
    tag, control = right.double().mean(-1).tolist()
    return tag, control


def test_planted_tag_directions_are_read_perfectly_and_the_control_is_chance():
    directions = torch.randn(K, 13, generator=generator())
    train, test = (directions[text(2000, seed)[1]] for seed in (1, 2))
    results = [accuracies(train, test, seed) for seed in range(4)]
    assert [tag for tag, _ in results] == [1.0] * 4
    # 40 types per tag, so the commonest control class of a tag has little more than its share
    assert np.mean([control for _, control in results]) == pytest.approx(1 / K, abs=0.12)


def test_word_identity_has_no_selectivity():
    train, test = (torch.eye(TYPES)[text(3000, seed)[0]] for seed in (1, 2))
    tag, control = accuracies(train, test)
    assert control > 0.95  # memorised
    assert tag - control <= 0.02  # every type is seen, so the control task gives as much


def test_loss_and_accuracy_are_those_of_scikit_learn():
    penalty, (vectors, labels) = 0.02, noisy()
    probe = p.fit(vectors, labels, K, penalty=penalty)
    scaled, predicted = p.Scaling.of(vectors)(vectors), probe.predict(vectors)
    for site in range(len(vectors)):
        for task, classes in enumerate(labels.numpy()):
            theirs = LogisticRegression(C=1 / (penalty * len(classes)), max_iter=2000, tol=1e-8)
            theirs.fit(scaled[site].numpy(), classes)
            loss = log_loss(classes, theirs.predict_proba(scaled[site].numpy()))
            assert float(probe.loss[site, task]) == pytest.approx(loss, abs=1e-3)
            accuracy = float((predicted[site, task].numpy() == classes).mean())
            assert accuracy == pytest.approx(theirs.score(scaled[site].numpy(), classes), abs=1e-2)


@pytest.mark.parametrize("change", ["order", "rotation", "scale and shift", "items"])
def test_no_choice_of_coordinates_changes_a_probe(change, monkeypatch):
    vectors, labels = (each.double() if each.is_floating_point() else each for each in noisy())
    size, order = vectors.shape[-1], torch.randperm(vectors.shape[1], generator=generator(4))
    changed = {
        "order": vectors.flip(-1),
        "rotation": vectors @ rotation(size),
        "scale and shift": 7 * vectors - 3,
        "items": vectors[:, order],
    }[change]
    new_labels = labels[:, order] if change == "items" else labels
    together = p.fit(vectors, labels, K).loss
    monkeypatch.setattr(p.logistic, "_LOGITS", 1)  # fitting sites together or apart makes no difference
    torch.testing.assert_close(p.fit(changed, new_labels, K).loss, together, atol=1e-4, rtol=0)


def test_threads_may_be_set_to_one_and_back():
    """MKL's batched LU then fails; curvatures are positive definite, so we invert them without it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_num_threads(2)
    probe = p.fit(torch.randn(5, 600, 256, generator=generator()), torch.arange(600)[None] % 3, 3)
    torch.set_num_threads(threads)
    assert probe.loss.isfinite().all()


def test_the_layer_that_says_it_has_the_shares():
    labels = text(1500, 1)[1]
    layers = torch.randn(4, 1500, 13, generator=generator())
    layers[2] += 4 * torch.randn(K, 13, generator=generator(1))[labels]
    scaled = p.Scaling.of(layers)(layers)
    mix = p.fit_mix(scaled, labels, K)
    assert mix.shares.sum() == pytest.approx(1.0, abs=1e-6)
    assert p.centre_of_gravity(mix.shares) == pytest.approx(2.0, abs=0.1)
    assert (mix.predict(scaled) == labels).float().mean() > 0.99


def test_expected_layer_by_hand():
    right = torch.tensor([[0.0, 0, 0, 1], [1, 0, 0, 1], [1, 1, 0, 1], [1, 1, 1, 0]])
    above, below = p.expected_layer_terms(right)
    assert above.tolist() == [1, 2, 3, -3]  # gained after block 1, 2, 3; lost after block 3
    assert below.tolist() == [1, 1, 1, -1]
    assert above.sum() / below.sum() == 1.5


def test_control_classes_are_fixed_by_type_and_have_the_shares_of_the_labels():
    names = [f"w{number}" for number in range(4000)]
    classes = p.control_labels(names, [0] * 70 + [1] * 20 + [2] * 10, seed=3)
    assert classes == p.control_labels(names[::-1] + names, [2] * 10 + [0] * 70 + [1] * 20, seed=3)
    assert classes != p.control_labels(names, [0] * 70 + [1] * 20 + [2] * 10, seed=4)
    shares = np.bincount([*classes.values()]) / len(names)
    assert shares == pytest.approx([0.7, 0.2, 0.1], abs=0.03)


def test_commonest_label_of_a_type_and_of_all():
    by_type, overall = p.commonest_labels(["ring", "ring", "ring", "the", "a"], [1, 1, 0, 2, 2])
    assert by_type == {"ring": 1, "the": 2, "a": 2}
    assert overall == 1  # ties go to the lower class


def test_only_the_product_says_that_two_words_agree():
    random = generator()
    kinds = torch.randint(2, (2, 1000), generator=random)
    ends = 2.0 * kinds[..., None] - 1 + 0.3 * torch.randn(2, 1000, 7, generator=random)
    labels = (kinds[0] == kinds[1]).long()[None]
    axes = p.Axes.of(ends.flatten(0, 1)[None], 7)
    first, second = axes(ends[:1]), axes(ends[1:])
    with_product, without = p.edge_vectors(first, second), torch.cat([first, second], -1)
    assert (p.fit(with_product, labels, 2).predict(with_product)[0] == labels).float().mean() > 0.99
    assert (p.fit(without, labels, 2).predict(without)[0] == labels).float().mean() < 0.6
    vectors = torch.zeros(1, 50, 5).index_fill_(2, torch.tensor(0), 1) * torch.arange(50)[:, None]
    result = p.Axes.of(vectors, 3)(vectors)  # constants stay 0
    assert (result.abs().amax((0, 1)) > 0).tolist() == [False, False, True]
    with pytest.raises(InputError, match="at least two, got 1"):
        p.fit(with_product, labels * 0, 1)
