"""How patches should merge, and how merged ones be scored: each way measured, one table printed.

    python experiments/merging.py --data camvid:DIR

Which patches are alike is told by the tokens after the block, as in the package, or by the keys of
its attention, averaged over heads. They merge after the block, as in the package, or between its
attention and its MLP. By neighbours, a merged patch is scored by what lies around the one that
stands for it, as in the package, or by the mean of what lies around all that it stands for.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from reading import print_table
from timm.models.vision_transformer import Block
from torch import Tensor
from torch.nn import functional as F

import paumer
from paumer import criteria, merging
from paumer.criteria import Criterion
from paumer.data.datasets import open_dataset
from paumer.inference.predictor import Predictor
from paumer.mode import Mode
from paumer.model.backbone import attention_bias
from paumer.model.segmenter import PausingSegmenter
from paumer.model.walk import Merging, Pause, Walk

MODES = ("1-4:~0.1", "1-4:~0.168", "1-6:~0.116,9:0.9 exit", "1-6:~0.161,9:0.9 exit")
MERGINGS = [(by, where) for where in ("after", "between") for by in ("tokens", "keys")]


class Trial(PausingSegmenter, library_name="paumer", tags=["paumer"]):
    """A segmenter that merges in other ways, one mode at a time."""

    by, where, scored = "tokens", "after", "one"
    blocks: frozenset[int] = frozenset()
    """The blocks whose MLP waits for merging."""

    def _block(self, number: int) -> Block:
        return cast(Block, self.backbone.blocks[number - 1])

    def run_block(self, walk: Walk, block: int) -> Walk:
        """As usual, but for blocks that merge between attention and MLP."""
        part = self._block(block)
        x = part.norm1(walk.tokens)
        heads = part.attn.qkv(x).unflatten(-1, (3, part.attn.num_heads, -1))
        self.keys = heads[:, self.backbone.prefix :, 1].mean(2)
        if self.where == "after" or block not in self.blocks:
            return super().run_block(walk, block)
        bias = None
        if walk.sizes is not None:
            bias = attention_bias(walk.sizes, self.backbone.prefix)
        return replace(walk, tokens=walk.tokens + part.ls1(part.attn(x, attn_mask=bias)))

    def merge(self, walk: Walk, merge: Merging) -> Walk:
        """The walk with the most similar patches merged, by tokens or by keys."""
        patches = walk.tokens[:, self.backbone.prefix :]
        keep = merging.merged_count(patches.shape[1], merge.amount)
        match = merging.match(self.keys if self.by == "keys" else patches, keep)
        sizes = torch.ones_like(patches[..., 0]) if walk.sizes is None else walk.sizes
        patches, sizes = merging.merge(patches, sizes, match)
        tokens = torch.cat([walk.tokens[:, : self.backbone.prefix], patches], 1)
        if self.where == "between":
            part = self._block(merge.block)
            tokens = tokens + part.ls2(part.mlp(part.norm2(tokens)))
        return replace(
            walk,
            tokens=tokens,
            patch_index=walk.patch_index.gather(1, match.kept),
            merges=(*walk.merges, merging.Merge(merge.block, walk.patch_index, match)),
            sizes=sizes,
        )

    def criterion(
        self, mode: Mode, grid: tuple[int, int], given: Mapping[str, Criterion]
    ) -> Criterion:
        """As usual; the grid is kept."""
        self.shape = grid
        return super().criterion(mode, grid, given)

    def pause(self, walk: Walk, pause: Pause) -> list[Walk]:
        """As usual, or scored by what lies around all patches that a token stands for."""
        if self.scored == "one" or not walk.merges:
            return super().pause(walk, pause)
        rows, _ = walk.come_apart()
        active = walk.patch_index.shape[1]
        there = (rows < active).float()
        rows = rows.clamp(max=active - 1)

        def around(values: Tensor) -> Tensor:
            return F.avg_pool2d(values.view(-1, 1, *self.shape), 3, 1, 1).flatten(1)

        def score(logits: Tensor, patch_index: Tensor) -> Tensor:
            own = criteria.entropy(logits, patch_index)
            near = around(own.gather(1, rows) * there) / around(there).clamp(min=1e-9)
            none = torch.zeros_like(own)
            return none.scatter_add(1, rows, near * there) / none.scatter_add(1, rows, there)

        return super().pause(walk, pause._replace(criterion=score))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="camvid:data/camvid")
    parser.add_argument("--split", default="val")
    parser.add_argument("--model", default="street-tiny")
    parser.add_argument("--limit", type=int, help="count on so many images only")
    parser.add_argument("--modes", nargs="+", default=MODES)
    arguments = parser.parse_args()
    network = Trial.from_pretrained(arguments.model)
    data = open_dataset(arguments.data, arguments.split)

    def miou(text: str) -> str:
        network.blocks = frozenset(block for block, _ in Mode.parse(text).merge.stages)
        found = paumer.evaluate(Predictor(network), data, text, limit=arguments.limit)
        (tally,) = found.values()
        return f"{100 * tally.miou:.2f}"

    rows = []
    for network.by, network.where in MERGINGS:
        rows.append([f"{network.by}, {network.where}", *map(miou, arguments.modes)])
    print_table(["alike by, where", *(f"`{mode}`" for mode in arguments.modes)], rows)
    network.by, network.where = MERGINGS[0]
    near = [f"{mode} by=neighbours" for mode in arguments.modes if "exit" in mode]
    rows = []
    for network.scored in ("one", "all"):
        rows.append([f"around {network.scored}", *map(miou, near)])
    print_table(["scored", *(f"`{mode}`" for mode in near)], rows)


if __name__ == "__main__":
    main()
