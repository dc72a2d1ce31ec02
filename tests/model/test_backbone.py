"""Any plain timm ViT, walked from outside: equal to timm to the last bit, or refused in words."""

import copy

import pytest
import timm
import torch
from timm.layers import resample_abs_pos_embed

from paumer.model.backbone import (
    POSITION_RESIZE,
    Backbone,
    attention_block_macs,
    create_backbone,
    gather_table,
    resized,
)
from paumer.model.build import build_model

FAMILIES = {
    "vit_tiny_patch16_384": (192, 12, 1, (16, 16)),
    "vit_small_patch16_384": (384, 12, 1, (16, 16)),
    "deit_tiny_patch16_224": (192, 12, 1, (16, 16)),
    "deit_tiny_distilled_patch16_224": (192, 12, 2, (16, 16)),
    "deit3_small_patch16_224": (384, 12, 1, (16, 16)),
    "vit_small_patch14_reg4_dinov2": (384, 12, 5, (14, 14)),
    "vit_small_patch16_dinov3": (384, 12, 5, (16, 16)),
    "eva02_tiny_patch14_224": (192, 12, 1, (14, 14)),
    "test_vit": (64, 6, 1, (16, 16)),
    "test_vit4": (96, 9, 1, (16, 16)),
}
LARGE = {
    "vit_base_patch16_384": (768, 12, 1, (16, 16)),
    "vit_large_patch16_384": (1024, 24, 1, (16, 16)),
}


def check_parity(model, size):
    """Nothing paused is bit-equal to timm's own features through the decoder."""
    model.eval()
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        got = model(images, full_size=False)
        features = model.backbone.vit.forward_features(images)
        plain = model.decoder(features[:, model.backbone.prefix :], got.grid)
    assert torch.equal(got.logits, plain)
    assert got.stages == ()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * ("small" in name)) for name in FAMILIES],
)
def test_with_nothing_paused_it_is_timm_to_the_last_bit(lively, name):
    model = lively(build_model(name, "mask", classes=4))
    height, width = model.backbone.patch
    check_parity(model, (4 * height, 6 * width))


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_so_are_the_large_ones(name):
    """Weights of one value per tensor: drawing hundreds of millions would take too long."""
    with torch.device("meta"):
        model = build_model(name, "linear", classes=4)
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        for number, value in enumerate(model.parameters()):
            value.fill_(1 / value[0].numel() if value.dim() > 1 else (number % 7 + 1) / 7)
            value.view(-1)[:1000].uniform_(generator=torch.Generator().manual_seed(number))
    check_parity(model, (32, 48))


@pytest.mark.parametrize("name", FAMILIES | LARGE)
def test_the_five_names_say_what_the_vit_is(name):
    with torch.device("meta"):
        backbone = create_backbone(name)
    shape = (backbone.width, backbone.depth, backbone.prefix, backbone.patch)
    assert shape == (FAMILIES | LARGE)[name]
    assert len(backbone.blocks) == backbone.depth
    assert backbone.norm is backbone.vit.norm
    assert backbone.rotary == (name in ("vit_small_patch16_dinov3", "eva02_tiny_patch14_224"))


@pytest.mark.parametrize("kind", ["plain", "distilled", "registers", "no prefix", "rotary"])
@pytest.mark.parametrize("size", [(48, 48), (8, 8), (64, 24), (80, 96)])
def test_parity_holds_at_every_size(small_model, kind, size):
    check_parity(small_model(kind, "mask"), size)


def test_no_parameter_is_left_that_only_a_classifier_uses():
    with torch.device("meta"):
        for name in ("deit3_small_patch16_224", "vit_small_patch16_dinov3", "test_vit4"):
            names = [key for key, _ in create_backbone(name).named_parameters()]
            assert not [key for key in names if "fc_norm" in key or "head" in key or "pool" in key]


def test_block_numbers_count_from_one(small_model):
    backbone = small_model().backbone
    tokens = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(backbone.run_block(1, tokens), backbone.blocks[0](tokens))
        assert torch.equal(backbone.run_block(6, tokens), backbone.blocks[5](tokens))


