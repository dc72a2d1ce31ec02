"""The losses of the paper: the main decoder's, and the auxiliary head's at each pause."""

import pytest
import torch
from torch.nn import functional as F

from paumer import build_model
from paumer.criteria import entropy
from paumer.training.losses import HeadsLoss, LossSettings, PausingLoss, PixelLoss


@pytest.fixture
def network(lively):
    options = {"dropout": 0.0}
    return lively(build_model("test_vit", "mask", 3, image_size=64, decoder_options=options))


@pytest.fixture
def loss(network):
    return PausingLoss(network).train()


@pytest.fixture
def batch():
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 60, 64, generator=rng)
    return images, torch.randint(0, 3, (2, 60, 64), generator=rng)


def losses(loss, batch, text):
    return loss(*batch, text, entropy)


def test_the_main_loss_is_that_of_the_full_size_logits(loss, batch):
    images, labels = batch
    labels[0, :30] = 255
    found = losses(loss, batch, "2:0.6")
    logits = loss.network(images, "2:0.6").logits
    expected = F.cross_entropy(logits, labels, ignore_index=255, reduction="sum")
    assert found.main.item() == pytest.approx(expected.item(), rel=1e-5)


def test_without_a_pause_there_is_no_auxiliary_loss(loss, batch):
    assert losses(loss, batch, "none").aux == 0
    assert losses(loss, batch, "2:0.6").aux > 0


def test_each_pause_has_its_auxiliary_loss(loss, batch):
    first, both = (losses(loss, batch, text).aux for text in ("1:0.5", "1:0.5,3:0.5"))
    second = losses(loss, batch, "3:0.5").aux
    assert both > first
    # The second one sees fewer patches, and those of the paused ones as they were before.
    assert (both - first).item() != pytest.approx(second.item(), rel=1e-3)


def test_paused_patches_are_not_learnt_from_again(loss, batch):
    images, labels = batch
    prediction = loss.network(images, "1:0.5,3:0.5", full_size=False)
    first, second = prediction.stages
    once = loss.aux_loss([first], prediction.grid, labels)
    both = loss.aux_loss([first, second], prediction.grid, labels)
    (alone,) = torch.autograd.grad(once, first.logits, retain_graph=True)
    again, later = torch.autograd.grad(both, [first.logits, second.logits])
    assert torch.allclose(again, alone)
    assert later.abs().sum() > 0


def test_pixels_count_by_their_class_and_not_without_a_label(network, batch):
    _, labels = batch
    labels[:, :10] = 255
    plain = PixelLoss(network)
    assert torch.equal(plain.pixel_weights(labels), (labels != 255).float())
    weights = torch.tensor([0.5, 1.0, 2.0])
    weighted = PixelLoss(network, weights)
    expected = sum(weight * (labels == number) for number, weight in enumerate(weights))
    assert torch.equal(weighted.pixel_weights(labels), expected)
    logits = torch.zeros(2, 3, 4, 4)
    mean = weighted.cross_entropy(logits, labels) / weighted.pixel_weights(labels).sum()
    assert mean.item() == pytest.approx(torch.tensor(3.0).log().item(), rel=1e-5)
    assert "class_weights" not in weighted.state_dict()


def naive_cross_entropy(logits, labels, weights, focal, smoothing):
    """Pixel by pixel, as the formulas say."""
    total, classes = 0.0, logits.shape[1]
    for image, row, column in (labels != 255).nonzero().tolist():
        log_p = logits[image, :, row, column].double().log_softmax(0)
        label = int(labels[image, row, column])
        sure = -weights[label] * log_p[label]
        spread = -(weights * log_p).sum() / classes
        mixed = (1 - smoothing) * sure + smoothing * spread
        total += float((1 - log_p[label].exp()) ** focal * mixed)
    return total


