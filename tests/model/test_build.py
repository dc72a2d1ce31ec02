"""A fresh network from a few numbers, with timm's weights where they are asked for."""

import pytest
import timm
import torch
from safetensors.torch import save_file

from paumer.model.build import build_model
from paumer.model.decoders import AuxHead, LinearDecoder, MaskTransformer, PUPDecoder


def test_what_is_asked_for_is_what_is_built():
    model = build_model(
        "test_vit",
        "pup",
        ["road", "sky"],
        image_size=(64, 96),
        drop_path=0.2,
        context=True,
        decoder_options={"channels": 32, "depth": 2, "scale": 4},
    )
    config = model.config
    assert (config.backbone, config.decoder, config.classes) == ("test_vit", "pup", ("road", "sky"))
    assert config.image_size == model.backbone.vit.patch_embed.img_size == (64, 96)
    assert config.decoder_options == {"channels": 32, "depth": 2, "scale": 4}
    assert isinstance(model.decoder, PUPDecoder)
    assert (model.decoder.scale, model.decoder.classifier.in_channels) == (4, 32)
    assert isinstance(model.aux_head, AuxHead)
    assert (model.aux_head.in_features, model.aux_head.out_features) == (64, 2)
    assert model.context
    assert model.backbone.blocks[-1].drop_path1.drop_prob == pytest.approx(0.2)


def test_what_is_not_said_is_usual():
    with torch.device("meta"):
        model = build_model()
        assert isinstance(build_model("test_vit", "linear").decoder, LinearDecoder)
        square = build_model("test_vit", image_size=48)
    assert model.config.backbone == "vit_tiny_patch16_384"
    assert model.config.image_size == (384, 384)
    assert square.config.image_size == (48, 48)
    assert isinstance(model.decoder, MaskTransformer)
    assert model.config.classes == tuple(f"class {number}" for number in range(19))
    assert model.config.decoder_options == {}
    assert not model.context


HALF, IMAGENET = ((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_tiny_patch16_384", HALF),
        ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", HALF),
        ("deit_tiny_patch16_224", IMAGENET),
        ("vit_small_patch14_reg4_dinov2", IMAGENET),
    ],
)
def test_normalisation_is_that_of_the_backbones_weights(name, expected):
    with torch.device("meta"):
        config = build_model(name).config
    assert (config.mean, config.std) == expected


def test_unknown_parts_are_refused():
    with pytest.raises(ValueError, match='no decoder "unet"'):
        build_model("test_vit", "unet")
    with pytest.raises(ValueError, match='timm has no backbone "tset_vit"'):
        build_model("tset_vit")
    with pytest.raises(TypeError, match="width_factor"):
        build_model("test_vit", decoder_options={"width_factor": 2})


@pytest.mark.parametrize("classes", ["road", "", True])
def test_classes_are_names_or_how_many(classes):
    with pytest.raises(TypeError, match=f"^classes is {classes!r}: give a whole number or a list"):
        build_model("test_vit", classes=classes)


@pytest.mark.parametrize(
    ("name", "count"),
    [("vit_tiny_patch16_384", 5_929_152), ("vit_small_patch16_384", 22_475_136)],
)
def test_the_encoders_have_the_papers_parameters(name, count):
    with torch.device("meta"):
        model = build_model(name, image_size=768)
    assert sum(value.numel() for value in model.backbone.parameters()) == count


def test_the_whole_segmenter_has_mmsegmentations_parameters():
    with torch.device("meta"):
        model = build_model("vit_tiny_patch16_384", "mask", 150, image_size=512)
    parts = (model.backbone, model.decoder)
    assert sum(value.numel() for part in parts for value in part.parameters()) == 6_713_388


# timm weights from a file


@pytest.fixture
def timm_file(tmp_path, lively):
    vit = lively(timm.create_model("test_vit"))
    save_file(vit.state_dict(), tmp_path / "test_vit.safetensors")
    return tmp_path / "test_vit.safetensors", vit.eval()


def test_timm_weights_load_from_a_local_file(timm_file):
    path, vit = timm_file
    model = build_model("test_vit", "linear", 3, weights=path).eval()
    own = model.backbone.vit.state_dict()
    theirs = {key: value for key, value in vit.state_dict().items() if key in own}
    assert set(theirs) == set(own)
    assert all(torch.equal(own[key], theirs[key]) for key in own)
    images = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = model.decoder(vit.forward_features(images)[:, 1:], (10, 10))
        assert torch.equal(model(images, full_size=False).logits, expected)


def test_positions_of_a_file_are_resized_to_the_size_asked_for(timm_file):
    path, _ = timm_file
    model = build_model("test_vit", image_size=(64, 96), weights=str(path))
    assert model.backbone.vit.pos_embed.shape == (1, 4 * 6 + 1, 64)


def test_a_file_with_a_tensor_missing_is_refused(timm_file, tmp_path):
    _, vit = timm_file
    state = vit.state_dict()
    del state["blocks.3.attn.qkv.weight"]
    save_file(state, tmp_path / "short.safetensors")
    with pytest.raises(ValueError, match=r"short\.safetensors.*blocks\.3\.attn\.qkv\.weight"):
        build_model("test_vit", weights=tmp_path / "short.safetensors")


def test_the_file_of_another_network_is_refused(timm_file, tmp_path):
    path, _ = timm_file
    with pytest.raises(ValueError, match="weights of test_vit4 could not be loaded from"):
        build_model("test_vit4", weights=path)
    deeper = timm.create_model("test_vit")
    deeper.blocks.append(deeper.blocks[0])
    save_file({k: v.clone() for k, v in deeper.state_dict().items()}, tmp_path / "7.safetensors")
    with pytest.raises(ValueError, match=r"not known: blocks\.6\."):
        build_model("test_vit", weights=tmp_path / "7.safetensors")


def test_a_damaged_or_missing_file_is_refused(timm_file, tmp_path):
    path, _ = timm_file
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"test_vit\.safetensors"):
        build_model("test_vit", weights=path)
    path.write_bytes(b"not a header")
    with pytest.raises(ValueError, match=r"test_vit\.safetensors"):
        build_model("test_vit", weights=path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.safetensors"):
        build_model("test_vit", weights=tmp_path / "nowhere.safetensors")
    with pytest.raises(ValueError, match="paumer import"):
        build_model("test_vit", weights=tmp_path / "weights.pth")


def test_published_deit_weights_load_when_they_are_here(request):
    path = request.config.rootpath.parent / "shared/weights/deit_tiny_patch16_224.safetensors"
    if not path.is_file():
        pytest.skip(f"no weights at {path}")
    fresh = build_model("deit_tiny_patch16_224", "linear", 3).backbone.state_dict()
    loaded = build_model("deit_tiny_patch16_224", "linear", 3, weights=path).backbone.state_dict()
    assert not [key for key in fresh if torch.equal(fresh[key], loaded[key])]
