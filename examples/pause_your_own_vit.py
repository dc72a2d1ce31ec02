"""Pause patches in a ViT of your own, with the pure functions of paumer and none of its networks.

``forward_pausing`` walks the blocks of a plain timm ViT without rotary embeddings. To use it for
real, train the head along: its cross entropy, with a small weight, beside the loss of your decoder.

python examples/pause_your_own_vit.py --backbone deit_tiny_patch16_224 --stages 3:0.4,5:0.4
"""

import argparse
import time

import timm
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from paumer import PauseConfig
from paumer.criteria import entropy
from paumer.pausing import assemble, choose, keep_count, pause, rows_of


def forward_pausing(
    vit: VisionTransformer, head: nn.Module, images: Tensor, config: PauseConfig
) -> Tensor:
    """All tokens after the final norm; paused ones as they were when they paused.

    ``head`` gives tokens after any block their class logits, by whose entropy patches pause.
    """
    tokens = vit.norm_pre(vit._pos_embed(vit.patch_embed(images)))
    prefix, patches = vit.num_prefix_tokens, tokens.shape[1] - vit.num_prefix_tokens
    indices = torch.arange(len(images) * patches, device=images.device).view(len(images), patches)
    ratios, stages = dict(config.stages), list[tuple[Tensor, Tensor]]()
    for number, block in enumerate(vit.blocks, 1):
        tokens = block(tokens)
        if isinstance(ratio := ratios.get(number), float):
            score = entropy(head(tokens[:, prefix:]), indices)
            kept = choose(score, keep_count(score.shape[1], ratio))
            rows = rows_of(kept, tokens.shape[1], prefix)
            stages.append((tokens, rows))
            tokens, indices = pause(tokens, rows), indices.gather(1, kept)
    whole: Tensor = vit.norm(assemble(tokens, stages))
    return whole


def main() -> None:
    """Read the command line, compare with timm's own forward, and time both in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backbone", default="vit_tiny_patch16_384", help="timm name")
    parser.add_argument("--stages", default="3:0.4,5:0.4", help="block:ratio, joined by commas")
    parser.add_argument("--classes", type=int, default=19)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    vit = timm.create_model(arguments.backbone, num_classes=0).eval()
    head = nn.Linear(vit.embed_dim, arguments.classes)
    images = torch.randn(2, 3, *vit.patch_embed.img_size)
    none, config = PauseConfig(), PauseConfig.parse(arguments.stages)
    config.check(len(vit.blocks))

    with torch.inference_mode():
        timms = vit.forward_features(images)
        same = torch.equal(forward_pausing(vit, head, images, none), timms)
        print(f"nothing paused: equal to timm's own forward, bit for bit: {same}")
        tokens = forward_pausing(vit, head, images, config)
        print(f"{config}: tokens of shape {tuple(tokens.shape)}, in their first order")
        seconds: dict[PauseConfig, list[float]] = {none: [], config: []}
        for _ in range(arguments.rounds):  # In turns, so that a slow moment touches both.
            for which, times in seconds.items():
                begin = time.perf_counter()
                forward_pausing(vit, head, images, which)
                times.append(time.perf_counter() - begin)
    ratio = min(seconds[none]) / min(seconds[config])
    print(f"{ratio:.2f}x as fast as without pausing (fresh weights; the best of each)")


if __name__ == "__main__":
    main()
