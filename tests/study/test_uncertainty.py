import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paumer.criteria import entropy, patch_labels
from paumer.study.uncertainty import BINS, EntropyCounts, block_logits, read_heads, study_blocks


def test_the_last_block_of_the_walk_is_timms(predictor):
    network = predictor.network
    images = torch.randn(2, 3, 32, 48)
    with torch.inference_mode():
        *_, last = block_logits(network, images)
        tokens, _ = network.backbone.embed(images)
        for block in network.backbone.vit.blocks:
            tokens = block(tokens)
        expected = network.aux_head(tokens)[:, network.backbone.prefix :]
    assert torch.equal(last, expected)


def test_counts_equal_a_count_patch_by_patch(predictor, images):
    data = images(3)
    counts, confusions = study_blocks(predictor, data, [0, 2])
    depth = predictor.network.backbone.depth
    expected = np.zeros((depth, 3, 2, BINS), int)
    for place in (0, 2):
        sample = data[place]
        truth = patch_labels(torch.from_numpy(sample.labels)[None], (16, 16), 3)[0]
        with torch.inference_mode():
            blocks = list(block_logits(predictor.network, predictor.network_inputs(sample.image)))
        for block, logits in enumerate(blocks):
            values = entropy(logits, truth[None])[0]
            for patch in range(len(truth)):
                if truth[patch] != 255:
                    right = int(logits[0, patch].argmax() == truth[patch])
                    share = values[patch].item() / np.log(3)
                    expected[block, truth[patch], right, min(int(share * BINS), BINS - 1)] += 1
    assert counts.counts.sum() == expected.sum()
    # A value on the border of two bins may fall to either side.
    assert np.abs(counts.counts - expected).sum() <= 4
    assert len(confusions) == depth
    assert all(one.counts.sum() == (data.truths[[0, 2]] != 255).sum() for one in confusions)


def test_rows_tell_all_counts(predictor, images):
    counts, _ = study_blocks(predictor, images(2), [0, 1])
    rows = list(counts.rows("abc"))
    assert sum(row["patches"] for row in rows) == counts.counts.sum()
    assert {row["block"] for row in rows} == set(range(1, 7))
    assert all(0 <= row["entropy"] <= np.log(3) for row in rows)
    doubled = counts + counts
    assert np.array_equal(doubled.counts, 2 * counts.counts)
    assert EntropyCounts.empty(6, 3).counts.sum() == 0


def test_heads_of_their_own_are_used(predictor, images, tmp_path):
    network = predictor.network
    own = {}
    for block in range(6):
        own[f"{block}.weight"] = torch.zeros(3, network.backbone.width)
        own[f"{block}.bias"] = torch.eye(3)[block % 3].mul(9)
    save_file(own, tmp_path / "heads.safetensors")
    heads = read_heads(tmp_path, network)
    _, confusions = study_blocks(predictor, images(2), [0, 1], heads)
    for block, one in enumerate(confusions):
        assert one.counts.sum(0).argmax() == block % 3
        assert (one.counts.sum(0) > 0).sum() == 1


def test_heads_that_do_not_fit_are_refused(predictor, tmp_path):
    with pytest.raises(FileNotFoundError, match="block-heads"):
        read_heads(tmp_path, predictor.network)
    save_file({"0.weight": torch.zeros(1)}, tmp_path / "heads.safetensors")
    with pytest.raises(ValueError, match="do not fit"):
        read_heads(tmp_path, predictor.network)