def test_the_rotary_table_follows_the_patches_twice():
    table = torch.arange(10.0).view(5, 2)
    first = gather_table(table, torch.tensor([[0, 2, 4], [1, 2, 3]]))
    assert first[:, 0, :, 0].tolist() == [[0, 4, 8], [2, 4, 6]]
    second = gather_table(first, torch.tensor([[2], [0]]))
    assert second.tolist() == [[[[8, 9]]], [[[2, 3]]]]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("swin_tiny_patch4_window7_224", "not a plain ViT"),
        ("convnext_tiny", "not a plain ViT"),
        ("resnet50", "not a plain ViT"),
        ("vit_relpos_small_patch16_224", "not a plain ViT"),
        ("mit_b0", "mixes convolutions"),
        ("segformer_b0", "mixes convolutions"),
        ("vit_small_patch16_rope_mixed_224", "rotary table of its own"),
    ],
)
def test_what_cannot_pause_is_refused_with_the_reason(name, reason):
    with pytest.raises(ValueError, match=reason), torch.device("meta"):
        create_backbone(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("vit_tiny_patch16_348", "choose one such as .*vit_tiny_patch16_384"),
        ("deit_tiny_distilled_patch16_242", "choose one such as .*deit_tiny_distilled_patch16_224"),
        ("eva02_tiny_patch14_242", "choose one such as .*eva02_tiny_patch14_224"),
        ("", "timm has no backbone"),
        ("qqqqqq", 'timm has no backbone "qqqqqq"'),
        ("vit_tiny_patch16_384.no_such_tag", "no_such_tag"),
    ],
)
def test_unknown_names_get_near_matches(name, hint):
    with pytest.raises(ValueError, match=hint):
        create_backbone(name)


def test_an_unknown_way_to_resize_positions_is_refused():
    with pytest.raises(ValueError, match=r'"nearest".*timm, bicubic, bilinear'):
        create_backbone("test_vit", position_resize="nearest")


@pytest.mark.parametrize("way", POSITION_RESIZE)
def test_positions_follow_the_image_in_the_way_asked_for(lively, way):
    backbone = lively(create_backbone("test_vit", (64, 64), position_resize=way))
    images = torch.zeros(1, 3, 96, 48)
    with torch.inference_mode():
        tokens, _ = backbone.embed(images)
        stored = backbone.vit.pos_embed[:, 1:].view(1, 4, 4, 64).permute(0, 3, 1, 2)
        resized = torch.nn.functional.interpolate(
            stored,
            (6, 3),
            mode="bilinear" if way == "bilinear" else "bicubic",
            antialias=way == "timm",
        )
        expected = backbone.vit.norm_pre(
            backbone.vit.patch_embed(images).flatten(1, 2) + resized.flatten(2).transpose(1, 2)
        )
    assert torch.allclose(tokens[:, 1:], expected, atol=1e-6)


def test_norm_eps_reaches_every_norm_of_the_encoder():
    backbone = create_backbone("test_vit", norm_eps=3e-4)
    eps = {m.eps for m in backbone.modules() if isinstance(m, torch.nn.LayerNorm)}
    assert eps == {3e-4}


def test_drop_path_rises_to_the_last_block():
    backbone = create_backbone("test_vit", drop_path=0.1)
    rates = [getattr(block.drop_path1, "drop_prob", 0.0) for block in backbone.blocks]
    assert rates == pytest.approx([0, 0.02, 0.04, 0.06, 0.08, 0.1])


def test_weights_by_download_fail_in_words_without_a_network():
    with pytest.raises(ValueError, match=r"vit_tiny_patch16_384 could not be loaded by download"):
        create_backbone("vit_tiny_patch16_384", weights=True)


def test_a_backbone_wraps_any_vit_given_by_hand():
    backbone = Backbone(timm.create_model("test_vit", num_classes=0, dynamic_img_size=True))
    hidden = backbone.blocks[0].mlp.fc1.out_features
    expected = 10 * (4 * 64**2 + 2 * 64 * hidden) + 2 * 10**2 * 64
    assert attention_block_macs(backbone.blocks[0], 10) == expected


# Positions are kept while nothing learns


GRID = (3, 5)
IMAGES = torch.zeros(1, 3, 24, 40)


@pytest.fixture
def made(monkeypatch):
    """The grids whose positions were computed."""
    grids, make = [], Backbone._make_positions

    def counted(backbone, grid):
        grids.append(grid)
        return make(backbone, grid)

    monkeypatch.setattr(Backbone, "_make_positions", counted)
    return grids


@pytest.fixture(params=["plain", "registers", "rotary", "rotary only"])
def backbone(request, small_model):
    return copy.deepcopy(small_model(request.param).backbone)


def are_right(backbone, grid=GRID):
    """Whether what is given without gradients is what follows from the weights as they are."""
    with torch.no_grad():
        given, fresh = backbone._positions_of(grid), backbone._make_positions(grid)
    for one, other in zip(given, fresh, strict=True):
        if one is None or other is None:
            assert one is other
        elif one.dtype != other.dtype or not torch.equal(one, other):
            return False
    return True


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_positions_of_a_grid_are_computed_once(backbone, made, mode):
    with mode():
        first, table = backbone.embed(IMAGES)
        again, same_table = backbone.embed(IMAGES)
        assert made == [GRID]
        assert torch.equal(first, again)
        assert table is same_table
        backbone.embed(torch.zeros(1, 3, 40, 24))
        assert made == [GRID, GRID[::-1]]
        backbone.embed(torch.zeros(2, 3, 24, 40))
        assert made == [GRID, GRID[::-1]]
    assert torch.equal(backbone.embed(IMAGES)[0], first)


