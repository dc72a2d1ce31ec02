"""What scores the patches, against plain arithmetic."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paumer import criteria
from paumer.mode import CRITERIA, STUDY_CRITERIA

PLACES = torch.zeros(1, 1, dtype=torch.long)


def naive_softmax(row):
    top = max(row)
    powers = [math.exp(value - top) for value in row]
    return [power / sum(powers) for power in powers]


def naive_entropy(row):
    return -sum(p * math.log(p) for p in naive_softmax(row) if p > 0)


def by_name(name, logits):
    """The criterion of that name for images of one row of patches."""
    return criteria.named(name, (1, logits.shape[1]))


def index_for(logits):
    return torch.arange(logits.shape[0] * logits.shape[1]).view(logits.shape[:2])


rows = st.integers(2, 12).flatmap(
    lambda k: st.lists(st.floats(-30, 30, width=32), min_size=k, max_size=k)
)


@given(rows)
def test_entropy_equals_the_plain_formula(row):
    score = criteria.entropy(torch.tensor([[row]]), PLACES).item()
    assert score == pytest.approx(naive_entropy(row), rel=1e-4, abs=2e-6)


@given(
    hnp.arrays(
        "float32",
        hnp.array_shapes(min_dims=3, max_dims=3, max_side=6),
        elements=st.floats(-1e4, 1e4, width=32),
    )
)
def test_entropy_stays_between_zero_and_log_k_for_any_logits(values):
    logits = torch.from_numpy(values)
    score = criteria.entropy(logits, index_for(logits))
    assert score.isfinite().all()
    assert (score >= -1e-6).all()
    assert (score <= math.log(logits.shape[2]) + 1e-5).all()


def test_the_ends_of_entropy():
    sure = torch.tensor([[[1e4, -1e4, -1e4]]])
    torn = torch.tensor([[[1e4, 1e4, 1e4]]])
    half = torch.tensor([[[1e4, 1e4, -1e4]]])
    assert criteria.entropy(sure, PLACES).item() == 0
    assert criteria.entropy(torn, PLACES).item() == pytest.approx(math.log(3))
    assert criteria.entropy(half, PLACES).item() == pytest.approx(math.log(2))


@pytest.mark.parametrize("name", CRITERIA)
def test_half_precision_logits_are_scored_in_full_precision(name):
    logits = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).bfloat16()
    criterion = by_name(name, logits)
    score = criterion(logits, index_for(logits))
    assert score.dtype == torch.float32
    assert torch.equal(score, criterion(logits.float(), index_for(logits)))


def test_the_torn_patch_needs_more_work_than_the_sure_one():
    logits = torch.tensor([[[9.0, 0.0, 0.0], [1.0, 0.9, 0.8], [4.0, 2.0, 0.0]]])
    score = criteria.entropy(logits, index_for(logits))[0]
    assert score[1] > score[2] > score[0]


class TestRandom:
    @given(st.integers(0, 2**40), st.integers(0, 2**40))
    def test_the_same_seed_scores_the_same_patch_alike(self, seed, first):
        rng = torch.Generator().manual_seed(seed % 2**31)
        logits = torch.randn(2, 9, 3, generator=rng)
        one = criteria.random(seed, first)(logits, index_for(logits))
        assert torch.equal(one, criteria.random(seed, first)(logits, index_for(logits)))
        assert torch.equal(one, criteria.random(seed, first)(-logits, index_for(logits)))
        assert one.dtype == torch.float32
        assert ((one >= 0) & (one < 1)).all()

    @given(st.integers(0, 2**31), st.permutations(range(12)))
    def test_a_score_follows_the_patch_index_whoever_else_is_there(self, seed, order):
        logits, patch_index = torch.zeros(1, 12, 2), torch.arange(12)[None]
        criterion = criteria.random(seed)
        whole = criterion(logits, patch_index)
        some = torch.tensor([order[:5]])
        assert torch.equal(criterion(logits[:, :5], some), whole.gather(1, some))

    @given(st.integers(0, 2**31), st.integers(0, 10**6))
    def test_first_says_where_a_part_of_a_batch_begins(self, seed, first):
        logits, patch_index = torch.zeros(2, 10, 2), torch.arange(20).view(2, 10)
        part = criteria.random(seed, first)(logits, patch_index)
        assert torch.equal(part, criteria.random(seed)(logits, patch_index + first))

    def test_scores_are_roughly_uniform_over_patches_and_over_seeds(self):
        logits, patch_index = torch.zeros(4, 5000, 2), torch.arange(20_000).view(4, 5000)
        for seed in (0, 1, 2**31):
            counts = torch.histc(criteria.random(seed)(logits, patch_index), 10, 0, 1)
            assert ((counts - 2000).abs() < 200).all()
        same_patch = [criteria.random(seed)(logits[:1, :1], PLACES) for seed in range(500)]
        counts = torch.histc(torch.cat(same_patch), 5, 0, 1)
        assert ((counts - 100).abs() < 40).all()

    def test_neither_neighbouring_patches_nor_neighbouring_seeds_score_alike(self):
        logits, patch_index = torch.zeros(1, 5000, 2), torch.arange(5000)[None]
        scores = torch.cat([criteria.random(seed)(logits, patch_index) for seed in range(8)])
        assert len(scores.unique()) > 0.99 * scores.numel()
        between_seeds = torch.corrcoef(scores) - torch.eye(8)
        assert between_seeds.abs().max() < 0.06
        for shift in (1, 2, 16):
            pairs = torch.stack([scores[0, shift:], scores[0, :-shift]])
            assert torch.corrcoef(pairs)[0, 1].abs() < 0.06

    def test_the_global_generator_is_left_alone(self):
        before = torch.get_rng_state()
        criteria.random(1)(torch.zeros(1, 9, 2), torch.arange(9)[None])
        assert torch.equal(torch.get_rng_state(), before)


@given(st.integers(0, 2**31), st.integers(2, 6))
def test_the_oracle_pauses_ignored_then_right_then_wrong(seed, classes):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 9, classes, generator=rng) * 5
    labels = torch.randint(0, classes, (2, 9), generator=rng)
    labels[:, ::4] = 255
    score = criteria.oracle(labels)(logits, index_for(logits))
    ignored, right = labels == 255, logits.argmax(-1) == labels
    groups = [score[ignored], score[right & ~ignored], score[~right & ~ignored]]
    groups = [group for group in groups if len(group)]
    for lower, higher in itertools.pairwise(groups):
        assert lower.max() < higher.min()


def test_of_the_right_patches_the_surest_pauses_first():
    logits = torch.tensor([[[5.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 5.0]]])
    score = criteria.oracle(torch.zeros(1, 4, dtype=torch.uint8))(logits, index_for(logits))[0]
    assert score.argsort().tolist() == [0, 1, 2, 3]


def test_the_oracle_finds_its_labels_after_a_first_pause():
    """Only patches 1 and 3 of each image are left; the second image's stand 4 further."""
    labels = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 1]])
    patch_index = torch.tensor([[1, 3], [5, 7]])
    says_one = torch.tensor([0.0, 3.0]).expand(2, 2, 2)
    wrong = criteria.oracle(labels)(says_one, patch_index) > 1
    assert wrong.tolist() == [[False, True], [True, False]]


