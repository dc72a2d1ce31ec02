"""Checkpoints of other projects, against a forward pass written on their own tensor names."""

import codecs
import functools
import os
import pickle
import zipfile
from collections import Counter, OrderedDict
from pathlib import Path

import pytest
import torch
import yaml
from torch.nn import functional as F

from paumer.classes import ADE20K, CITYSCAPES
from paumer.model.directory import load_tensors
from paumer.model.foreign import read_checkpoint
from paumer.model.segmenter import PausingSegmenter

# Their tensors


def fill(shapes):
    """Random tensors of these shapes, drawn once only."""
    return dict(draw_values(tuple(shapes.items())))


@functools.cache
def draw_values(shapes):
    """Small where it shows whether a norm's eps is right, otherwise of ordinary size."""
    rng = torch.Generator().manual_seed(0)
    state = {}
    for key, shape in shapes:
        value = torch.randn(shape, generator=rng)
        small = ("pos_embed", "token", "patch_embed", "proj_dec", "dec_proj", "cls_emb")
        if any(word in key for word in small):
            state[key] = value * (0.01 if len(shape) < 4 else 0.01 * shape[1:].numel() ** -0.5)
        elif len(shape) > 1:
            state[key] = value * shape[1:].numel() ** -0.5
        else:
            state[key] = value * 0.2 + ("weight" in key)
    return state


def both(name, *shape):
    """Weight and bias of a layer."""
    return {f"{name}.weight": torch.Size(shape), f"{name}.bias": torch.Size(shape[:1])}


def rstrudel_block(name, d):
    return (
        both(f"{name}.norm1", d)
        | both(f"{name}.attn.qkv", 3 * d, d)
        | both(f"{name}.attn.proj", d, d)
        | both(f"{name}.norm2", d)
        | both(f"{name}.mlp.fc1", 4 * d, d)
        | both(f"{name}.mlp.fc2", d, 4 * d)
    )


