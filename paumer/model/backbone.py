"""Any plain timm ViT seen through five names: embed, blocks, norm, width, prefix."""

import difflib
from importlib import import_module
from pathlib import Path
from textwrap import shorten
from typing import Any, cast

import timm
import torch
from jaxtyping import Float, Int
from timm.layers import resample_abs_pos_embed
from timm.models import is_model_in_modules, load_checkpoint
from timm.models.eva import Eva
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

POSITION_RESIZE: dict[str, dict[str, Any]] = {
    "timm": {"interpolation": "bicubic", "antialias": True},
    "bicubic": {"interpolation": "bicubic", "antialias": False},
    "bilinear": {"interpolation": "bilinear", "antialias": False},
}
"""How position embeddings follow the image size: timm's way, mmsegmentation's, Segmenter's."""

_MODULES = ["vision_transformer", "deit", "eva"]  # Where timm keeps its plain ViTs.
_CLASSIFIER = ("head", "fc_norm", "attn_pool", "pre_logits")  # Parts only a classifier uses.
_ATTENTION_ENDS = ("attn.proj", "attn_out_proj")  # The layer after each attention in timm's blocks.

Grid = tuple[int, int]
"""How many patches an image has down and across."""
Images = Float[Tensor, "b 3 h w"]
Tokens = Float[Tensor, "b t d"]
Table = Float[Tensor, "n r"] | Float[Tensor, "b 1 n r"]
"""The rotary table of the active patches, of all images or of each."""
Positions = tuple[Float[Tensor, "1 t d"] | None, Float[Tensor, "n r"] | None]
"""Position embeddings, and the rotary table of the patches, where a backbone has them."""

_GRIDS = 64  # So many grids are kept at most.


class Backbone(nn.Module):
    """A timm ViT, walked block by block from outside; its own forward is never called."""

    def __init__(self, vit: VisionTransformer | Eva, position_resize: str = "timm") -> None:
        super().__init__()
        if position_resize not in POSITION_RESIZE:
            raise ValueError(
                f'position embeddings cannot be resized by "{position_resize}": '
                f"choose one of {', '.join(POSITION_RESIZE)}"
            )
        if getattr(vit, "rope_mixed", False):
            raise ValueError(
                "this backbone has a rotary table of its own for every block and head; "
                "only tables shared by all blocks can follow the patches that continue"
            )
        # Parts that only a classifier uses would never get a gradient.
        vit.fc_norm = nn.Identity()
        vit.attn_pool = None
        self.vit = vit
        self.position_resize = position_resize
        self.rotary = getattr(vit, "rope", None) is not None
        self.width = int(vit.embed_dim)
        """Channels of a token."""
        self.prefix = int(vit.num_prefix_tokens)
        """How many tokens (class, distillation, registers) stand before the patches."""
        self.depth = len(vit.blocks)
        """How many blocks there are."""
        self.patch: tuple[int, int] = vit.patch_embed.patch_size
        """Height and width of a patch in pixels."""
        self._kept: tuple[Tensor, int, dict[Grid, Positions]] | None = None

    @property
    def blocks(self) -> nn.Sequential | nn.ModuleList:
        """The encoder's blocks; the paper's block l is ``blocks[l - 1]``."""
        return cast(nn.Sequential, self.vit.blocks)

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        return cast(nn.Module, self.vit.norm)

    def embed(self, images: Images) -> tuple[Tokens, Float[Tensor, "n r"] | None]:
        """The tokens that enter block 1, and the rotary table of the patches if there is one."""
        vit = self.vit
        patches = vit.patch_embed(images)
        batch, height, width, _ = patches.shape
        patches = patches.flatten(1, 2)
        first = (getattr(vit, name, None) for name in ("cls_token", "dist_token", "reg_token"))
        heads = [token.expand(batch, -1, -1) for token in first if token is not None]
        position, table = self._positions_of((height, width))
        if position is None:
            tokens = torch.cat([*heads, patches], 1)
        elif vit.no_embed_class:
            tokens = torch.cat([*heads, patches + position], 1)
        else:
            tokens = torch.cat([*heads, patches], 1) + position
        return vit.norm_pre(vit.pos_drop(tokens)), table

    def _positions_of(self, grid: Grid) -> Positions:
        """Position embeddings and rotary table of a grid of patches; kept while nothing learns."""
        if self.training or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._make_positions(grid)
        stored = self.vit.pos_embed
        weights = next(self.parameters()) if stored is None else stored
        if weights.is_inference():  # Nothing says whether such weights have changed.
            return self._make_positions(grid)
        kept, state = self._kept, (weights.data_ptr(), weights._version)
        if kept is None or state != (kept[0].data_ptr(), kept[1]):
            # With the weights themselves, so that no others can take their address.
            kept = self._kept = (weights.detach(), weights._version, {})
        positions = kept[2].get(grid)
        if positions is None:
            if len(kept[2]) >= _GRIDS:
                kept[2].clear()
            positions = kept[2][grid] = self._make_positions(grid)
        return positions

    def _make_positions(self, grid: Grid) -> Positions:
        vit, position = self.vit, self.vit.pos_embed
        if position is not None and isinstance(grid[0], torch.SymInt):  # In an export.
            prefix = position.shape[1] - vit.patch_embed.num_patches
            parts = position[:, :prefix], position[:, prefix:]
            patches = resized(parts[1], vit.patch_embed.grid_size, grid, self.position_resize)
            position = torch.cat([parts[0], patches], 1)
        elif position is not None:
            position = resample_abs_pos_embed(
                position,
                new_size=list(grid),
                old_size=list(vit.patch_embed.grid_size),
                num_prefix_tokens=0 if vit.no_embed_class else self.prefix,
                **POSITION_RESIZE[self.position_resize],
            )
        return position, vit.rope.get_embed(shape=grid) if self.rotary else None

    def run_block(
        self,
        number: int,
        tokens: Tokens,
        table: Table | None = None,
        bias: Float[Tensor, "b 1 1 t"] | None = None,
    ) -> Tokens:
        """The tokens after block ``number``, counted from 1; ``bias`` is added to all attention."""
        more = {"rope": table} if self.rotary else {}
        if bias is not None:
            more["attn_mask"] = bias.to(tokens.dtype)
        return cast(Tensor, self.blocks[number - 1](tokens, **more))


