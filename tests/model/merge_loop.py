"""Merging and pausing, slowly: one image, one token, one Python list at a time.

A token is a list of patches and a vector. Before the decoder everything comes apart: each patch has
a copy of its token's vector, so that the decoder knows nothing of merging.
"""

import torch
from torch.nn import functional as F


def segment(model, image, mode):
    """Coarse logits of one image of whole patches, after which block each patch paused, merged."""
    vit, prefix = model.backbone.vit, model.backbone.prefix
    tokens, table = model.backbone.embed(image[None])
    heads, grid = list(tokens[0, :prefix]), model.grid(image[None])
    active = [([number], vector) for number, vector in enumerate(tokens[0, prefix:])]
    paused, merged, exits, vectors = {}, {}, {}, {}
    for number, block in enumerate(vit.blocks, 1):
        if not active:
            break
        row = torch.stack([*heads, *(vector for _, vector in active)])[None]
        sizes = torch.tensor([1] * prefix + [len(members) for members, _ in active])
        options = {"attn_mask": sizes.to(row.dtype).log()[None, None, None]}
        if table is not None:
            options["rope"] = table[[members[0] for members, _ in active]]
        row = block(row, **options)[0]
        heads = list(row[:prefix])
        active = [(members, row[i]) for i, (members, _) in enumerate(active, prefix)]
        for at, merges, amount in mode.stages:
            if at == number and merges:
                active = _merge(active, int(amount * len(active)), number, merged)
            elif at == number:
                said = [model.aux_head(vector).log_softmax(-1) for _, vector in active]
                kept = _kept(said, amount)
                for i, (members, vector) in enumerate(active):
                    if i not in kept:
                        paused |= dict.fromkeys(members, number)
                        exits |= dict.fromkeys(members, said[i])
                        vectors |= dict.fromkeys(members, vector)
                active = [active[i] for i in kept]
    if mode.early_exit:
        rows = dict(exits)
        if active:
            said = _decode(model, active).log_softmax(-1)
            for (members, _), one in zip(active, said, strict=True):
                rows |= dict.fromkeys(members, one)
        logits = torch.stack([rows[i] for i in range(len(rows))]).T.reshape(1, -1, *grid)
    else:
        vectors |= {patch: vector for members, vector in active for patch in members}
        whole = torch.stack([vectors[i] for i in range(len(vectors))])
        logits = model.decoder(vit.norm(whole)[None], grid)
    count = grid[0] * grid[1]
    return logits[0], *([found.get(i, 0) for i in range(count)] for found in (paused, merged))


def _decode(model, active):
    """Of each token what the decoder says of its first patch when all patches are there."""
    everyone = [vector for members, vector in active for _ in members]
    said = model.decoder.token_logits(model.backbone.norm(torch.stack(everyone))[None])[0]
    first = [sum(len(m) for m, _ in active[:i]) for i in range(len(active))]
    return said[first]


def _merge(active, count, block, merged):
    best = []
    for source in range(0, len(active), 2):
        likeness = [
            (float(F.cosine_similarity(active[source][1], active[target][1], dim=0)), -target)
            for target in range(1, len(active), 2)
        ]
        if likeness:
            score, target = max(likeness)
            best.append((-score, source, -target))
    joins = {source: target for _, source, target in sorted(best)[: min(count, len(active) // 2)]}
    result = []
    for number, (members, vector) in enumerate(active):
        if number in joins:
            merged[members[0]] = block
            continue
        parts = [(members, vector), *(active[s] for s, t in joins.items() if t == number)]
        together = [patch for part, _ in parts for patch in part]
        mean = sum(len(part) * one for part, one in parts) / len(together)
        result.append((together, mean))
    return result


def _kept(said, ratio):
    scores = [float(-(one.exp() * one).sum()) for one in said]
    keep = 0 if ratio == 1 else max(1, len(said) - int(ratio * len(said)))
    return sorted(sorted(range(len(said)), key=lambda i: (-scores[i], i))[:keep])
