import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from paumer.criteria import entropy, patch_labels
from paumer.model.segmenter import pad_to_patches
from paumer.study.accuracy import Tally
from paumer.study.uncertainty import (
    BINS,
    block_logits,
    block_rows,
    entropy_rows,
    read_heads,
    study_blocks,
)


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
    counts, tallies = study_blocks(predictor, data, [0, 2])
    depth = predictor.network.backbone.depth
    expected = np.zeros((depth, 3, 2, BINS), int)
    for index in (0, 2):
        sample = data[index]
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
    assert counts.sum() == expected.sum()
    # A value on the border of two bins may fall to either side.
    assert np.abs(counts - expected).sum() <= 4
    assert len(tallies) == depth
    assert all(one.confusion.sum() == (data.truths[[0, 2]] != 255).sum() for one in tallies)
    assert all(one.indices.tolist() == [0, 2] for one in tallies)


def test_rows_tell_all_counts(predictor, images):
    counts, tallies = study_blocks(predictor, images(2), [0, 1])
    rows = entropy_rows(counts, "abc")
    assert sum(row["patches"] for row in rows) == counts.sum()
    assert {row["block"] for row in rows} == set(range(1, 7))
    assert all(0 <= row["entropy"] <= np.log(3) for row in rows)
    together = entropy_rows(counts)
    assert sum(row["patches"] for row in together) == counts.sum()
    for row in together:
        keys = [key for key in row if key != "patches"]
        alike = [one for one in rows if all(one[key] == row[key] for key in keys)]
        assert sum(one["patches"] for one in alike) == row["patches"]
        assert "class" not in row
    blocks = block_rows(tallies)
    assert [row["block"] for row in blocks] == list(range(1, 7))
    assert [row["miou"] for row in blocks] == [one.miou for one in tallies]
    assert [row["pixel_accuracy"] for row in blocks] == [one.pixel_accuracy for one in tallies]


@pytest.mark.parametrize("side", [40, 64])
def test_pixels_are_labelled_as_by_enlarging_the_heads_logits(predictor, images, side):
    """What was padded to whole patches is cut off."""
    data = images(1)
    data.images = np.tile(data.images, (1, 2, 2, 1))[:, :side]
    data.truths = np.tile(data.truths, (1, 2, 2))[:, :side]
    _, tallies = study_blocks(predictor, data, [0])
    seen = pad_to_patches(predictor.whole_input(data.images[0]), (16, 16))
    with torch.inference_mode():
        *_, last = block_logits(predictor.network, seen)
    grid = last[0].T.reshape(1, 3, *predictor.network.grid(seen))
    logits = F.interpolate(grid, size=tuple(seen.shape[2:]), mode="bilinear")
    expected = Tally.of(0, logits[0].argmax(0).numpy()[:side, :96], data.truths[0], 3)
    different = np.abs(tallies[-1].confusion - expected.confusion).sum()
    assert different <= 4  # Where two classes are equally likely.


def test_heads_of_their_own_are_used(predictor, images, tmp_path):
    network = predictor.network
    own = {}
    for block in range(6):
        own[f"{block}.weight"] = torch.zeros(3, network.backbone.width)
        own[f"{block}.bias"] = torch.eye(3)[block % 3].mul(9)
    save_file(own, tmp_path / "heads.safetensors")
    heads = read_heads(tmp_path, network)
    _, tallies = study_blocks(predictor, images(2), [0, 1], heads)
    for block, one in enumerate(tallies):
        assert one.confusion.sum(0).argmax() == block % 3
        assert (one.confusion.sum(0) > 0).sum() == 1


def test_heads_that_do_not_fit_are_refused(predictor, tmp_path):
    with pytest.raises(FileNotFoundError, match="block-heads"):
        read_heads(tmp_path, predictor.network)
    save_file({"0.weight": torch.zeros(1)}, tmp_path / "heads.safetensors")
    with pytest.raises(ValueError, match="do not fit"):
        read_heads(tmp_path, predictor.network)