def test_positions_are_computed_each_time_where_something_learns(backbone, made):
    backbone.embed(IMAGES)
    backbone.embed(IMAGES)
    assert made == [GRID] * 2
    backbone.train()
    with torch.no_grad():
        backbone.embed(IMAGES)
        backbone.embed(IMAGES)
    assert made == [GRID] * 4
    if backbone.vit.pos_embed is not None:
        with torch.no_grad():
            backbone.eval().embed(IMAGES)
        backbone.embed(IMAGES)[0].sum().backward()
        assert backbone.vit.pos_embed.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["plain", "registers", "rotary"])
def test_positions_follow_weights_that_change_in_place(small_model, kind):
    backbone = copy.deepcopy(small_model(kind).backbone)
    position = backbone.vit.pos_embed
    with torch.no_grad():
        before = backbone._positions_of(GRID)[0].clone()
        position.add_(1)
    assert are_right(backbone)
    with torch.no_grad():
        assert torch.allclose(backbone._positions_of(GRID)[0], before + 1, atol=1e-4)
    optimizer = torch.optim.SGD([position], lr=0.1)
    position.sum().backward()
    optimizer.step()
    assert are_right(backbone)
    state = {name: torch.randn(value.shape) for name, value in backbone.state_dict().items()}
    backbone.load_state_dict(state)
    assert are_right(backbone)


@pytest.mark.parametrize("kind", ["plain", "registers", "rotary"])
def test_positions_follow_weights_that_are_replaced(small_model, kind):
    """Again and again: new weights may come to lie where old ones lay."""
    backbone = copy.deepcopy(small_model(kind).backbone)
    assert are_right(backbone)
    for _ in range(20):
        position = torch.randn(backbone.vit.pos_embed.shape)
        backbone.vit.pos_embed = torch.nn.Parameter(position)
        del position
        assert are_right(backbone)
    for _ in range(20):
        state = {name: torch.randn(value.shape) for name, value in backbone.state_dict().items()}
        backbone.load_state_dict(state, assign=True)
        del state
        assert are_right(backbone)


def test_positions_follow_the_type_of_the_weights(backbone):
    for move in ("double", "float", "half", "float", "bfloat16", "double"):
        getattr(backbone, move)()
        assert are_right(backbone)
        weights = next(backbone.parameters())
        with torch.no_grad():
            assert backbone.embed(IMAGES.to(weights.dtype))[0].dtype == weights.dtype


def test_a_copy_has_positions_of_its_own(backbone):
    assert are_right(backbone)
    other = copy.deepcopy(backbone)
    with torch.no_grad():
        for weights in other.parameters():
            weights.mul_(2)
    assert are_right(backbone)
    assert are_right(other)


def test_weights_of_inference_mode_keep_no_positions(fresh_backbone, lively, made):
    """Whether such weights have changed, nothing says."""
    for kind in ("plain", "rotary only"):
        with torch.inference_mode():
            backbone = lively(Backbone(fresh_backbone(kind))).eval()
            first, _ = backbone.embed(IMAGES)
            for weights in backbone.parameters():
                weights.mul_(2)
            second, _ = backbone.embed(IMAGES)
        assert not torch.equal(first, second)
    assert made == [GRID] * 4


def test_positions_of_only_so_many_grids_are_kept(small_model, made):
    backbone = copy.deepcopy(small_model().backbone)
    with torch.no_grad():
        for width in range(1, 201):
            backbone._positions_of((1, width))
            assert len(backbone._kept[2]) <= 64
        count = len(made)
        backbone._positions_of((1, 200))
        assert len(made) == count
        assert are_right(backbone, (1, 1))


@pytest.mark.parametrize("kind", POSITION_RESIZE)
@pytest.mark.parametrize("grid", [(3, 9), (6, 6), (14, 11), (1, 2)])
def test_matrices_resize_positions_as_interpolation_does(kind, grid):
    stored = torch.randn(1, 36, 8, generator=torch.Generator().manual_seed(0))
    one = resized(stored, (6, 6), grid, kind)
    two = resample_abs_pos_embed(
        stored, list(grid), [6, 6], num_prefix_tokens=0, **POSITION_RESIZE[kind]
    )
    assert torch.allclose(one, two, atol=1e-5)