def naive_patch_labels(labels, patch, classes, ignore):
    height, width = len(labels), len(labels[0])
    found = []
    for top in range(0, height, patch[0]):
        for left in range(0, width, patch[1]):
            votes = [0] * classes
            for y in range(top, min(top + patch[0], height)):
                for x in range(left, min(left + patch[1], width)):
                    if labels[y][x] != ignore:
                        votes[labels[y][x]] += 1
            found.append(votes.index(max(votes)) if any(votes) else ignore)
    return found


@given(
    st.integers(0, 2**31),
    st.integers(1, 11),
    st.integers(1, 11),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 4),
    st.sampled_from([torch.uint8, torch.int32, torch.int64]),
)
def test_patch_labels_equal_a_plain_count(seed, height, width, patch, classes, dtype):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes + 1, (2, height, width), generator=rng)
    labels[labels == classes] = 255
    got = criteria.patch_labels(labels.to(dtype), patch, classes)
    for image, row in zip(labels.tolist(), got.tolist(), strict=True):
        assert row == naive_patch_labels(image, patch, classes, 255)


def test_equal_votes_go_to_the_lower_label_and_padding_has_no_vote():
    labels = torch.tensor([[[2, 1, 2], [1, 255, 255]]])
    assert criteria.patch_labels(labels, (2, 2), 3).tolist() == [[1, 2]]
    assert criteria.patch_labels(labels - 1, (2, 2), 3, ignore=254).tolist() == [[0, 1]]


