"""The decoders, against their formulas and with their limits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from paumer.model.decoders import (
    LinearDecoder,
    MaskTransformer,
    PUPDecoder,
    TokenDecoder,
    create_decoder,
    to_grid,
    upsample,
)


def tokens(count=12, width=64, batch=2):
    return torch.randn(batch, count, width, generator=torch.Generator().manual_seed(0))


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_the_grid_is_filled_in_reading_order(batch, height, width, channels):
    values = torch.arange(float(batch * height * width * channels))
    values = values.view(batch, height * width, channels)
    grid = to_grid(values, (height, width))
    for y in range(height):
        for x in range(width):
            assert torch.equal(grid[:, :, y, x], values[:, y * width + x])


def test_upsampling_aligns_pixel_centres():
    ramp = torch.tensor([[[[0.0, 1.0]]]])
    assert upsample(ramp, (1, 4)).flatten().tolist() == [0, 0.25, 0.75, 1]


def test_the_linear_decoder_is_a_1x1_convolution(lively):
    decoder = lively(LinearDecoder(64, 5))
    got = decoder(tokens(), (3, 4))
    weight = decoder.head.weight[:, :, None, None]
    expected = F.conv2d(to_grid(tokens(), (3, 4)), weight, decoder.head.bias)
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_mask_transformer_follows_its_formula(lively, depth):
    decoder = lively(MaskTransformer(64, 5, depth=depth)).eval()
    both = torch.cat(
        [
            F.linear(tokens(), decoder.project.weight, decoder.project.bias),
            decoder.class_embedding.repeat(2, 1, 1),
        ],
        1,
    )
    for block in decoder.blocks:
        both = both + block.attn(block.norm1(both))
        both = both + block.mlp(block.norm2(both))
    both = F.layer_norm(both, (64,), decoder.norm.weight, decoder.norm.bias, 1e-5)
    patches = both[:, :12] @ decoder.project_patches.weight.T
    classes = both[:, 12:] @ decoder.project_classes.weight.T
    masks = torch.einsum(
        "bnd,bkd->bnk",
        patches / patches.norm(dim=-1, keepdim=True),
        classes / classes.norm(dim=-1, keepdim=True),
    )
    mean, deviation = masks.mean(-1, keepdim=True), masks.var(-1, correction=0, keepdim=True)
    expected = (masks - mean) / (deviation + 1e-5).sqrt()
    expected = expected * decoder.mask_norm.weight + decoder.mask_norm.bias
    assert torch.allclose(decoder.token_logits(tokens()), expected, atol=1e-4)
    assert torch.allclose(decoder(tokens(), (3, 4)), to_grid(expected, (3, 4)), atol=1e-4)


def test_every_norm_of_the_mask_transformer_has_torchs_eps():
    norms = [m for m in MaskTransformer(64, 5).modules() if isinstance(m, torch.nn.LayerNorm)]
    assert len(norms) == 6
    assert {norm.eps for norm in norms} == {1e-5}


def test_mask_transformer_heads_have_64_channels():
    assert [b.attn.num_heads for b in MaskTransformer(192, 5).blocks] == [3, 3]


@pytest.mark.parametrize("options", [{}, {"channels": 32, "depth": 2, "scale": 4}])
def test_pup_follows_its_formula(lively, options):
    decoder = lively(PUPDecoder(64, 5, **options)).eval()
    features = to_grid(tokens(), (3, 4))
    steps = list(decoder.convolutions)
    for number, (conv, norm, _) in enumerate(steps):
        features = F.conv2d(features, conv.weight, padding=1)
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        features = features * scale[:, None, None]
        features = features + (norm.bias - norm.running_mean * scale)[:, None, None]
        features = features.clamp(min=0)
        if number < len(steps) - 1:
            features = F.interpolate(features, scale_factor=decoder.scale, mode="bilinear")
    expected = F.conv2d(features, decoder.classifier.weight, decoder.classifier.bias)
    got = decoder(tokens(), (3, 4))
    assert got.shape == expected.shape == (2, 5, *((24, 32) if not options else (12, 16)))
    assert torch.allclose(got, expected, atol=1e-4)


def test_the_papers_pup_enlarges_16_times_in_all():
    decoder = PUPDecoder(192, 19, channels=192, depth=2, scale=4)
    assert decoder.scale ** len(decoder.convolutions) == 16
    original = PUPDecoder(1024, 19)
    assert original.scale ** len(original.convolutions) == 16
    assert original.classifier.in_channels == 256


@pytest.mark.parametrize("name", ["linear", "mask"])
def test_token_decoders_work_on_any_number_of_tokens(name):
    decoder = create_decoder(name, 64, 5).eval()
    assert isinstance(decoder, TokenDecoder)
    for count in (1, 7, 12):
        assert decoder.token_logits(tokens(count)).shape == (2, count, 5)


def test_pup_is_no_token_decoder():
    assert not isinstance(create_decoder("pup", 64, 5), TokenDecoder)


def test_an_unknown_decoder_is_refused_with_the_choice():
    with pytest.raises(ValueError, match=r'no decoder "unet": choose one of linear, mask, pup'):
        create_decoder("unet", 64, 5)


@pytest.mark.parametrize("classes", [1, 2, 150])
@pytest.mark.parametrize("name", ["linear", "mask", "pup"])
def test_any_number_of_classes_will_do(name, classes):
    decoder = create_decoder(name, 64, classes).eval()
    assert decoder(tokens(4), (2, 2)).shape[1] == classes
