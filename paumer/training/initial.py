"""The network before the first step: fresh, from a backbone's weights, or from a trained model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from paumer.classes import ADE20K, CAMVID, CITYSCAPES, ClassSet, Colour, distinct_colours
from paumer.data.samples import Dataset
from paumer.inference.points import read_points
from paumer.measurement import Measurement
from paumer.model.build import build_model
from paumer.model.config import ModelConfig
from paumer.model.directory import find_model, is_model, load_tensors
from paumer.model.segmenter import PausingSegmenter
from paumer.progress import Say
from paumer.training.feed import mix
from paumer.training.options import TrainOptions, parse_size

_CLASS_ROWS = {
    "aux_head.weight": 0,
    "aux_head.bias": 0,
    "decoder.head.weight": 0,
    "decoder.head.bias": 0,
    "decoder.class_embedding": 1,
    "decoder.mask_norm.weight": 0,
    "decoder.mask_norm.bias": 0,
    "decoder.classifier.weight": 0,
    "decoder.classifier.bias": 0,
}
"""The tensors that have a row for every class, and which of their dimensions it is."""


def initial_network(
    options: TrainOptions, dataset: Dataset, say: Say = lambda _: None
) -> PausingSegmenter:
    """The network before the first step; ``say`` hears which classes of a model it keeps."""
    torch.manual_seed(mix(options.seed, 5))
    decoder = options.decoder or "mask"
    extra: dict[str, float] = {"dropout": options.dropout} if decoder == "mask" else {}
    if decoder == "pup-tiny":
        decoder, extra = "pup", {"channels": 192, "depth": 2, "scale": 4}
    known: ModelConfig | None = None
    if starts_from_model(options):
        network, known = _from_model(options, dataset, decoder, extra, say)
    else:
        weights: dict[str, bool | str] = {"timm": True, "none": False}
        network = build_model(
            options.backbone,
            decoder,
            dataset.class_set.names,
            image_size=parse_size(options.crop)[::-1],
            weights=weights.get(options.init, options.init),
            drop_path=options.drop_path,
            context=options.context,
            decoder_options=extra,
        )
    assert network.config
    network.config = replace(
        network.config,
        classes=dataset.class_set.names,
        colours=known_colours(dataset.class_set, known),
        # Images are scaled for inference as they were fitted for training.
        short_side=min(parse_size(options.fit)) if options.fit else None,
        window=options.window,
        stride=options.stride,
        trained_side=None,  # That of the model to start from says nothing of these images.
    )
    return network


def starts_from_model(options: TrainOptions) -> bool:
    """Whether weights come from a trained model, not from timm, a file of a backbone or nowhere."""
    name = options.init
    return name not in ("timm", "none") and (not name.endswith(".safetensors") or is_model(name))


def _from_model(
    options: TrainOptions, dataset: Dataset, decoder: str, extra: dict[str, float], say: Say
) -> tuple[PausingSegmenter, ModelConfig]:
    """The network of a trained model, to be trained on, and the model's own configuration.

    The backbone is the model's own, whatever the options say. So are its decoder and ``context``
    unless the options set them; another decoder is re-initialised, and so are classes that the
    model does not know by name.
    """
    if Path(options.init).is_file() and not is_model(options.init):
        raise ValueError(
            f'"{options.init}" is neither a .safetensors file of a backbone nor a model directory: '
            f"checkpoints that are pickles are read by `paumer import` only"
        )
    # Read as for inference: what a hostile configuration asks for is checked against the weights.
    model = PausingSegmenter.from_pretrained(options.init)
    assert model.config
    config, tensors = model.config, dict(model.state_dict())
    other = decoder != config.decoder or (decoder == "pup" and extra != config.decoder_options)
    fresh = options.decoder is not None and other
    new = replace(config, classes=dataset.class_set.names, colours=())
    if fresh:
        new = replace(new, decoder=decoder, decoder_options=extra)
        tensors = {n: t for n, t in tensors.items() if not n.startswith("decoder.")}
    elif new.decoder == "mask":
        options_of_mask = {**config.decoder_options, "dropout": options.dropout}
        new = replace(new, decoder_options=options_of_mask)
    new = replace(new, drop_path=options.drop_path, context=options.context or config.context)
    torch.manual_seed(mix(options.seed, 5))
    network = PausingSegmenter.from_config(new)
    if config.classes != new.classes:
        rows = _same_classes(config.classes, new.classes)
        own = network.state_dict()
        for name in _CLASS_ROWS.keys() & tensors.keys():
            tensors[name] = _take_rows(tensors[name], own[name], rows, _CLASS_ROWS[name])
        say(_in_words(options.init, new.classes, rows))
    load_tensors(network, tensors, options.init, fresh="decoder." if fresh else "")
    return network, config


def _same_classes(old: Sequence[str], new: Sequence[str]) -> dict[int, int]:
    """The index that each class has in a model which knows it by name."""
    if len(old) == len(new) and all(name == f"class {i}" for i, name in enumerate(old)):
        return {i: i for i in range(len(new))}  # The model has no names of its own.
    return {index: old.index(name) for index, name in enumerate(new) if name in old}


def _take_rows(old: Tensor, new: Tensor, rows: dict[int, int], dim: int) -> Tensor:
    """The new tensor with the rows of the old one where classes are the same."""
    there = torch.tensor(list(rows), dtype=torch.long)
    kept = old.index_select(dim, torch.tensor(list(rows.values()), dtype=torch.long))
    return new.detach().index_copy(dim, there, kept)


def _in_words(source: str, names: Sequence[str], rows: dict[int, int]) -> str:
    fresh = [name for index, name in enumerate(names) if index not in rows]
    listed = ", ".join(fresh[:5]) + (f" and {len(fresh) - 5} more" if fresh[5:] else "")
    if not rows:
        return f"{source} knows none of the {len(names)} classes: its heads are re-initialised"
    start = f"{source} knows {len(rows)} of the {len(names)} classes, which keep their weights"
    return f"{start}; re-initialised: {listed}" if fresh else start


def known_colours(class_set: ClassSet, model: ModelConfig | None = None) -> tuple[Colour, ...]:
    """The colours of the classes: as the data gives them, else as the model or a known set does.

    Where the data gives none, it has those of ``distinct_colours``.
    """
    if class_set.names == ADE20K.names:  # Whose own colours were made so.
        return class_set.colours
    known = dict(zip(CITYSCAPES.names, CITYSCAPES.colours, strict=True))
    known |= dict(zip(CAMVID.names, CAMVID.colours, strict=True))
    if model is not None and model.colours:
        known |= dict(zip(model.classes, model.colours, strict=True))
    made = distinct_colours(len(class_set))
    colours: dict[int, Colour] = {n: c for n, c in enumerate(class_set.colours) if c != made[n]}
    for number, name in enumerate(class_set.names):
        if number not in colours and name in known and known[name] not in colours.values():
            colours[number] = known[name]
    more = (*made, *distinct_colours(2 * len(class_set)))
    free = [colour for colour in dict.fromkeys(more) if colour not in colours.values()]
    for number, own in enumerate(class_set.colours):
        if number not in colours:
            colours[number] = own if own in free else free[-1]
            free.remove(colours[number])
    return tuple(colours[number] for number in range(len(class_set)))


def inherited_points(options: TrainOptions, network: PausingSegmenter) -> dict[str, Measurement]:
    """The operating points of the model that a run starts from, without what was measured of it.

    They are modes to try: `tune` evaluates them first.
    """
    if not starts_from_model(options):
        return {}
    points = read_points(find_model(options.init), network)
    return {name: Measurement(mode=point.mode) for name, point in points.items()}
