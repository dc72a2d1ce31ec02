"""What using a model costs: engines, folders, large and hostile images, video.

python benchmarks/using.py agree       labels of every engine against torch
python benchmarks/using.py folder      a folder of 200 images against the bare model
python benchmarks/using.py photo       predict 12 megapixels against the same scaled down
python benchmarks/using.py large       memory for an image of 8192x4096 and 150 classes
python benchmarks/using.py hostile     500 damaged or hostile files
python benchmarks/using.py video       --target-fps held while another process takes a core
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from hostile_files import KINDS, bomb_png, hostile_file
from PIL import Image

from paumer import Inference, Mode, Predictor, Segmentation, build_model, load
from paumer.data.datasets import open_dataset
from paumer.data.samples import Sample
from paumer.exporting.onnx import export_onnx
from paumer.inference.engines import make_engine
from paumer.inference.governor import Pace, ladder
from paumer.inference.jobs import Job, Outcome
from paumer.inference.sources import find_sources
from paumer.inference.video import VideoReader, VideoWriter
from paumer.scenes.scene import scene
from paumer.study.accuracy import Tally
from paumer.study.speed import peak_memory

CPU = torch.device("cpu")
AGREE_MODES = ("none", "3:0.4", "3:0.4,5:0.4,7:0.4", "5:0.5,9:0.9 exit by=neighbours")


def miou(results: Sequence[Segmentation], samples: Sequence[Sample], classes: int) -> float:
    """The mIoU of labels in percent."""
    counts = Tally.empty(classes)
    for number, (result, sample) in enumerate(zip(results, samples, strict=True)):
        counts += Tally.of(number, result.labels, sample.labels, classes)
    return 100 * counts.miou


def agree(model: str, data: str, count: int) -> None:
    """The ratio of pixels that each engine labels as torch does, and its mIoU."""
    predictor = load(model)
    dataset, classes = open_dataset(data, "val"), len(predictor.config.classes)
    samples = [dataset[index] for index in range(min(count, len(dataset)))]
    images, inference = [sample.image for sample in samples], Inference(batch=2)
    for mode in AGREE_MODES:
        expected = predictor.predict_batch(images, mode, inference)
        print(f"{mode} torch: mIoU {miou(expected, samples, classes):.2f}", flush=True)
        for name in ("onnx", "onnx-int8", "openvino", "compile"):
            engine = make_engine(name, predictor.network, 1, export_onnx)
            other = Predictor(predictor.network, engine=engine)
            results = other.predict_batch(images, mode, inference)
            pairs = zip(results, expected, strict=True)
            same = [float((a.labels == b.labels).mean()) for a, b in pairs]
            print(
                f"{mode} {name}: {100 * np.mean(same):.4f}% of the pixels of {len(same)} images, "
                f"worst image {100 * min(same):.4f}%, mIoU {miou(results, samples, classes):.2f}",
                flush=True,
            )


def folder(model: str | None, count: int, rounds: int = 10) -> None:
    """Throughput of a folder with masks and overlays against that of the bare model."""
    torch.set_num_threads(1)
    predictor = Predictor(build_model(image_size=512)) if model is None else load(model)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        scenes = open_dataset(f"scenes:{count}@512x512", "train")
        for number in range(count):
            Image.fromarray(scenes[number].image).save(root / f"{number:03}.jpg", quality=92)
        sources = find_sources([root])
        image = predictor.network_inputs(scenes[0].image)
        part, ours, bare = count // rounds, [], []
        for number in range(rounds):
            out, kinds = root / f"out-{number}", ("mask", "overlay")
            job = Job(predictor, Mode(), out, Inference(batch=1), kinds)
            begin = time.perf_counter()
            assert job.run(sources[number * part : (number + 1) * part]).written == part
            ours.append((time.perf_counter() - begin) / part)
            with torch.inference_mode():
                for _ in range(6):
                    begin = time.perf_counter()
                    predictor.network(image)
                    bare.append(time.perf_counter() - begin)
            print(f"{1 / ours[-1]:.2f} images/s; the model alone {1 / min(bare):.2f}", flush=True)
    print(
        f"{count} images: {1 / np.median(ours):.3f} a second, "
        f"{np.median(bare) / np.median(ours):.3f} of the model alone (medians), "
        f"{min(bare) / min(ours):.3f} (best of each)"
    )


def photo(model: str, rounds: int = 5) -> None:
    """The whole command with a photograph of 4000x3000 and with the same scaled down beforehand.

    Also its memory, above that of a process that loads the model and predicts nothing.
    """
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        whole = Image.fromarray(scene(0, (1000, 750))[0]).resize((4000, 3000))
        whole.save(root / "large.jpg", quality=92)
        whole.resize((480, 360)).save(root / "small.jpg", quality=92)
        commands: dict[str, tuple[str, ...]] = {
            "loaded": ("-c", f"import paumer.inference.jobs; import paumer; paumer.load({model!r})")
        }
        for name in ("small", "large"):
            words = (str(root / f"{name}.jpg"), "--model", model, "--out", str(root / name))
            commands[name] = ("-m", "paumer", "predict", *words)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                shutil.rmtree(root / name, ignore_errors=True)
                spent, peak = run_alone(command)
                found[name].append((spent, peak))
                print(f"{name}: {spent:.2f} s, {peak:.0f} MB", flush=True)
    seconds = {name: np.median([pair[0] for pair in pairs]) for name, pairs in found.items()}
    memory = {name: max(pair[1] for pair in pairs) for name, pairs in found.items()}
    print(
        f"12 megapixels: {seconds['large']:.2f} s, {seconds['large'] / seconds['small']:.2f} times "
        f"that of the same at 480x360 (medians of {rounds}); at most "
        f"{memory['large'] - memory['loaded']:.0f} MB above the loaded model"
    )


def run_alone(words: Sequence[str]) -> tuple[float, float]:
    """The seconds and the peak resident memory, in MB, of a Python process."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def large(classes: int = 150) -> None:
    """Peak resident memory above that of the loaded process, in one pass of windows."""
    torch.set_num_threads(1)
    predictor = Predictor(build_model(classes=classes, image_size=512))
    image = np.random.default_rng(0).integers(0, 256, (4096, 8192, 3), np.uint8)
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "large.jpg"
        Image.fromarray(image).save(path)
        del image
        sources = find_sources([path])
        job = Job(predictor, Mode(), Path(temporary) / "out", Inference(window=512, batch=4))
        begin = time.perf_counter()
        peak = peak_memory(lambda: job.run(sources), CPU)
    print(f"8192x4096, {classes} classes: {peak:.0f} MB, {time.perf_counter() - begin:.0f} s")