def resized(
    position: Float[Tensor, "1 n d"], old: Grid, new: Grid, kind: str
) -> Float[Tensor, "1 m d"]:
    """Position embeddings of a grid for another one that is known only when an export runs.

    By matrices, with the numbers of torch's interpolation; ``kind`` is one of `POSITION_RESIZE`.
    """
    down, across = (_matrix(*sides, kind) for sides in zip(old, new, strict=True))
    channels = position.shape[2]
    rows = (down @ position.reshape(old[0], -1)).reshape(new[0], old[1], channels)
    return (across @ rows).reshape(1, -1, channels)


def _matrix(old: int, new: int, kind: str) -> Float[Tensor, "m n"]:
    """How ``new`` values are made of ``old`` ones."""
    scale = old / new
    centre = (torch.arange(new, dtype=torch.float32) + 0.5) * scale
    places = torch.arange(old, dtype=torch.float32)
    if kind == "timm":  # Smoothed where the grid gets smaller.
        distance = (places + 0.5 - centre[:, None]) / torch.full((), scale).clamp(min=1.0)
        weights = _cubic(distance, -0.5)
        return weights / weights.sum(1, keepdim=True)
    centre = centre - 0.5
    if kind == "bilinear":
        centre = centre.clamp(min=0.0)
    first = centre.floor()
    total = torch.zeros_like(centre[:, None] * places)
    for tap in (0, 1) if kind == "bilinear" else (-1, 0, 1, 2):
        distance = centre - (first + tap)
        weight = _cubic(distance, -0.75) if kind == "bicubic" else 1 - distance.abs()
        near = (first + tap).clamp(0, old - 1)  # Beyond the border its last value counts.
        total = total + weight[:, None] * (near[:, None] == places)
    return total


def _cubic(x: Float[Tensor, "*s"], a: float) -> Float[Tensor, "*s"]:
    x = x.abs()
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def gather_table(table: Table, kept: Int[Tensor, "b k"]) -> Float[Tensor, "b 1 k r"]:
    """The rotary table of the patches that continue, which differ from image to image."""
    if table.dim() == 2:
        return table[kept].unsqueeze(1)
    rows = kept[:, None, :, None].expand(-1, -1, -1, table.shape[-1])
    return table.gather(2, rows)


def extend_table(table: Float[Tensor, "b 1 n r"], count: int) -> Float[Tensor, "b 1 m r"]:
    """The rotary table with ``count`` more tokens that are not turned: sines 0, cosines 1."""
    sines, cosines = table[:, :, :1].expand(-1, -1, count, -1).chunk(2, -1)
    still = torch.cat([torch.zeros_like(sines), torch.ones_like(cosines)], -1)
    return torch.cat([table, still], 2)


