"""Every command: options -> one public call -> a printed result.

Heavy modules are imported inside the commands, so that help answers at once.
"""

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from cyclopts.config import Yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paumer import __version__
from paumer.options import (
    BenchOptions,
    CheckDataOptions,
    ImportOptions,
    PredictOptions,
    ScenesOptions,
    TrainOptions,
    parse_size,
)
from paumer.pause_config import parse_pauses

if TYPE_CHECKING:
    from torch import Tensor

    from paumer.model.segmenter import PausingSegmenter
    from paumer.study.speed import SpeedReport

app = App(
    name="paumer",
    help="Segmentation by a vision transformer whose clear patches pause.",
    version=__version__,
)
console = Console(width=None if sys.stdout.isatty() else 120)
errors = Console(stderr=True)


def main() -> None:
    """Run the command line; a user's mistake ends with one clear line and exit code 2."""
    try:
        app(_with_recipe(sys.argv[1:]))
    except KeyboardInterrupt:
        errors.print("interrupted")
        sys.exit(130)
    except (ValueError, OSError, ImportError) as error:
        complain(str(error))
        sys.exit(2)


def _with_recipe(tokens: list[str]) -> list[str]:
    """The tokens without ``--config FILE``, whose settings count where no token says otherwise."""
    tokens = [part for token in tokens for part in _split_config(token)]
    if tokens[:1] != ["train"] or "--config" not in tokens:
        return tokens
    place = tokens.index("--config")
    if place + 1 == len(tokens):
        raise ValueError("--config needs a recipe, such as recipes/scenes.yaml")
    if not Path(tokens[place + 1]).is_file():
        raise FileNotFoundError(f'no recipe at "{tokens[place + 1]}"')
    app["train"].config = (Yaml(tokens[place + 1], use_commands_as_keys=False),)
    return tokens[:place] + tokens[place + 2 :]


def _split_config(token: str) -> list[str]:
    return token.split("=", 1) if token.startswith("--config=") else [token]


