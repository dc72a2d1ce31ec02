"""The idea itself: which patches continue, and how the others come back."""

import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paumer import pausing
from paumer.model.walk import group_by_count
from paumer.pause_config import Threshold

seeds = st.integers(0, 2**31)
amounts = st.floats(0, 1, exclude_max=True)


def tokens_of(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def resume(tokens, kept, prefix):
    return pausing.pause(tokens, pausing.rows_of(kept, tokens.shape[1], prefix))


def together(tokens, stages, prefix):
    rows = [(before, pausing.rows_of(kept, before.shape[1], prefix)) for before, kept in stages]
    return pausing.assemble(tokens, rows)


def coarse_scores(seed, batch, patches):
    """Scores with many ties."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (batch, patches), generator=rng).float()


@given(st.integers(1, 4000), amounts)
def test_the_ratio_rounds_down_and_one_patch_always_continues(n, ratio):
    keep = pausing.keep_count(n, ratio)
    assert keep == max(1, n - int(ratio * n))
    assert 1 <= keep <= n


@pytest.mark.parametrize(
    ("n", "ratio", "keep"),
    [(1024, 0.2, 820), (1024, 0.4, 615), (10, 0.0, 10), (1, 0.99, 1), (10, 0.999, 1), (3, 0.3, 3)],
)
def test_known_counts(n, ratio, keep):
    assert pausing.keep_count(n, ratio) == keep


@given(seeds, st.integers(1, 4), st.integers(1, 30), amounts)
def test_no_patch_that_continues_scores_below_a_paused_one(seed, batch, patches, ratio):
    score = coarse_scores(seed, batch, patches)
    keep = pausing.keep_count(patches, ratio)
    kept = pausing.choose(score, keep)
    assert kept.shape == (batch, keep)
    for row, patch_index in zip(score.tolist(), kept.tolist(), strict=True):
        paused = [patch for patch in range(patches) if patch not in patch_index]
        assert patch_index == sorted(set(patch_index))
        for patch in paused:
            assert row[patch] <= min(row[p] for p in patch_index)
            # Of equals, the lower patch index continues.
            assert all(p < patch for p in patch_index if row[p] == row[patch])


def test_equal_scores_go_to_the_lower_patch_index():
    score = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0]])
    assert pausing.choose(score, 3).tolist() == [[0, 1, 3]]
    assert pausing.choose(torch.zeros(2, 300), 2).tolist() == [[0, 1], [0, 1]]


@given(
    seeds,
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(0, 5),
    st.lists(amounts, max_size=4),
)
def test_assembling_undoes_pausing(seed, batch, patches, prefix, ratios):
    first = tokens = tokens_of(seed, batch, prefix + patches, 3)
    stages = []
    for number, ratio in enumerate(ratios):
        patches = tokens.shape[1] - prefix
        score = coarse_scores(seed + number, batch, patches)
        kept = pausing.choose(score, pausing.keep_count(patches, ratio))
        stages.append((tokens, kept))
        tokens = resume(tokens, kept, prefix)
        assert tokens.shape == (batch, prefix + kept.shape[1], 3)
    assert torch.equal(together(tokens, stages, prefix), first)


@given(seeds, st.integers(1, 3), st.integers(2, 15), st.integers(0, 3), amounts, amounts)
def test_every_patch_comes_back_as_it_last_was(seed, batch, patches, prefix, ratio, again):
    """A paused patch is bit-equal to what it was then; one that continued has been worked on."""
    first = tokens_of(seed, batch, prefix + patches, 2)
    kept = pausing.choose(coarse_scores(seed, batch, patches), pausing.keep_count(patches, ratio))
    second = resume(first, kept, prefix) + 100
    count = kept.shape[1]
    last = pausing.choose(coarse_scores(seed + 1, batch, count), pausing.keep_count(count, again))
    third = resume(second, last, prefix) + 1000
    whole = together(third, [(first, kept), (second, last)], prefix)
    for b in range(batch):
        for head in range(prefix):
            assert torch.equal(whole[b, head], first[b, head] + 100 + 1000)
        for patch in range(patches):
            expected = first[b, prefix + patch]
            if patch in kept[b]:
                expected = expected + 100
                if kept[b].tolist().index(patch) in last[b]:
                    expected = expected + 1000
            assert torch.equal(whole[b, prefix + patch], expected)


def test_nothing_is_written_in_place():
    first = tokens_of(0, 2, 7, 3)
    kept = torch.tensor([[0, 3], [1, 4]])
    copy = first.clone()
    tokens = resume(first, kept, 1)
    together(tokens * 2, [(first, kept)], 1)
    assert torch.equal(first, copy)


def test_gradients_flow_to_active_and_to_paused_patches():
    kept = torch.tensor([[0, 2, 3], [1, 2, 4]])
    last = torch.tensor([[1, 2], [0, 2]])

    def work(tokens):
        second = resume(tokens, kept, 1).sin()
        third = resume(second, last, 1).exp()
        return together(third, [(tokens, kept), (second, last)], 1)

    tokens = tokens_of(0, 2, 6, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(work, (tokens,))
    work(tokens).sum().backward()
    assert (tokens.grad != 0).all()


@given(seeds, st.integers(1, 6), st.integers(1, 8), st.sampled_from([-1.0, 0.0, 1.0, 2.5, 9.0]))
def test_by_threshold_each_image_pauses_what_is_below(seed, batch, patches, below):
    score = coarse_scores(seed, batch, patches)
    seen = []
    for rows, keep in group_by_count(score, Threshold(below)):
        assert rows is not None
        assert rows.tolist() == sorted(rows.tolist())
        seen += rows.tolist()
        for row in rows.tolist():
            enough = [patch for patch in range(patches) if score[row, patch] >= below]
            assert keep == max(1, len(enough))
            if enough:
                assert pausing.choose(score[row : row + 1], keep).tolist() == [enough]
    assert sorted(seen) == list(range(batch))


def test_images_with_equal_counts_share_a_group():
    score = torch.tensor([[1.0, 9.0], [9.0, 9.0], [9.0, 1.0], [1.0, 1.0]])
    groups = group_by_count(score, Threshold(5.0))
    assert [(rows.tolist(), keep) for rows, keep in groups] == [([0, 2, 3], 1), ([1], 2)]


def test_by_ratio_the_whole_batch_stays_together():
    assert group_by_count(torch.zeros(3, 10), 0.25) == [(None, 8)]


def test_a_score_that_is_not_a_number_needs_work():
    score = torch.tensor([[0.1, float("nan"), 0.9, 0.2], [0.1, 0.2, 0.3, 0.4]])
    assert pausing.choose(score, 2).tolist() == [[1, 2], [2, 3]]
    ((rows, keep),) = group_by_count(score[:1], Threshold(0.5))
    assert (rows.tolist(), keep) == ([0], 2)
    everything = torch.full((1, 3), float("nan"))
    assert pausing.choose(everything, 2).tolist() == [[0, 1]]
    assert group_by_count(everything, Threshold(0.5))[0][1] == 3


@pytest.mark.parametrize("wrong", [torch.zeros(3), torch.zeros(1, 2, 3), torch.zeros(1, 3).int()])
def test_shapes_and_types_are_checked_under_test(wrong):
    with pytest.raises(jaxtyping.TypeCheckError):
        pausing.choose(wrong, 1)


def test_shapes_are_checked_against_each_other():
    with pytest.raises(jaxtyping.TypeCheckError):
        pausing.assemble(
            torch.zeros(2, 3, 4), [(torch.zeros(3, 5, 4), torch.zeros(6, dtype=torch.long))]
        )
