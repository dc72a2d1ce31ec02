"""Merging patches: what becomes one, and how it comes apart."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paumer.merging import Merge, come_apart, match, merge, merged_count, spread
from paumer.model.backbone import attention_bias
from paumer.pausing import Stage


def tokens(batch, n, seed=0, width=6):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(batch, n, width, generator=rng, dtype=torch.float64)


def owner_of(found):
    """Which of those that stay each patch is part of."""
    batch, keep = found.kept.shape
    return spread(torch.arange(keep).expand(batch, -1), found)


@given(st.integers(2, 40), st.integers(1, 3), st.floats(0, 0.5), st.integers(0, 9))
def test_all_patches_are_found_in_what_is_left(n, batch, ratio, seed):
    patches, keep = tokens(batch, n, seed), merged_count(n, ratio)
    assert keep >= n - n // 2
    found = match(patches, keep)
    kept, owner = found.kept, owner_of(found)
    assert kept.shape == (batch, keep)
    assert torch.equal(kept, kept.sort(1).values)
    for one, into in zip(kept, owner, strict=True):
        assert len(set(one.tolist())) == keep
        assert into[one].tolist() == list(range(keep)), "what stays is part of itself"
        gone = sorted(set(range(n)) - set(one.tolist()))
        assert all(number % 2 == 0 for number in gone)
        assert all(int(one[into[number]]) % 2 == 1 for number in gone)


@given(st.integers(2, 30), st.integers(0, 9))
def test_those_most_alike_are_merged(n, seed):
    patches = tokens(1, n, seed)
    unit = torch.nn.functional.normalize(patches[0], dim=-1)
    best = (unit[::2] @ unit[1::2].T).max(1).values
    found = match(patches, n - 1)
    kept, owner = found.kept, owner_of(found)
    (gone,) = set(range(n)) - set(kept[0].tolist())
    assert best[gone // 2] == best.max()
    assert unit[gone] @ unit[kept[0, owner[0, gone]]] == pytest.approx(float(best.max()))


def test_equals_go_to_the_first():
    found = match(torch.ones(1, 6, 3), 4)
    assert found.kept.tolist() == [[1, 3, 4, 5]]
    assert found.joining.tolist() == [[0, 2]]
    assert found.into.tolist() == [[0, 0]]
    assert owner_of(found).tolist() == [[0, 0, 0, 1, 2, 3]]


@given(st.integers(2, 30), st.floats(0, 0.5), st.integers(0, 9))
def test_what_is_merged_is_the_mean_over_patches(n, ratio, seed):
    patches, keep = tokens(2, n, seed), merged_count(n, ratio)
    sizes = torch.randint(1, 9, (2, n), generator=torch.Generator().manual_seed(seed)).double()
    found = match(patches, keep)
    means, together = merge(patches, sizes, found)
    owner = owner_of(found)
    assert torch.equal(together.sum(1), sizes.sum(1))
    for image in range(2):
        for number in range(keep):
            part = owner[image] == number
            weight = sizes[image, part] / sizes[image, part].sum()
            expected = (weight[:, None] * patches[image, part]).sum(0)
            assert torch.allclose(means[image, number], expected, rtol=0, atol=1e-12)
            assert together[image, number] == sizes[image, part].sum()


def test_an_image_does_not_feel_its_companions():
    patches = tokens(3, 20)
    together = match(patches, 13)
    for number in range(3):
        alone = match(patches[number : number + 1], 13)
        assert all(torch.equal(a[0], t[number]) for a, t in zip(alone, together, strict=True))


def test_gradients_pass_and_finish():
    patches = tokens(2, 9).requires_grad_()
    means, _ = merge(patches, torch.ones(2, 9).double(), match(patches, 6))
    means.square().sum().backward()
    assert bool((patches.grad != 0).all())


def test_the_bias_counts_a_token_as_often_as_it_stands_for_a_patch():
    bias = attention_bias(torch.tensor([[1.0, 3.0]]), before=1, behind=2)
    assert bias.shape == (1, 1, 1, 5)
    assert bias.exp().flatten().tolist() == pytest.approx([1, 1, 3, 1, 1])


@given(
    st.integers(4, 30),
    st.lists(st.tuples(st.booleans(), st.floats(0, 0.5)), min_size=1, max_size=5),
    st.integers(0, 9),
)
def test_patches_come_apart_to_where_they_went(n, plan, seed):
    batch = 2
    active = torch.arange(batch * n).view(batch, n)
    events, gone, members = [], [], [[[i] for i in row] for row in active.tolist()]
    for number, (merges, ratio) in enumerate(plan):
        count = active.shape[1]
        if merges and count > 1:
            keep = merged_count(count, ratio)
            found = match(tokens(batch, count, seed + number), keep)
            kept, owner = found.kept, owner_of(found)
            events.append(Merge(1, active, found))
            new = [[[] for _ in range(keep)] for _ in range(batch)]
            for image in range(batch):
                for i in range(count):
                    new[image][owner[image, i]] += members[image][i]
            members = new
        else:
            keep = max(1, count - int(ratio * count))
            kept = torch.stack([torch.randperm(count)[:keep].sort().values for _ in range(batch)])
            empty = torch.zeros(batch, count, 0)
            events.append(Stage(1, empty, active, empty, empty.sum(2), kept, kept[0]))
            pairs = list(zip(members, kept.tolist(), strict=True))
            gone.append([[m for i, m in enumerate(row) if i not in k] for row, k in pairs])
            members = [[row[i] for i in k] for row, k in pairs]
        active = active.gather(1, kept)
    rows, paused = come_apart(active.shape[1], events)
    assert [part.shape[1] for _, part in paused] == [len(part[0]) for part in gone]
    for image in range(batch):
        line = [*members[image], *(m for part in gone for m in part[image])]
        assert [image * n + i in line[rows[image, i]] for i in range(n)] == [True] * n