@app.command
def bench(options: BenchOptions = BenchOptions()) -> None:  # noqa: B008
    """Measure the speed of pause configurations in one interleaved run."""
    import torch

    from paumer.study.speed import SpeedSettings, best_batch, measure_speed

    pauses = parse_pauses(options.pause)
    width, height = parse_size(options.size)
    model = _bench_model(options, (height, width))
    device = torch.device(pick_device(options.device))
    model.to(device).eval()
    for pause in pauses:
        pause.check(model.backbone.depth, options.early_exit)
    settings = SpeedSettings(
        rounds=options.rounds,
        warmup=options.warmup,
        threads=options.threads,
        precision=options.precision,
        full_size=options.upsample,
        compiled=options.compile,
        early_exit=options.early_exit,
    )
    images = _bench_images(options, model, (height, width)).to(device)
    if options.batch == "auto":
        batch = best_batch(model, images[:1], settings)
        say(f"best batch size: {batch}")
    else:
        batch = at_least_one(options.batch, "batch")
    images = images.repeat(-(-batch // len(images)), 1, 1, 1)[:batch]
    with progress_bar("timing") as update:
        report = measure_speed(model, images, pauses, settings, update)
    _print_speed(report)
    _write_speed(report, options)


@app.command(name="import")
def import_(checkpoint: Path, /, options: Annotated[ImportOptions, Parameter(name="*")]) -> None:
    """Turn a Segmenter checkpoint of rstrudel/segmenter or mmsegmentation into a model directory.

    Parameters
    ----------
    checkpoint
        The .pth file. For rstrudel/segmenter its variant.yml lies beside it.
    """
    from paumer.model.foreign import read_checkpoint
    from paumer.model.segmenter import PausingSegmenter
    from paumer.model.weights import load_tensors

    if options.out.exists():
        raise ValueError(f'"{options.out}" exists: name a directory that does not')
    found = read_checkpoint(checkpoint)
    model = PausingSegmenter.from_config(found.config)
    load_tensors(model, found.tensors, checkpoint, fresh="aux_head.")
    model.save_pretrained(options.out)
    config = found.config
    say(
        f"{found.source}: {config.backbone}, {config.decoder} decoder, "
        f"{len(config.classes)} classes, {config.image_size[1]}x{config.image_size[0]}"
    )
    say(f"read {len(found.tensors)} tensors into {options.out}")
    if found.unused:
        say(f"not used: {', '.join(found.unused)}")
    say("the auxiliary head is fresh: train it before pausing (it decides who pauses)")


@app.command
def predict(*pictures: Path, options: PredictOptions) -> None:
    """Segment pictures: writes the label mask, an overlay and where patches paused.

    Parameters
    ----------
    pictures
        Picture files.
    """
    from paumer.media import read_image
    from paumer.predict import load

    if not pictures:
        raise ValueError("no picture given: name at least one file")
    twice = [stem for stem, times in Counter(p.stem for p in pictures).items() if times > 1]
    if twice:
        raise ValueError(
            f'several pictures are called "{twice[0]}", and their results would overwrite each '
            f"other: give them one --out each"
        )
    predictor = load(options.model, pick_device(options.device))
    pause = predictor.resolve(options.pause)
    names = ("early_exit", "window", "stride", "short_side")
    how = {name: getattr(options, name) for name in names}
    broken = 0
    for picture in pictures:
        try:
            image = read_image(picture)
        except (ValueError, OSError) as error:
            complain(str(error))
            broken += 1
            continue
        result = predictor.predict(image, pause, **how)
        paths = result.save(options.out, picture.stem)
        shares = sorted(result.class_shares().items(), key=lambda item: -item[1])[:3]
        told = ", ".join(f"{name} {100 * share:.0f}%" for name, share in shares)
        say(f"{picture}: {told}; {1000 * result.seconds:.0f} ms; {', '.join(map(str, paths))}")
    if broken:
        complain(f"{broken} of {len(pictures)} pictures could not be read")
        sys.exit(1)


@app.command
def scenes(options: ScenesOptions) -> None:
    """Draw street scenes with their labels, as a data set that every command can read."""
    from paumer.scenes.files import write_scenes

    counts = {"train": at_least_one(options.count, "count")}
    counts |= dict.fromkeys(("val", "test"), max(1, options.count // 10))
    with progress_bar("drawing") as update:
        write_scenes(options.out, counts, parse_size(options.size), update)
    say(f"wrote {sum(counts.values())} scenes; look at {options.out / 'sheet.png'}")
    say(f"check them with: paumer check-data {options.out / 'data.yaml'}")


@app.command
def check_data(data: str, /, options: CheckDataOptions = CheckDataOptions()) -> None:  # noqa: B008
    """Read a whole data set and report what is wrong with it. Nothing of it is changed.

    Parameters
    ----------
    data
        A data.yaml, or camvid:DIR, cityscapes:DIR, ade20k:DIR, scenes.
    """
    from paumer.data.checking import check_splits, sample_sheet

    with progress_bar("reading") as update:
        reports = check_splits(data, options.splits, lambda _, done, total: update(done, total))
    for report in reports:
        say(report.to_text())
    if options.out:
        from paumer.data.datasets import list_dataset
        from paumer.media import write_image
        from paumer.study.figures import draw_class_shares

        write_json(options.out / "report.json", [report.to_json() for report in reports])
        draw_class_shares(reports, options.out / "class_shares.png")
        write_image(options.out / "samples.png", sample_sheet(list_dataset(data, reports[0].split)))
        say(f"wrote report.json, class_shares.png and samples.png to {options.out}")
    if any(report.problems for report in reports):
        sys.exit(1)


@app.command
def train(
    *,
    config: Path | None = None,
    resume: Path | None = None,
    options: TrainOptions = TrainOptions(),  # noqa: B008
) -> None:
    """Train a segmenter once for many pause configurations.

    Parameters
    ----------
    config
        A recipe: a YAML file of the options below, which count where the command line is silent.
    resume
        A run directory to go on with, exactly as if it had not stopped.
    """
    assert config is None  # Taken off by _with_recipe before.
    if resume and options != TrainOptions():
        raise ValueError("--resume goes on with the options of the run: give no others beside it")
    try:
        from paumer.train import run
    except ImportError as error:
        raise ImportError(f"training needs more ({error}): pip install 'paumer[train]'") from error

    directory = run.resume(resume, say) if resume else run.train(options, say)
    say(f"done: {directory}/model, metrics.csv and plots/")


def complain(text: str) -> None:
    """Print plain text to the error stream."""
    errors.print("[bold red]error:[/]", escape(text), highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Print plain text, unwrapped."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def at_least_one(number: int, name: str) -> int:
    """The number, when it is at least one."""
    if number < 1:
        raise ValueError(f"{name} is {number}: give at least 1")
    return number


def pick_device(name: str) -> str:
    """The device of that name; ``auto`` takes a GPU where there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f'cannot use device "{name}": {reason}') from error
    return name


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on the error stream: call what it gives with done and total."""
    bar = Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _bench_model(options: BenchOptions, size: tuple[int, int]) -> "PausingSegmenter":
    from paumer.model.segmenter import PausingSegmenter, build_model

    if options.model is not None:
        return PausingSegmenter.from_pretrained(options.model)
    # Position embeddings are stored for the size, unless it is smaller than any real patch grid.
    stored = size if min(size) >= 32 else None
    return build_model(options.backbone, options.decoder, options.classes, image_size=stored)


def _bench_images(
    options: BenchOptions, model: "PausingSegmenter", size: tuple[int, int]
) -> "Tensor":
    import torch

    if options.images is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(1, 3, *size, generator=generator)
    from paumer.data.transforms import normalise
    from paumer.media import SUFFIXES, read_image

    assert model.config
    files = sorted(p for p in options.images.glob("*") if p.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f'no pictures in "{options.images}"')
    mean, std = model.config.mean, model.config.std
    wanted = 8 if options.batch == "auto" else options.batch
    pictures = (normalise(read_image(file), mean, std) for file in files[:wanted])
    scaled = [torch.nn.functional.interpolate(p[None], size, mode="bilinear") for p in pictures]
    return torch.cat(scaled)


def _print_speed(report: "SpeedReport") -> None:
    where = report.environment
    table = Table(box=None, pad_edge=False, header_style="bold", collapse_padding=True)
    titles = ("pause", "images/s", "median ms", "p95 ms", "speed-up", "multiply-adds", "reached")
    for title in (*titles, "pausing", "peak MB"):
        table.add_column(title, justify="left" if title == "pause" else "right")
    slower = []
    for item in report.measurements:
        assert item.speed_up
        assert item.mac_ratio
        share, memory = item.pausing_share, item.peak_memory_mb
        table.add_row(
            str(item.pause),
            f"{item.images_per_second:.2f}",
            f"{item.latency_ms:.1f}",
            f"{item.latency_ms_p95:.1f}",
            f"{item.speed_up:.2f}x",
            f"{item.mac_ratio:.2f}x",
            f"{item.speed_up / item.mac_ratio:.2f}",
            "" if share is None else f"{100 * share:.1f}%",
            "" if memory is None else f"{memory:.0f}",
        )
        if item.pause and item.speed_up < 1:
            slower.append(str(item.pause))
    height, width = where["size"]
    say(
        f"{where['device']}, {where['threads']} thread{'s' * (where['threads'] != 1)}, "
        f"{where['precision']}, {width}x{height}, batch {where['batch']}, "
        f"{'with' if where['full_size'] else 'without'} the final upsampling, "
        f"best of {where['rounds']} interleaved rounds"
    )
    console.print(table)
    ratios = [
        m.speed_up / m.mac_ratio for m in report.measurements[1:] if m.speed_up and m.mac_ratio
    ]
    if ratios:
        say(
            f"reached of the multiply-add speed-up: lowest {min(ratios):.3f}, "
            f"mean {sum(ratios) / len(ratios):.3f}"
        )
    if report.reference_ratio is not None:
        say(
            f"timm's own forward plus the decoder takes {report.reference_ratio:.3f} "
            f"of the unpaused time"
        )
    if slower:
        errors.print(f"warning: slower than no pausing: {', '.join(slower)}", highlight=False)


def _write_speed(report: "SpeedReport", options: BenchOptions) -> None:
    if options.json:
        write_json(options.json, report.to_json())
    if options.csv:
        write_csv(options.csv, [item.to_json() for item in report.measurements])
    if options.plot:
        from paumer.study.figures import draw_speed

        where = report.environment
        title = f"{options.model or options.backbone}, {options.size}, {where['device']}"
        draw_speed(report.measurements, title, options.plot)
    for path in (options.json, options.csv, options.plot):
        if path:
            say(f"wrote {path}")


def write_json(path: Path, values: Any) -> None:
    """Write values as readable JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", "utf-8")


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV; the first row that has a value names its column."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