@pytest.mark.parametrize(("focal", "smoothing"), [(0.0, 0.1), (2.0, 0.0), (0.5, 0.2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_focal_loss_and_label_smoothing_are_as_their_formulas(network, focal, smoothing, weighted):
    rng = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(2, 3, 1, 1, generator=rng)).requires_grad_()
    labels = torch.randint(0, 3, (2, 6, 5), generator=rng)
    labels[0, :2] = 255
    weights = torch.tensor([0.5, 1.0, 2.0]) if weighted else None
    loss = PixelLoss(network, weights, LossSettings(focal, smoothing))
    found = loss.cross_entropy(logits, labels)
    plain = torch.ones(3) if weights is None else weights
    full = loss.enlarge(logits, labels).detach()
    expected = naive_cross_entropy(full, labels, plain.double(), focal, smoothing)
    assert found.item() == pytest.approx(expected, rel=1e-5)
    found.backward()
    assert logits.grad.isfinite().all()


def test_pixels_that_are_quite_clear_have_a_finite_slope(network):
    logits = torch.tensor([80.0, 0.0, 0.0])[None, :, None, None].requires_grad_()
    loss = PixelLoss(network, None, LossSettings(focal=0.5))
    loss.cross_entropy(logits, torch.zeros(1, 4, 4, dtype=torch.long)).backward()
    assert logits.grad.isfinite().all()


def test_dice_is_the_mean_over_the_classes_that_an_image_shows(network, batch):
    _, labels = batch
    labels[0] = labels[0] % 2
    labels[0, :9], labels[1, :, :7] = 255, 255
    labels = torch.cat([labels, torch.full_like(labels[:1], 255)])  # One without any label.
    logits = torch.randn(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    loss = PixelLoss(network)
    full = loss.enlarge(logits, labels).softmax(1)
    expected = 0.0
    for image in range(2):
        terms = []
        for number in range(3):
            truth, known = labels[image] == number, labels[image] != 255
            if truth.any():
                found = full[image, number][known]
                both = found[truth[known]].sum()
                terms.append(1 - 2 * both / (found.sum() + truth.sum()))
        expected += float(sum(terms) / len(terms))
    assert loss.dice(logits, labels).item() == pytest.approx(expected, rel=1e-5)
    perfect = 50 * F.one_hot(torch.zeros(1, 4, 4, dtype=torch.long), 3).movedim(-1, 1).float()
    assert loss.dice(perfect, torch.zeros(1, 64, 64, dtype=torch.long)).item() < 1e-5


def test_dice_is_given_only_where_it_is_asked_for(network, batch):
    assert losses(PausingLoss(network), batch, "2:0.6").dice is None
    asked = PausingLoss(network, None, LossSettings(dice=True))
    found = losses(asked, batch, "2:0.6")
    assert 0 < found.dice < 2
    assert found.main == losses(PausingLoss(network), batch, "2:0.6").main


@pytest.mark.parametrize("own", [False, True])
def test_only_heads_learn_on_a_frozen_network(network, batch, own):
    loss = HeadsLoss(network, own=own).train()
    found = losses(loss, batch, "none")
    assert found.aux == 0
    found.main.backward()
    learnt = {name for name, value in loss.named_parameters() if value.grad is not None}
    heads = {name for name, value in loss.named_parameters() if value.requires_grad}
    assert learnt == heads
    if own:
        depth = network.backbone.depth
        assert heads == {f"heads.{n}.{kind}" for n in range(depth) for kind in ("weight", "bias")}
        gradients = [head.weight.grad for head in loss.heads]
        assert not torch.allclose(gradients[0], gradients[1])
    else:
        assert heads == {"network.aux_head.weight", "network.aux_head.bias"}


def test_heads_learn_from_every_block(network, batch):
    """The shared head's loss is the sum of those that heads of their own would have."""
    images, labels = batch
    shared = losses(HeadsLoss(network).train(), batch, "none").main
    own = losses(HeadsLoss(network, own=True).train(), batch, "none").main
    assert shared.item() == pytest.approx(own.item(), rel=1e-6)
    padded = F.pad(images, (0, 0, 0, 4))
    total = 0.0
    for tokens in network.eval().each_block(padded):
        logits = network.aux_head(tokens[:, 1:]).transpose(1, 2).unflatten(2, (4, 4))
        full = F.interpolate(logits, (64, 64), mode="bilinear")[:, :, :60]
        total += F.cross_entropy(full, labels, reduction="sum").item()
    assert shared.item() == pytest.approx(total, rel=1e-5)


def test_what_heads_learn_from_is_not_disturbed(lively, batch):
    """No path is dropped in the frozen network, and nothing is noted in it."""
    network = lively(build_model("test_vit", "mask", 3, image_size=64, drop_path=0.9))
    loss = HeadsLoss(network).train()
    first, again = (losses(loss, batch, "none").main.item() for _ in range(2))
    assert first == again


def test_merged_patches_are_what_the_one_is_that_they_are_part_of(network, batch):
    """By a slow loop: after each pause every patch has the logits of the token it is part of."""
    images, labels = batch
    loss = PausingLoss(network)
    mode = "1-2:~0.3,2:0.4,3:~0.2,4:0.5"
    prediction = network(images, mode, full_size=False)
    found = loss.aux_loss(prediction.stages, prediction.grid, labels, prediction.merges)
    patches = prediction.grid[0] * prediction.grid[1]
    owner, known, expected = list(range(2 * patches)), {}, 0.0
    events = [(m.block, 0, m) for m in prediction.merges]
    events += [(s.block, 1, s) for s in prediction.stages]
    for _, pauses, event in sorted(events, key=lambda one: one[:2]):
        index = event.patch_index
        if pauses:
            for row, logits in zip(
                index.flatten().tolist(), event.logits.flatten(0, 1), strict=True
            ):
                known[row] = logits
            grid = torch.stack([known[row] for row in owner]).view(2, patches, -1)
            shown = grid.transpose(1, 2).reshape(2, -1, *prediction.grid)
            expected = expected + loss.cross_entropy(shown, labels)
        else:
            joining, target = event.pairs()
            for here, there in zip(joining.tolist(), target.tolist(), strict=True):
                owner = [there if one == here else one for one in owner]
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    found.backward()
    assert network.aux_head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("mode", ["none", "1-3:~0.2", "1-3:~0.2,3:0.5"])
def test_every_parameter_gets_a_gradient_in_every_kind_of_step(loss, batch, mode):
    found = losses(loss, batch, mode)
    (found.main + found.aux).backward()
    missing = [name for name, one in loss.named_parameters() if one.grad is None]
    assert missing == []
    assert (loss.network.aux_head.weight.grad.abs().sum() > 0) == (":0" in mode)