def rstrudel_state(d=192, classes=5, side=64, decoder=2, distilled=False):
    """Tensors of a ViT or distilled DeiT; ``decoder`` is its layers, 0 for the linear one."""
    size = torch.Size
    shapes = {"encoder.cls_token": size((1, 1, d))}
    shapes["encoder.pos_embed"] = size((1, (side // 16) ** 2 + 1 + distilled, d))
    if distilled:
        shapes["encoder.dist_token"] = size((1, 1, d))
        shapes |= both("encoder.head_dist", 1000, d)
    shapes |= both("encoder.patch_embed.proj", d, 3, 16, 16)
    for number in range(12):
        shapes |= rstrudel_block(f"encoder.blocks.{number}", d)
    shapes |= both("encoder.norm", d) | both("encoder.head", 1000, d)
    if decoder == 0:
        return fill(shapes | both("decoder.head", classes, d))
    shapes["decoder.cls_emb"] = size((1, classes, d))
    shapes["decoder.proj_patch"] = shapes["decoder.proj_classes"] = size((d, d))
    shapes |= both("decoder.proj_dec", d, d) | both("decoder.decoder_norm", d)
    for number in range(decoder):
        shapes |= rstrudel_block(f"decoder.blocks.{number}", d)
    return fill(shapes | both("decoder.mask_norm", classes))


def mmseg_block(name, d):
    return (
        both(f"{name}.ln1", d)
        | {f"{name}.attn.attn.in_proj_weight": torch.Size((3 * d, d))}
        | {f"{name}.attn.attn.in_proj_bias": torch.Size((3 * d,))}
        | both(f"{name}.attn.attn.out_proj", d, d)
        | both(f"{name}.ln2", d)
        | both(f"{name}.ffn.layers.0.0", 4 * d, d)
        | both(f"{name}.ffn.layers.1", d, 4 * d)
    )


def mmseg_state(d=192, classes=5, side=64, decoder=2):
    size = torch.Size
    shapes = {"backbone.cls_token": size((1, 1, d))}
    shapes["backbone.pos_embed"] = size((1, (side // 16) ** 2 + 1, d))
    shapes |= both("backbone.patch_embed.projection", d, 3, 16, 16)
    for number in range(12):
        shapes |= mmseg_block(f"backbone.layers.{number}", d)
    shapes |= both("backbone.ln1", d)
    if decoder == 0:
        return fill(shapes | both("decode_head.conv_seg", classes, d, 1, 1))
    shapes["decode_head.cls_emb"] = size((1, classes, d))
    shapes["decode_head.patch_proj.weight"] = size((d, d))
    shapes["decode_head.classes_proj.weight"] = size((d, d))
    shapes |= both("decode_head.dec_proj", d, d) | both("decode_head.decoder_norm", d)
    for number in range(decoder):
        shapes |= mmseg_block(f"decode_head.layers.{number}", d)
    return fill(shapes | both("decode_head.mask_norm", classes))


# Their forward pass


def layer(state, name, x):
    return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])


def norm(state, name, x, eps):
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)


def attention(x, weight, bias, heads):
    """Queries, keys and values in this order; softmax of the scaled products."""
    width = x.shape[-1]
    query, key, value = (
        F.linear(x, weight[i * width : (i + 1) * width], bias[i * width : (i + 1) * width])
        .unflatten(-1, (heads, 64))
        .transpose(1, 2)
        for i in range(3)
    )
    mixed = (query @ key.transpose(-1, -2) / 8).softmax(-1) @ value
    return mixed.transpose(1, 2).flatten(2)


def rstrudel_layer(state, name, x, eps=1e-5):
    y = norm(state, f"{name}.norm1", x, eps)
    qkv = state[f"{name}.attn.qkv.weight"], state[f"{name}.attn.qkv.bias"]
    x = x + layer(state, f"{name}.attn.proj", attention(y, *qkv, x.shape[-1] // 64))
    y = F.gelu(layer(state, f"{name}.mlp.fc1", norm(state, f"{name}.norm2", x, eps)))
    return x + layer(state, f"{name}.mlp.fc2", y)


def mmseg_layer(state, name, x, eps):
    y = norm(state, f"{name}.ln1", x, eps)
    attn = f"{name}.attn.attn"
    qkv = state[f"{attn}.in_proj_weight"], state[f"{attn}.in_proj_bias"]
    x = x + layer(state, f"{attn}.out_proj", attention(y, *qkv, x.shape[-1] // 64))
    y = F.gelu(layer(state, f"{name}.ffn.layers.0.0", norm(state, f"{name}.ln2", x, eps)))
    return x + layer(state, f"{name}.ffn.layers.1", y)


def embed(images, projection, heads, position, mode):
    """Patches behind the prefix tokens, with positions resized to the image's grid."""
    patches = F.conv2d(images, *projection, stride=16)
    grid = patches.shape[2:]
    x = torch.cat([*(h.expand(len(images), -1, -1) for h in heads), patches.flatten(2).mT], 1)
    extra, stored = position[:, : len(heads)], position[:, len(heads) :]
    side = round(stored.shape[1] ** 0.5)
    if tuple(grid) != (side, side):
        square = stored.mT.unflatten(2, (side, side))
        stored = F.interpolate(square, grid, mode=mode, align_corners=False).flatten(2).mT
    return x + torch.cat([extra, stored], 1), grid


def masks_of(patches, classes):
    patches = patches / patches.norm(dim=-1, keepdim=True)
    return patches @ (classes / classes.norm(dim=-1, keepdim=True)).mT


def enlarge(logits, grid, images):
    coarse = logits.mT.unflatten(2, grid)
    return F.interpolate(coarse, images.shape[2:], mode="bilinear", align_corners=False)


def rstrudel_forward(state, images, layers):
    names = ("encoder.cls_token", "encoder.dist_token")
    heads = [state[name] for name in names if name in state]
    projection = [state[f"encoder.patch_embed.proj.{kind}"] for kind in ("weight", "bias")]
    x, grid = embed(images, projection, heads, state["encoder.pos_embed"], "bilinear")
    for number in range(12):
        x = rstrudel_layer(state, f"encoder.blocks.{number}", x)
    x = norm(state, "encoder.norm", x, 1e-5)[:, len(heads) :]
    if layers == 0:
        return enlarge(layer(state, "decoder.head", x), grid, images)
    count = x.shape[1]
    x = layer(state, "decoder.proj_dec", x)
    x = torch.cat([x, state["decoder.cls_emb"].expand(len(x), -1, -1)], 1)
    for number in range(layers):
        x = rstrudel_layer(state, f"decoder.blocks.{number}", x)
    x = norm(state, "decoder.decoder_norm", x, 1e-5)
    masks = masks_of(
        x[:, :count] @ state["decoder.proj_patch"], x[:, count:] @ state["decoder.proj_classes"]
    )
    return enlarge(norm(state, "decoder.mask_norm", masks, 1e-5), grid, images)


def mmseg_forward(state, images, layers):
    projection = [state[f"backbone.patch_embed.projection.{kind}"] for kind in ("weight", "bias")]
    heads = [state["backbone.cls_token"]]
    x, grid = embed(images, projection, heads, state["backbone.pos_embed"], "bicubic")
    for number in range(12):
        x = mmseg_layer(state, f"backbone.layers.{number}", x, 1e-6)
    x = norm(state, "backbone.ln1", x, 1e-6)[:, 1:]
    if layers == 0:
        kernel, bias = state["decode_head.conv_seg.weight"], state["decode_head.conv_seg.bias"]
        return enlarge(F.linear(x, kernel[:, :, 0, 0], bias), grid, images)
    count = x.shape[1]
    x = layer(state, "decode_head.dec_proj", x)
    x = torch.cat([x, state["decode_head.cls_emb"].expand(len(x), -1, -1)], 1)
    for number in range(layers):
        x = mmseg_layer(state, f"decode_head.layers.{number}", x, 1e-5)
    x = norm(state, "decode_head.decoder_norm", x, 1e-5)
    masks = masks_of(
        F.linear(x[:, :count], state["decode_head.patch_proj.weight"]),
        F.linear(x[:, count:], state["decode_head.classes_proj.weight"]),
    )
    return enlarge(norm(state, "decode_head.mask_norm", masks, 1e-5), grid, images)


# Their files


def write_rstrudel(folder, state, layers=2, side=64, **net):
    """``checkpoint.pth`` and ``variant.yml`` as segm/train.py leaves them."""
    decoder = {"drop_path_rate": 0.0, "dropout": 0.1, "n_cls": 5, "name": "mask_transformer"}
    variant = {
        "algorithm_kwargs": {"batch_size": 8, "num_epochs": 64},
        "amp": False,
        "dataset_kwargs": {"dataset": net.pop("dataset", "ade20k"), "normalization": "vit"},
        "net_kwargs": {
            "backbone": "vit_tiny_patch16_384",
            "decoder": {**decoder, "n_layers": layers} if layers else {"name": "linear"},
            "distilled": False,
            "image_size": (side, side),
            "normalization": "vit",
            "patch_size": 16,
            **net,
        },
        "optimizer_kwargs": {"clip_grad": None, "lr": 0.001, "min_lr": 1.0e-05},
    }
    (folder / "variant.yml").write_text(yaml.dump(variant))
    content = {"model": state, "optimizer": {"state": {}}, "n_cls": 5, "epoch": 63}
    torch.save(content, folder / "checkpoint.pth")
    return folder / "checkpoint.pth"


def write_mmseg(folder, state, **meta):
    meta = {"env_info": "PyTorch", "seed": 0, "CLASSES": ("wall", "sky"), **meta}
    torch.save({"meta": meta, "state_dict": state}, folder / "segmenter.pth")
    return folder / "segmenter.pth"


def build(found, path):
    model = PausingSegmenter.from_config(found.config)
    load_tensors(model, found.tensors, path, fresh="aux_head.")
    return model.eval()


# The tests


def test_the_synthetic_checkpoints_have_the_published_sizes():
    ours = rstrudel_state(classes=150, side=512)
    assert len(ours) == 185
    assert sum(value.numel() for value in ours.values()) == 6_906_388
    theirs = mmseg_state(classes=150, side=512)
    assert len(theirs) == 183
    assert sum(value.numel() for value in theirs.values()) == 6_713_388


def test_a_published_rstrudel_checkpoint_becomes_one_of_ours(tmp_path):
    path = write_rstrudel(tmp_path, rstrudel_state(classes=150, side=512), side=512)
    assert (
        "image_size: !!python/tuple\n  - 512\n  - 512\n" in (tmp_path / "variant.yml").read_text()
    )
    found = read_checkpoint(path)
    model = build(found, path)
    config = found.config
    assert found.source == "rstrudel/segmenter"
    assert found.unused == ("encoder.head.weight", "encoder.head.bias")
    assert (config.backbone, config.decoder) == ("vit_tiny_patch16_384", "mask")
    assert (config.image_size, config.norm_eps) == ((512, 512), 1e-5)
    assert config.decoder_options == {"depth": 2, "dropout": 0.1}
    assert config.classes == ADE20K.names
    assert (config.mean, config.std) == ((0.5,) * 3, (0.5,) * 3)
    parts = (model.backbone, model.decoder)
    assert sum(value.numel() for part in parts for value in part.parameters()) == 6_713_388


def test_a_published_mmsegmentation_checkpoint_becomes_one_of_ours(tmp_path):
    path = write_mmseg(tmp_path, mmseg_state(classes=150, side=512))
    found = read_checkpoint(path)
    build(found, path)
    config = found.config
    assert found.source == "mmsegmentation"
    assert found.unused == ()
    assert (config.backbone, config.decoder) == ("vit_tiny_patch16_384", "mask")
    assert (config.image_size, config.norm_eps) == ((512, 512), 1e-6)
    assert config.position_resize == "bicubic"
    assert len(config.classes) == 150


SIZES = [(64, 64), (96, 48), (32, 160)]


def agree(model, forward, state, layers):
    """In double precision, but for the positions, which timm resizes in single."""
    model, state = model.double(), {key: value.double() for key, value in state.items()}
    for size in SIZES:
        images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1)).double()
        with torch.inference_mode():
            got = model(images).logits
            assert torch.allclose(got, forward(state, images, layers), rtol=0, atol=2e-6)
        assert got.std() > 0.1


@pytest.mark.parametrize(
    ("layers", "distilled"), [(2, False), (1, False), (0, False), (2, True), (0, True)]
)
def test_an_imported_rstrudel_model_says_what_it_said(tmp_path, layers, distilled):
    state = rstrudel_state(decoder=layers, distilled=distilled)
    path = write_rstrudel(tmp_path, state, layers, distilled=distilled)
    found = read_checkpoint(path)
    model = build(found, path)
    assert set(found.unused) == {key for key in state if key.startswith("encoder.head")}
    agree(model, rstrudel_forward, state, layers)


@pytest.mark.parametrize("layers", [2, 1, 0])
def test_an_imported_mmsegmentation_model_says_what_it_said(tmp_path, layers):
    state = mmseg_state(decoder=layers)
    path = write_mmseg(tmp_path, state)
    model = build(read_checkpoint(path), path)
    agree(model, mmseg_forward, state, layers)


def test_an_imported_model_can_be_saved_and_loaded(tmp_path):
    state = rstrudel_state(decoder=1)
    path = write_rstrudel(tmp_path, state, 1)
    build(read_checkpoint(path), path).save_pretrained(tmp_path / "ours")
    agree(PausingSegmenter.from_pretrained(tmp_path / "ours"), rstrudel_forward, state, 1)


def test_what_variant_yml_says_is_heard(tmp_path):
    state = rstrudel_state(classes=19, distilled=True)
    path = write_rstrudel(tmp_path, state, dataset="cityscapes", normalization="deit")
    config = read_checkpoint(path).config
    assert config.classes == CITYSCAPES.names
    assert config.mean == (0.485, 0.456, 0.406)
    assert config.std == (0.229, 0.224, 0.225)
    assert config.backbone == "deit_tiny_distilled_patch16_224"


def test_a_wide_image_size_is_read_from_variant_yml(tmp_path):
    state = rstrudel_state()
    assert state["encoder.pos_embed"].shape[1] == 2 * 8 + 1
    path = write_rstrudel(tmp_path, state, image_size=(32, 128))
    assert read_checkpoint(path).config.image_size == (32, 128)
    write_rstrudel(tmp_path, state, image_size=(64, 128))
    with pytest.raises(ValueError, match="16 positions"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "meta", [{"CLASSES": tuple("abcde")}, {"dataset_meta": {"classes": tuple("abcde")}}]
)
def test_class_names_are_read_from_mmsegmentations_meta(tmp_path, meta):
    path = write_mmseg(tmp_path, mmseg_state(), **meta)
    assert read_checkpoint(path).config.classes == tuple("abcde")


@pytest.mark.parametrize("names", [tuple("abcda"), tuple("abcdef"), ("a",), None])
def test_names_that_do_not_tell_the_classes_apart_are_left_out(tmp_path, names):
    path = write_mmseg(tmp_path, mmseg_state(), CLASSES=names)
    assert read_checkpoint(path).config.classes == tuple(f"class {i}" for i in range(5))


def test_the_auxiliary_head_is_fresh_and_everything_else_must_be_there(tmp_path):
    state = rstrudel_state(decoder=0)
    path = write_rstrudel(tmp_path, state, 0)
    found = read_checkpoint(path)
    model = PausingSegmenter.from_config(found.config)
    before = model.aux_head.weight.clone()
    load_tensors(model, found.tensors, path, fresh="aux_head.")
    assert torch.equal(model.aux_head.weight, before)
    assert before.std() > 0
    with pytest.raises(ValueError, match=r"missing: aux_head\.weight, aux_head\.bias"):
        load_tensors(model, found.tensors, path)
    del state["encoder.blocks.3.attn.qkv.weight"]
    found = read_checkpoint(write_rstrudel(tmp_path, state, 0))
    with pytest.raises(ValueError, match=r"missing: backbone\.vit\.blocks\.3\.attn\.qkv\.weight"):
        load_tensors(model, found.tensors, path, fresh="aux_head.")


def test_two_tensors_never_become_one(tmp_path):
    state = mmseg_state()
    again = {"decoder.cls_emb": torch.zeros_like(state["decode_head.cls_emb"])}
    with pytest.raises(ValueError, match=r"'decoder.cls_emb' and another tensor are both"):
        read_checkpoint(write_mmseg(tmp_path, state | again))


def test_an_auxiliary_head_of_theirs_is_listed_as_unused(tmp_path):
    state = mmseg_state() | {"auxiliary_head.conv_seg.weight": torch.zeros(5, 192, 1, 1)}
    path = write_mmseg(tmp_path, state)
    found = read_checkpoint(path)
    assert found.unused == ("auxiliary_head.conv_seg.weight",)
    build(found, path)


def test_another_decoder_is_not_taken_for_a_linear_one(tmp_path):
    """SETR-PUP ends in a conv_seg too, behind convolutions that would be left out."""
    state = mmseg_state(decoder=0)
    state["decode_head.up_convs.0.0.conv.weight"] = torch.zeros(192, 192, 3, 3)
    with pytest.raises(ValueError, match=r"decode_head\.up_convs\.0\.0\.conv\.weight"):
        read_checkpoint(write_mmseg(tmp_path, state))


@pytest.mark.parametrize("key", ["encoder.pos_embed", "encoder.patch_embed.proj.weight"])
def test_what_is_no_segmenter_is_refused(tmp_path, key):
    state = rstrudel_state()
    del state[key]
    with pytest.raises(ValueError, match="not a Segmenter checkpoint"):
        read_checkpoint(write_rstrudel(tmp_path, state))


@pytest.mark.parametrize(
    ("width", "name"),
    [(384, "vit_small_patch16_384"), (768, "vit_base_patch16_384")],
)
def test_the_width_says_which_backbone_it_is(tmp_path, width, name):
    """Of a checkpoint without its blocks, which takes less time to write."""
    state = {k: v for k, v in rstrudel_state(width, decoder=0).items() if ".blocks." not in k}
    assert read_checkpoint(write_rstrudel(tmp_path, state, 0)).config.backbone == name


def test_layers_must_be_what_variant_yml_says(tmp_path):
    path = write_rstrudel(tmp_path, rstrudel_state(decoder=1), layers=2)
    with pytest.raises(ValueError, match=r"variant\.yml says the decoder has 2 layers.*holds 1"):
        read_checkpoint(path)


def test_a_missing_variant_yml_is_named(tmp_path):
    path = write_rstrudel(tmp_path, rstrudel_state())
    (tmp_path / "variant.yml").unlink()
    with pytest.raises(FileNotFoundError, match=r"variant\.yml"):
        read_checkpoint(path)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth"):
        read_checkpoint(tmp_path / "nowhere.pth")


@pytest.mark.parametrize(
    "text",
    [
        "a: [1",
        "- 1",
        "",
        "5",
        "!!python/object/apply:os.system ['true']",
        "net_kwargs: 5",
        "net_kwargs: {image_size: 512}",
        "net_kwargs: {image_size: [a, b]}",
        "net_kwargs: {decoder: 7}",
        "net_kwargs: {decoder: {dropout: much}}",
        "dataset_kwargs: []",
        "dataset_kwargs: {dataset: [a]}",
        "inference_kwargs: {im_size: 1000000}",
        "net_kwargs: {decoder: {dropout: .nan}}",
        "a: " + "[" * 20_000,
        "a: &a [1, *a]",
        "\n".join(
            [
                "a0: &a0 [x]",
                *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)),
            ]
        ),
        f"net_kwargs: {{decoder: {{n_layers: {'x' * 10**5}}}}}",
        "#" * 2**20,
        "\x00",
    ],
)
def test_a_bad_variant_yml_is_refused(tmp_path, text):
    state = {k: v for k, v in rstrudel_state().items() if not k.startswith("encoder.blocks.")}
    path = write_rstrudel(tmp_path, state)
    (tmp_path / "variant.yml").write_text(text)
    with pytest.raises(ValueError, match=r"variant\.yml|checkpoint\.pth") as raised:
        read_checkpoint(path)
    assert len(str(raised.value)) < 1000


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def plain_pickle(content, path):
    path.write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("entry", ["model", "state_dict", "optimizer", "meta"])
@pytest.mark.parametrize("save", [torch.save, plain_pickle])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_code_in_a_checkpoint_never_runs(tmp_path, entry, save):
    content = {"model": rstrudel_state(), "state_dict": {}} | {entry: Bomb(tmp_path / "ran")}
    save(content, tmp_path / "checkpoint.pth")
    with pytest.raises(ValueError, match=r"checkpoint\.pth.*nothing of it was loaded") as raised:
        read_checkpoint(tmp_path / "checkpoint.pth")
    assert "weights_only" not in str(raised.value)
    assert not (tmp_path / "ran").exists()


class Hungry:
    """Pickled as a call that torch allows, and that takes memory for nothing."""

    def __init__(self, function, *words):
        self.function, self.words = function, words

    def __reduce__(self):
        return self.function, self.words


@pytest.mark.parametrize("archive", [True, False])
@pytest.mark.parametrize(
    ("what", "name"),
    [
        (Hungry(bytearray, 5 * 10**8), "__builtin__.bytearray"),
        (Hungry(torch.FloatTensor, 5 * 10**8), "torch.FloatTensor"),
        (Hungry(codecs.encode, b"ab", "hex"), "_codecs.encode"),
    ],
)
def test_a_small_pickle_cannot_ask_for_memory(tmp_path, what, name, archive):
    content = {"state_dict": mmseg_state(), "meta": what}
    path = tmp_path / "segmenter.pth"
    torch.save(content, path, _use_new_zipfile_serialization=archive)
    with pytest.raises(ValueError, match=rf"such as {name}; .*nothing of it was loaded"):
        read_checkpoint(path)


@pytest.mark.parametrize("archive", [True, False])
def test_what_trainers_save_beside_the_weights_is_no_hindrance(tmp_path, archive):
    plain = {"set": {1, 2}, "counts": Counter([3, 3]), "size": torch.Size((1, 2)), "z": 1j}
    plain |= {"device": torch.device("cpu"), "dtype": torch.bfloat16, "bytes": torch.ones(3).bool()}
    state = {key: torch.nn.Parameter(value) for key, value in mmseg_state().items()}
    content = {"state_dict": OrderedDict(state), "meta": {}, "optimizer": plain}
    path = tmp_path / "segmenter.pth"
    torch.save(content, path, _use_new_zipfile_serialization=archive)
    assert len(read_checkpoint(path).config.classes) == 5


@pytest.mark.slow
def test_a_long_pickle_is_refused(tmp_path):
    path = write_mmseg(tmp_path, mmseg_state(), notes=[1] * 5 * 10**6)
    with pytest.raises(ValueError, match=r"segmenter\.pth.*longer than 4 MB"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"hello", b"PK\x03\x04", b"\x80\x02}q\x00.", bytes(range(256)), b"\x00" * 99],
)
def test_bytes_that_are_no_checkpoint_are_refused(tmp_path, data):
    (tmp_path / "checkpoint.pth").write_bytes(data)
    with pytest.raises(ValueError, match=r"checkpoint\.pth"):
        read_checkpoint(tmp_path / "checkpoint.pth")


def test_a_truncated_checkpoint_is_refused(tmp_path):
    path = write_mmseg(tmp_path, mmseg_state(decoder=0))
    data = path.read_bytes()
    for size in (10, 1000, len(data) // 2, len(data) - 10):
        path.write_bytes(data[:size])
        with pytest.raises(ValueError, match=r"segmenter\.pth"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {},
        {"weights": 1},
        {"state_dict": 5},
        {"state_dict": {}},
        {"state_dict": {5: torch.zeros(1)}},
        {"state_dict": {"backbone.pos_embed": 5}},
        {"state_dict": {"backbone.pos_embed": torch.zeros(5)}},
        {"state_dict": dict.fromkeys(mmseg_state(decoder=0), 5)},
        {"state_dict": dict.fromkeys(mmseg_state(decoder=0), torch.zeros(()))},
        {"state_dict": dict.fromkeys(mmseg_state(decoder=0), torch.zeros(192))},
        {"state_dict": mmseg_state(decoder=0), "meta": {"CLASSES": 5}},
        {"state_dict": mmseg_state(64, decoder=0)},
    ],
    ids=range(13),
)
def test_content_that_is_no_checkpoint_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "checkpoint.pth")
    with pytest.raises(ValueError, match=r"checkpoint\.pth"):
        read_checkpoint(tmp_path / "checkpoint.pth")


HUGE = {
    "decode_head.cls_emb": torch.zeros(1, 1, 1).expand(1, 10**6, 192),
    "decode_head.conv_seg.weight": torch.zeros(1, 1, 1, 1).expand(10**6, 192, 1, 1),
    "backbone.pos_embed": torch.zeros(1, 1, 1).expand(1, 10**8 + 1, 192),
    "decode_head.patch_proj.weight": torch.zeros(1, 1).expand(10**5, 10**5),
    "decode_head.classes_proj.weight": torch.zeros(10**6, 0),
    "decode_head.dec_proj.weight": torch.zeros([1] * 60),
}


@pytest.mark.parametrize("key", HUGE)
def test_a_tensor_that_no_such_file_can_hold_is_refused(tmp_path, key):
    path = write_mmseg(tmp_path, mmseg_state() | {key: HUGE[key]})
    with pytest.raises(
        ValueError, match=rf"segmenter\.pth.*{key}.*cannot be the weights"
    ) as raised:
        read_checkpoint(path)
    assert len(str(raised.value)) < 1000


def test_the_projections_of_rstrudel_are_checked_before_they_are_turned(tmp_path):
    """Turned at once, this would take 40 GB."""
    state = rstrudel_state() | {"decoder.proj_patch": torch.zeros(1, 1).expand(10**5, 10**5)}
    path = write_rstrudel(tmp_path, state)
    with pytest.raises(ValueError, match=r"decoder\.proj_patch.*cannot be the weights"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "tensor",
    [torch.zeros(192, 192, device="meta"), torch.eye(192).to_sparse()],
    ids=["meta", "sparse"],
)
def test_a_tensor_that_is_not_plain_is_refused(tmp_path, tensor):
    path = write_mmseg(tmp_path, mmseg_state() | {"decode_head.patch_proj.weight": tensor})
    with pytest.raises(ValueError, match=r"segmenter\.pth"):
        read_checkpoint(path)


def test_more_classes_than_are_read_are_refused(tmp_path):
    state = mmseg_state() | {"decode_head.cls_emb": torch.zeros(1, 10_001, 192)}
    with pytest.raises(ValueError, match="it has 10001 classes, and at most 10000 are read"):
        read_checkpoint(write_mmseg(tmp_path, state))


@pytest.mark.parametrize("names", [[["a"] * 5] * 5, [1, 2, 3, 4, 5], {"a": "b"}])
def test_class_names_that_are_not_texts_are_left_out(tmp_path, names):
    path = write_mmseg(tmp_path, mmseg_state(), CLASSES=names)
    assert read_checkpoint(path).config.classes == tuple(f"class {i}" for i in range(5))


def test_names_nested_in_each_other_take_no_time(tmp_path):
    laughs = ("x",)
    for _ in range(40):
        laughs = (laughs,) * 9
    found = read_checkpoint(write_mmseg(tmp_path, mmseg_state(), CLASSES=laughs[:5]))
    assert found.config.classes == tuple(f"class {i}" for i in range(5))


def test_a_compressed_checkpoint_is_refused(tmp_path):
    path = write_mmseg(tmp_path, {"unused": torch.zeros(10**6)})
    with zipfile.ZipFile(path) as stored:
        content = {name: stored.read(name) for name in stored.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in content.items():
            packed.writestr(name, data)
    with pytest.raises(ValueError, match=r"segmenter\.pth.*it is compressed"):
        read_checkpoint(path)


@pytest.mark.filterwarnings("ignore")
def test_no_refusal_says_how_to_load_it_all_the_same(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "checkpoint.pth")
    with pytest.raises(ValueError, match=r"checkpoint\.pth") as raised:
        read_checkpoint(tmp_path / "checkpoint.pth")
    assert "weights_only" not in str(raised.value)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_and_devices_are_not_read(tmp_path):
    path = write_rstrudel(tmp_path, rstrudel_state())
    (tmp_path / "variant.yml").unlink()
    os.mkfifo(tmp_path / "variant.yml")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in (path, tmp_path / "pipe", tmp_path / "zeros"):
        with pytest.raises(FileNotFoundError, match=r"variant\.yml|pipe|zeros"):
            read_checkpoint(name)


@pytest.mark.parametrize("content", [b"\xff\xd8\xff an image", b"e", b"", b"text"])
def test_what_is_not_a_checkpoint_is_refused_in_words(tmp_path, content):
    (tmp_path / "notes.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=r'notes\.jpg" is not a checkpoint: give the \.pth file'):
        read_checkpoint(tmp_path / "notes.jpg")