def test_a_patch_without_any_label_is_ignored():
    labels = torch.full((1, 3, 3), 7)
    labels[0, 0, 0] = 0
    assert criteria.patch_labels(labels, (2, 2), 2, ignore=7).tolist() == [[0, 7, 7, 7]]


def test_protected_classes_pause_last():
    logits = torch.tensor([[[5.0, 0, 0], [0, 9.0, 0], [0, 0, 0.1], [0, 6.0, 0]]])
    patch_index = torch.arange(4)[None]
    score = criteria.protecting(criteria.entropy, [1])(logits, patch_index)
    assert score[0].argsort(descending=True).tolist() == [3, 1, 2, 0]


def test_names_stand_for_criteria():
    logits = torch.randn(1, 6, 3, generator=torch.Generator().manual_seed(0))
    patch_index = index_for(logits)
    assert criteria.named("entropy", (2, 3)) is criteria.entropy
    assert torch.equal(
        criteria.named("neighbours", (2, 3))(logits, patch_index),
        criteria.neighbours((2, 3))(logits, patch_index),
    )
    for name in (*STUDY_CRITERIA, "luck"):
        with pytest.raises(ValueError, match=f'nothing says what "{name}" knows'):
            criteria.named(name, (2, 3))


def test_an_unclear_patch_asks_for_work_around_it():
    logits = torch.zeros(1, 9, 2)
    logits[..., 0] = 8.0
    logits[0, 0, 0] = 0.0  # The upper left patch is unclear.
    score = criteria.neighbours((3, 3))(logits, torch.arange(9)[None])[0]
    near = [0, 1, 3, 4]
    far = [2, 5, 6, 7, 8]
    assert score.argmax() == 0
    assert score[near].min() > score[far].max()


def test_a_patch_needs_what_its_neighbourhood_needs_on_average():
    rng = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 8, 3, generator=rng) * 4
    patch_index = torch.tensor([[0, 1, 2, 3, 5, 7, 8, 11], [13, 14, 15, 16, 18, 20, 22, 23]])
    own = criteria.entropy(logits, patch_index)
    score = criteria.neighbours((3, 4))(logits, patch_index)
    for image, row in enumerate(patch_index.tolist()):
        spots = [divmod(place % 12, 4) for place in row]
        for mine, (down, across) in enumerate(spots):
            near = [
                own[image, other].item()
                for other, (y, x) in enumerate(spots)
                if abs(y - down) <= 1 and abs(x - across) <= 1
            ]
            expected = sum(near) / len(near) + own[image, mine].item() / 1000
            assert score[image, mine].item() == pytest.approx(expected, rel=1e-5)


def test_paused_patches_say_nothing_of_their_neighbours():
    logits = torch.zeros(2, 2, 2)
    logits[:, 0, 0] = 8.0  # One clear patch, one unclear one, far from each other.
    patch_index = torch.tensor([[0, 8], [9, 17]])  # The corners of two images.
    score = criteria.neighbours((3, 3))(logits, patch_index)
    assert torch.isfinite(score).all()
    assert (score[:, 0] < 0.1).all()
    assert (score[:, 1] > 0.6).all()