def hostile(count: int, seed: int = 0) -> None:
    """Every file gives a mask or a refusal, within a memory bound."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    predictor = Predictor(build_model("deit_tiny_patch16_224", classes=11))
    bombs = [bomb_png(side) for side in (9000, 16000, 40000)]
    predictor.predict(np.zeros((90, 90, 3), np.uint8))
    outcomes: list[Outcome] = []
    longest = worst = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "in"
        root.mkdir()
        for number in range(count):
            kind = KINDS[number % len(KINDS)]
            suffix = rng.choice((".png", ".jpg", ".webp", ".tif", ".gif", ".bmp"))
            path = root / f"{number:03}-{kind.replace(' ', '-')}{suffix}"
            path.write_bytes(hostile_file(rng, kind, bombs))
        job = Job(predictor, Mode(), Path(temporary) / "out", Inference(batch=1), ("mask",))
        for source in find_sources([root]):
            begin = time.perf_counter()
            peak = peak_memory(lambda: outcomes.append(job.run([source])), CPU)  # noqa: B023
            longest = max(longest, time.perf_counter() - begin)
            worst = max(worst, peak or 0.0)
    written = sum(outcome.written for outcome in outcomes)
    refused = sum(len(outcome.broken) for outcome in outcomes)
    assert written + refused == count
    print(
        f"{count} files: {written} masks, {refused} refusals, no crash; largest extra memory "
        f"{worst:.0f} MB, longest {longest:.2f} s"
    )


def video(model: str, seconds: float) -> None:
    """Whether a rate between the slowest and the fastest point is held, also under load."""
    predictor = load(model)
    torch.set_num_threads(1)  # As --threads 1: reading and writing have the other core.
    rungs = ladder(list(predictor.points.values()))
    scenes = open_dataset("scenes:40@480x360", "train")
    frames = [scenes[number].image for number in range(40)]
    speeds = []
    for rung in (rungs[0], rungs[-1]):
        begin = time.perf_counter()
        for frame in frames[:12]:
            predictor.predict_batch([frame], rung.mode)
        speeds.append(12 / (time.perf_counter() - begin))
    for power in (0.3, 0.6):
        target = speeds[0] * (speeds[1] / speeds[0]) ** power
        length = int(seconds * target)
        for busy in (False, True):
            pace = Pace(rungs, 1 / target)
            with tempfile.TemporaryDirectory() as temporary:
                path, out = Path(temporary) / "drive.mp4", Path(temporary) / "out"
                with VideoWriter(path, Fraction(target).limit_denominator(1000)) as writer:
                    for number in range(length):
                        writer.write(frames[number % len(frames)])
                outcome = run_video(Job(predictor, Mode(), out, pace=pace), path, busy)
                with VideoReader(out / "drive_overlay.mp4") as reader:
                    kept = sum(1 for _ in reader) == length
            print(
                f"slowest {speeds[0]:.2f}, fastest {speeds[1]:.2f}, target {target:.2f}, "
                f"{'one core taken' if busy else 'alone'}: "
                f"{outcome.written / outcome.seconds:.2f} frames/s, "
                f"{outcome.late / outcome.written:.1%} late, {pace.governor.changes} changes, "
                f"frames {'kept' if kept else 'LOST'}",
                flush=True,
            )


def run_video(job: Job, path: Path, busy: bool) -> Outcome:
    """What became of a video; ``busy``: while another process takes a core."""
    command = [sys.executable, "-c", "while True: pass"]
    other = subprocess.Popen(command) if busy else None
    try:
        return job.run_video(find_sources([path])[0])
    finally:
        if other:
            other.kill()
            other.wait()


def main() -> None:
    """Measure one of them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["agree", "folder", "photo", "large", "hostile", "video"])
    parser.add_argument("--model")
    parser.add_argument("--data", default="scenes")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float, default=30)
    arguments = parser.parse_args()
    if arguments.what == "agree":
        agree(arguments.model or "street-tiny", arguments.data, arguments.count or 50)
    elif arguments.what == "folder":
        folder(arguments.model, arguments.count or 200)
    elif arguments.what == "photo":
        photo(arguments.model or "street-tiny", arguments.count or 5)
    elif arguments.what == "large":
        large()
    elif arguments.what == "hostile":
        hostile(arguments.count or 500)
    else:
        video(arguments.model or "street-tiny", arguments.seconds)


if __name__ == "__main__":
    main()
