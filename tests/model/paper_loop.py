"""The method as the paper words it, slowly: one image, one patch, one Python list at a time.

Section 3.2, appendices A and C and the early exit of appendix I, with the choices written down in
the design: the share is of the patches still active, class, distillation and register tokens never
pause, equal scores go to the lower place, one patch always continues, the final norm comes after
assembling. Knows the parts of a segmenter (timm's ViT, decoder, auxiliary head) and nothing of how
the package walks them.
"""

import math

import torch
from torch.nn import functional as F


def entropy(logits, place):
    """Of one patch, in nats, from a list of logits."""
    top = max(logits)
    total = sum(math.exp(value - top) for value in logits)
    log_p = [value - top - math.log(total) for value in logits]
    return -sum(math.exp(value) * value for value in log_p)


def segment(model, images, stages=(), score=entropy, early_exit=False):
    """Full-size logits of each image, and after which block each patch paused (0 = never).

    Beyond the paper: with ``model.context`` the mean of the patches that pause together continues
    without a position.
    """
    results = [
        _segment_one(model, image, stages, score, early_exit, number)
        for number, image in enumerate(images)
    ]
    return torch.stack([logits for logits, _ in results]), [paused for _, paused in results]


def _segment_one(model, image, stages, score, early_exit, number):
    vit = model.backbone.vit
    heads, patches, turns, grid = _embed(vit, _pad(image, vit.patch_embed.patch_size))
    active, means = list(range(len(patches))), []
    paused_after = [0] * len(patches)
    exits = {}
    amounts = dict(stages)
    for block in range(1, len(vit.blocks) + 1):
        tokens = torch.stack([*heads, *(patches[place] for place in active), *means])[None]
        if turns is None:
            tokens = vit.blocks[block - 1](tokens)[0]
        else:
            still = torch.cat([turns[:1, ::2] * 0, turns[:1, ::2] * 0 + 1], 1)  # Sines, cosines.
            table = torch.cat([turns[active], *[still for _ in means]])
            tokens = vit.blocks[block - 1](tokens, rope=table)[0]
        heads = list(tokens[: len(heads)])
        for row, place in enumerate(active, len(heads)):
            patches[place] = tokens[row]
        means = list(tokens[len(heads) + len(active) :])
        if block in amounts:
            said = {place: model.aux_head(patches[place]) for place in active}
            scores = {place: score(said[place].tolist(), (number, place)) for place in active}
            keep_count = _keep_count(scores, amounts[block])
            for place in active:
                if place not in keep_count:
                    paused_after[place] = block
                    exits[place] = said[place].log_softmax(-1)
            paused = [patches[place] for place in active if place not in keep_count]
            if model.context and paused:
                means.append(sum(paused) / len(paused))
            active = [place for place in active if place in keep_count]
    if early_exit:
        last = vit.norm(torch.stack([*heads, *(patches[place] for place in active)]))[len(heads) :]
        logits = model.decoder.token_logits(last[None])[0].log_softmax(-1)
        exits.update(zip(active, logits, strict=True))
        rows = torch.stack([exits[place] for place in range(len(patches))])
        coarse = rows.T.reshape(1, -1, *grid)
    else:
        everyone = vit.norm(torch.stack(heads + patches))[len(heads) :]
        coarse = model.decoder(everyone[None], grid)
    height, width = vit.patch_embed.patch_size
    full = F.interpolate(coarse, (grid[0] * height, grid[1] * width), mode="bilinear")
    return full[0, :, : image.shape[1], : image.shape[2]], paused_after


def _keep_count(scores, amount):
    """The places that continue. ``amount`` is a share, or text such as ``<0.5`` for a threshold."""
    ranking = sorted(scores, key=lambda place: (-scores[place], place))
    if isinstance(amount, str):
        count = sum(value >= float(amount[1:]) for value in scores.values())
    else:
        count = len(ranking) - int(amount * len(ranking))
    return set(ranking[: max(count, 1)])


def _pad(image, patch):
    """Zeros to the right and below until the image is whole patches."""
    channels, height, width = image.shape
    whole = image.new_zeros(
        channels, math.ceil(height / patch[0]) * patch[0], math.ceil(width / patch[1]) * patch[1]
    )
    whole[:, :height, :width] = image
    return whole


def _embed(vit, image):
    """Lists of prefix tokens and patches before block 1, rotary table or None, patch grid."""
    patches = vit.patch_embed(image[None])
    grid = tuple(patches.shape[1:3])
    tokens = vit._pos_embed(patches)
    tokens, turns = tokens if isinstance(tokens, tuple) else (tokens, None)
    tokens = list(vit.norm_pre(tokens)[0])
    count = len(tokens) - grid[0] * grid[1]
    return tokens[:count], tokens[count:], turns, grid
