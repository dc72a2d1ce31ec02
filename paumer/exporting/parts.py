"""A network in parts that exporters can trace: start, a block, a merging, a pause, the end.

Each takes and gives some of a state: named tensors that say how far the images are. Every part is
traced once, for any number of patches; `assembly` puts them together.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.export import Dim

from paumer import criteria, merging
from paumer.inference.graphs import INNER, NORMALISED
from paumer.model.backbone import Grid
from paumer.model.decoders import TokenDecoder, to_grid
from paumer.model.segmenter import PausingSegmenter
from paumer.model.walk import Merging, Pause, Walk

State = Mapping[str, Tensor]
"""The active ``tokens``, the patches that they are (``index``) and how many each stands for
(``sizes``); of those that paused the same, with their logits and the block (``left_...``); for each
patch the one that stands for it (``owner``), and the block after which it was merged (``merged``).
Of some networks also a rotary ``table`` and the ``means`` of paused patches. ``room`` is as long as
the number of patches that a part leaves, ``block`` the one after which it stands."""

_LEFT = ("left_tokens", "left_index", "left_sizes", "left_logits", "left_block")
_ACTIVE = ("tokens", "index", "sizes", "table", "means")
NEEDS = {
    "block": _ACTIVE,
    "merge": (*_ACTIVE, "owner", "merged", "block", "room"),
    "pause": (*_ACTIVE, *_LEFT, "owner", "block", "room"),
    "finish": (*_ACTIVE, *_LEFT, "owner", "merged", "room"),
}
"""What each kind of part is given of a state."""


def start(model: PausingSegmenter, images: Float[Tensor, "b 3 h w"]) -> State:
    """The state before block 1."""
    assert model.config
    tokens, table = model.backbone.embed(images)
    (batch, _, width), grid = tokens.shape, model.grid(images)
    index = torch.arange(grid[0] * grid[1]).expand(batch, -1)
    none = index[:, :0]
    state = {
        "tokens": tokens,
        "index": index,
        "sizes": torch.ones(batch, grid[0] * grid[1]),
        "owner": index.view(batch, *grid),
        "merged": torch.zeros_like(index).view(batch, *grid),
        "left_tokens": tokens[:, :0],
        "left_index": none,
        "left_sizes": none.float(),
        "left_logits": tokens.new_zeros(batch, 0, len(model.config.classes)),
        "left_block": none,
    }
    if table is not None:
        state["table"] = table.expand(batch, 1, -1, -1)
    if model.context:
        state["means"] = tokens.new_zeros(batch, 0, width)
    return state


def _walk(state: State) -> Walk:
    table, means, sizes = (state.get(name) for name in ("table", "means", "sizes"))
    return Walk(state["tokens"], state["index"], table, means=means, sizes=sizes)


def _changed(walk: Walk) -> dict[str, Tensor]:
    values = (walk.tokens, walk.patch_index, walk.sizes, walk.table, walk.means)
    return {n: value for n, value in zip(_ACTIVE, values, strict=True) if value is not None}


class _Block(nn.Module):
    def __init__(self, model: PausingSegmenter) -> None:
        super().__init__()
        self.model = model

    def forward(self, walk: Walk, number: int) -> dict[str, Tensor]:
        after = _changed(self.model.run_block(walk, number))
        return {name: after[name] for name in ("tokens", "means") if name in after}


def block(model: PausingSegmenter, state: State, number: int) -> State:
    """After a block, with weights of its own or of the state."""
    own, at = model.backbone.blocks[number - 1].state_dict(), f"backbone.vit.blocks.{number - 1}"
    weights = {f"model.{at}.{name}": state[name] for name in own if name in state}
    after = torch.func.functional_call(_Block(model), weights, (_walk(state), number))
    return cast(State, after)


def merge(model: PausingSegmenter, state: State) -> State:
    """After a merging of at least one patch."""
    walk = model.merge(_walk(state), Merging(0, state["room"].shape[0]))
    owner, merged = (state[name].flatten(1) for name in ("owner", "merged"))
    (event,), every = walk.merges, torch.arange(owner.shape[1]).expand(owner.shape[0], -1)
    joining, target = (part.view(owner.shape[0], -1) for part in event.pairs())
    owner = every.scatter(1, joining, target).gather(1, owner)
    merged = merged.scatter(1, joining, state["block"].expand_as(joining))
    maps = {"owner": owner, "merged": merged}
    after = _changed(walk) | {name: part.view_as(state[name]) for name, part in maps.items()}
    after.pop("means", None)
    return after


def pause(model: PausingSegmenter, state: State, mode: State) -> State:
    """After a pause of at least one patch."""
    _, *grid = state["owner"].shape
    score = _any_criterion((grid[0], grid[1]), mode["neighbours"], mode["protect"])
    (walk,) = model.pause(_walk(state), Pause(0, state["room"].shape[0], score))
    (stage,) = walk.stages
    every = torch.arange(state["index"].shape[1]).expand_as(state["index"])
    # What continues gets a number beyond all others, and is cut off.
    paused = every.scatter(1, stage.kept, 1 << 30).sort(dim=1).values
    paused = paused[:, : every.shape[1] - stage.kept.shape[1]]
    index = state["index"].gather(1, paused)
    left = (
        merging.take(stage.tokens[:, model.backbone.prefix :], paused),
        index,
        state["sizes"].gather(1, paused),
        merging.take(stage.logits, paused),
        state["block"].expand_as(index),
    )
    parts = zip(_LEFT, left, strict=True)
    return _changed(walk) | {name: torch.cat([state[name], part], 1) for name, part in parts}


def finish(model: PausingSegmenter, state: State) -> State:
    """Coarse logits, of a decoder of tokens log-probabilities, and the blocks of each patch."""
    _, down, across = state["owner"].shape
    grid = down, across
    active, owner = state["index"], state["owner"].flatten(1)
    patches = state["tokens"][:, model.backbone.prefix :]
    whole = model.backbone.norm(torch.cat([patches, state["left_tokens"]], 1))
    index = torch.cat([active, state["left_index"]], 1)
    rows = torch.arange(index.shape[1]).expand_as(index)
    # Where each patch is found; what was merged into another is found there.
    row = torch.zeros_like(owner).scatter(1, index, rows).gather(1, owner)
    if isinstance(model.decoder, TokenDecoder):
        count = state["room"].shape[0]  # The active ones, or all.
        sizes = torch.cat([state["sizes"], state["left_sizes"]], 1)
        decoded = model.decoder.token_logits(whole[:, :count], sizes[:, :count]).log_softmax(-1)
        own = state["left_logits"].log_softmax(-1)[:, count - active.shape[1] :]
        logits = to_grid(merging.take(torch.cat([decoded, own], 1), row), grid)
    else:
        logits = model.decoder(merging.take(whole, row), grid)
    blocks = torch.cat([torch.zeros_like(active), state["left_block"]], 1).gather(1, row)
    return dict(zip(INNER, (logits, blocks.view(-1, *grid), state["merged"].clone()), strict=True))


def _any_criterion(
    grid: Grid, neighbours: Tensor, protect: Float[Tensor, " classes"]
) -> criteria.Criterion:
    """The criterion of any mode that a file can run."""
    mean = criteria.neighbours(grid)

    def score(logits: criteria.Logits, patch_index: criteria.PatchIndex) -> criteria.Score:
        entropy = criteria.entropy(logits, patch_index)
        own = torch.where(neighbours, mean(logits, patch_index), entropy)
        return own + 1000 * protect[logits.argmax(-1)]

    return score


class Parts(nn.Module):
    """All parts of a network beside each other, each with inputs and outputs of its own.

    Inputs are named ``part.name``, but for the images and those that say the mode; outputs
    ``part:name``.
    """

    def __init__(self, model: PausingSegmenter, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """What ``outputs`` gives, without the names."""
        return tuple(self.outputs(*values).values())

    def outputs(self, *values: Tensor) -> dict[str, Tensor]:
        """The state after each part."""
        parts: dict[str, dict[str, Tensor]] = {}
        for name, value in zip(self.names, values, strict=True):
            part, dot, inner = name.partition(".")
            part, inner = (part, inner) if dot else ("", name)
            parts.setdefault(part, {})[inner] = value
        mode, model = parts.pop(""), self.model
        outs = {"start": start(model, mode[NORMALISED])}
        for part, state in parts.items():
            if part == "merge":
                outs[part] = merge(model, state)
            elif part == "pause":
                outs[part] = pause(model, state, mode)
            elif part == "finish":
                outs[part] = finish(model, state)
            else:
                outs[part] = block(model, state, int(part.removeprefix("block")))
        return {f"{part}:{name}": v for part, out in outs.items() for name, v in out.items()}


def alike(model: PausingSegmenter) -> list[int]:
    """For each block the first one that differs from it in nothing but weights."""
    kinds = [repr(block) for block in model.backbone.blocks]
    return [kinds.index(kind) + 1 for kind in kinds]


@torch.inference_mode(False)  # In which the exporter cannot trace.
def trace(model: PausingSegmenter) -> tuple[torch.export.ExportedProgram, list[str], list[str]]:
    """All parts of a network as torch traced them, with the names of inputs and outputs."""
    assert model.config
    down, across = model.backbone.patch
    images = torch.randn(2, 3, 4 * down, 6 * across)
    values = {NORMALISED: images, "neighbours": torch.tensor(False)}
    values["protect"] = torch.zeros(len(model.config.classes))
    rows, columns = (Dim(name, max=4096) for name in ("rows", "columns"))
    shapes = [{0: Dim("batch", max=4096), 2: down * rows, 3: across * columns}, {}, {}]
    with torch.no_grad():
        state = dict(start(model, images))
    for name in (*_LEFT, "means"):
        if name in state:
            state[name] = state[name].new_zeros(2, 7, *state[name].shape[2:])
    state["block"] = torch.tensor(1)
    blocks = [f"block{number}" for number in dict.fromkeys(alike(model))]
    for part in (*blocks, "merge", "pause", "finish"):
        state["room"] = torch.zeros(28 if part == "finish" else 20)
        free = _free(part, model.backbone.prefix)
        for name in NEEDS["block" if part in blocks else part]:
            if name in state:
                values[f"{part}.{name}"] = state[name].clone()
                shapes.append(free[name])
        if part in blocks:
            weights = model.backbone.blocks[int(part[5:]) - 1].state_dict()
            values |= {f"{part}.{name}": value for name, value in weights.items()}
            shapes += [{} for _ in weights]
    parts = Parts(model, tuple(values)).eval()
    with torch.no_grad():
        program = torch.export.export(
            parts,
            tuple(values.values()),
            dynamic_shapes={"values": tuple(shapes)},
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=True,  # No part asks whether counts differ.
        )
        return program, list(values), list(parts.outputs(*values.values()))


def _free(part: str, prefix: int) -> dict[str, dict[int, Any]]:
    """Which sizes of a state differ from image to image and from mode to mode.

    Of each part they have names of their own, so that none is looked up in another part.
    """
    batch, rows, columns, active, left, means, room = (
        Dim(f"{kind}_{part}", min=least, max=2**24)
        for kind, least in (
            ("batch", 2), ("rows", 2), ("columns", 2), ("active", 4), ("left", 4), ("means", 4),
            ("room", 4),
        )
    )  # fmt: skip
    patches = {0: batch, 1: active}
    return {
        "tokens": {0: batch, 1: active + prefix if prefix else active},
        "index": patches,
        "sizes": patches,
        "table": {0: batch, 2: active},
        "means": {0: batch, 1: means},
        "owner": {0: batch, 1: rows, 2: columns},
        "merged": {0: batch, 1: rows, 2: columns},
        "block": {},
        "room": {0: room},
        **{name: {0: batch, 1: left} for name in _LEFT},
    }