def attention_bias(
    sizes: Float[Tensor, "b n"], before: int = 0, behind: int = 0
) -> Float[Tensor, "b 1 1 t"]:
    """What makes attention see a token as often as it stands for a patch.

    There are ``before`` and ``behind`` other tokens, each of which stands for itself.
    """
    return F.pad(sizes.log(), (before, behind))[:, None, None]


def attention_block_macs(block: nn.Module, tokens: int) -> int:
    """MACs of one transformer block: its linear layers and the two attention products."""
    layers = {name: m for name, m in block.named_modules() if isinstance(m, nn.Linear)}
    linear = sum(layer.weight.numel() for layer in layers.values())
    ends = [layer for name, layer in layers.items() if name.endswith(_ATTENTION_ENDS)]
    return tokens * linear + 2 * tokens * tokens * sum(layer.in_features for layer in ends)


def create_backbone(
    name: str,
    image_size: tuple[int, int] | None = None,
    weights: bool | str | Path = False,
    drop_path: float = 0.0,
    norm_eps: float | None = None,
    position_resize: str = "timm",
) -> Backbone:
    """The timm ViT of that name, without its classifier.

    ``image_size`` (height, width) is the size its position embeddings are stored for; any other
    size still runs. ``weights`` is True for timm's own by download, or a local safetensors file.
    """
    _check_name(name)
    file = None if isinstance(weights, bool) else Path(weights)
    if file and file.suffix != ".safetensors":
        raise ValueError(
            f'weights file "{file}" is not a .safetensors file; checkpoints that are pickles '
            f"are read by `paumer import` only"
        )
    if file and not file.is_file():
        raise FileNotFoundError(f'no weights file at "{file}"')
    try:
        vit = timm.create_model(
            name,
            pretrained=weights is True,
            num_classes=0,
            dynamic_img_size=True,
            drop_path_rate=drop_path,
            **({"img_size": image_size} if image_size else {}),
        )
        if file is not None:
            # timm itself lets tensors be missing where the classifier is left out.
            adapt = import_module(type(vit).__module__).checkpoint_filter_fn
            result = load_checkpoint(vit, str(file), strict=False, filter_fn=adapt)
            keys = [*result.missing_keys, *result.unexpected_keys]
            if misfits := [key for key in keys if not key.startswith(_CLASSIFIER)]:
                raise RuntimeError(f"missing or not known: {', '.join(misfits[:5])}")
    except Exception as error:  # Weights that do not fit make timm raise almost anything.
        if weights is False:
            raise
        source = "by download" if file is None else f'from "{file}"'
        reason = shorten(str(error), 600, placeholder=" ...").rstrip(".")
        raise ValueError(
            f"weights of {name} could not be loaded {source}: {reason}. Give a local safetensors "
            f"file with timm's tensor names, or no weights; to train, --init street-tiny starts "
            f"from the built-in model, --init none from fresh weights"
        ) from error
    if norm_eps is not None:
        for module in vit.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = norm_eps
    return Backbone(vit, position_resize)


def _check_name(name: str) -> None:
    plain = name.split(".")[0]
    if plain.startswith(("mit_", "segformer")):
        raise ValueError(
            f'backbone "{name}" mixes convolutions over the whole grid between its blocks, '
            f"so single patches cannot pause: choose a plain ViT, such as vit_tiny_patch16_384"
        )
    if not timm.is_model(plain):
        known = [model for module in _MODULES for model in timm.list_models(module=module)]
        near = difflib.get_close_matches(plain, known, 3)
        hint = ", ".join(near) or "vit_tiny_patch16_384, deit3_small_patch16_224"
        raise ValueError(f'timm has no backbone "{name}": choose one such as {hint}')
    if not is_model_in_modules(plain, _MODULES):
        raise ValueError(
            f'backbone "{name}" is not a plain ViT: it is hierarchical, convolutional or ties '
            f"attention to the full grid, so single patches cannot pause. "
            f"Choose one such as vit_tiny_patch16_384, deit3_small_patch16_224 "
            f"or vit_small_patch16_dinov3"
        )
    try:
        timm.get_pretrained_cfg(name, allow_unregistered=name == plain)
    except RuntimeError as error:  # An unknown tag after the dot.
        raise ValueError(f'timm has no backbone "{name}": {error}') from error
