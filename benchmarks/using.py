"""What using a model costs: engines, folders, large and hostile images, video.

python benchmarks/using.py agree       labels of every engine against torch
python benchmarks/using.py folder      a folder of 200 images against the bare model
python benchmarks/using.py large       memory for an image of 8192x4096 and 150 classes
python benchmarks/using.py hostile     500 damaged or hostile files
python benchmarks/using.py video       --target-fps held while another process takes a core
"""

import argparse
import io
import random
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from paumer import Inference, Mode, Predictor, build_model, load
from paumer.data.datasets import open_dataset
from paumer.exporting.onnx import export_onnx
from paumer.inference.engines import make_engine
from paumer.inference.governor import Governor, ladder
from paumer.inference.jobs import Job
from paumer.inference.sources import find_sources
from paumer.inference.video import VideoReader, VideoWriter
from paumer.study.accuracy import Confusion
from paumer.study.speed import peak_memory

CPU = torch.device("cpu")


def agree(model, data, count):
    """The ratio of pixels that each engine labels as torch does, and its mIoU."""
    predictor = load(model)
    dataset = open_dataset(data, "val")
    samples = [dataset[i] for i in range(min(count, len(dataset)))]
    images, how = [sample.image for sample in samples], Inference(batch=2)

    def miou(results):
        counts = Confusion.empty(len(dataset.class_set))
        for result, sample in zip(results, samples, strict=True):
            counts += Confusion.of(result.labels, sample.labels, len(dataset.class_set))
        return 100 * counts.miou

    for mode in ("none", "3:0.4", "3:0.4,5:0.4,7:0.4", "5:0.5,9:0.9 exit by=neighbours"):
        expected = predictor.predict_batch(images, mode, how)
        print(f"{mode} torch: mIoU {miou(expected):.2f}", flush=True)
        for name in ("onnx", "onnx-int8", "openvino", "compile"):
            engine = make_engine(name, predictor.network, 1, export_onnx)
            other = Predictor(predictor.network, engine=engine)
            results = other.predict_batch(images, mode, how)
            pairs = zip(results, expected, strict=True)
            same = [float((a.labels == b.labels).mean()) for a, b in pairs]
            print(
                f"{mode} {name}: {100 * np.mean(same):.4f}% of the pixels of {len(same)} "
                f"images, worst image {100 * min(same):.4f}%, mIoU {miou(results):.2f}",
                flush=True,
            )


def folder(model, count, rounds=10):
    """Throughput of a folder with masks and overlays against that of the bare model."""
    torch.set_num_threads(1)
    predictor = Predictor(build_model(image_size=512)) if model is None else load(model)
    network = predictor.network
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        scenes = open_dataset(f"scenes:{count}@512x512", "train")
        for number in range(count):
            Image.fromarray(scenes[number].image).save(root / f"{number:03}.jpg", quality=92)
        sources = find_sources([root])
        image = predictor.network_inputs(scenes[0].image)
        part, ours, bare = count // rounds, [], []
        for number in range(rounds):
            some = sources[number * part : (number + 1) * part]
            out, kinds = root / f"out-{number}", ("mask", "overlay")
            job = Job(predictor, Mode(), out, Inference(batch=1), kinds)
            begin = time.perf_counter()
            assert job.run(some).written == part
            ours.append((time.perf_counter() - begin) / part)
            with torch.inference_mode():
                for _ in range(6):
                    begin = time.perf_counter()
                    network(image)
                    bare.append(time.perf_counter() - begin)
            print(f"{1 / ours[-1]:.2f} images/s; the model alone {1 / min(bare):.2f}", flush=True)
    print(
        f"{count} images: {1 / np.median(ours):.3f} a second, "
        f"{np.median(bare) / np.median(ours):.3f} of the model alone (medians), "
        f"{min(bare) / min(ours):.3f} (best of each)"
    )


def large(classes=150):
    """Peak resident memory above that of the loaded process, in one pass of windows."""
    torch.set_num_threads(1)
    network = build_model(classes=classes, image_size=512)
    predictor = Predictor(network)
    image = np.random.default_rng(0).integers(0, 256, (4096, 8192, 3), np.uint8)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "large.jpg"
        Image.fromarray(image).save(path)
        del image
        sources = find_sources([path])
        job = Job(predictor, Mode(), Path(place) / "out", Inference(window=512, batch=4))
        begin = time.perf_counter()
        peak = peak_memory(lambda: job.run(sources), CPU)
    print(f"8192x4096, {classes} classes: {peak:.0f} MB, {time.perf_counter() - begin:.0f} s")


def chunk(kind, content):
    """One chunk of a PNG file."""
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def bomb_png(side):
    """A valid PNG of one bit a pixel: small as a file, huge as an image."""
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packer, rows = zlib.compressobj(9), []
    for _ in range(side):
        rows.append(packer.compress(b"\0" * (1 + side // 8)))
    data = b"".join(rows) + packer.flush()
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def hostile_file(rng, kind, bombs):
    """The content of a file of some bad kind."""
    noise = np.random.default_rng(rng.randrange(2**32))
    size = (rng.randint(1, 90), rng.randint(1, 90))
    image = Image.fromarray(noise.integers(0, 256, (*size, 3), np.uint8))
    if kind == "cmyk":
        image = image.convert("CMYK")
    if kind == "one pixel":
        image = image.resize((1, 1))
    out = io.BytesIO()
    if kind == "animated":
        frames = [image.quantize(), image.rotate(90).quantize()]
        frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
        return out.getvalue()
    wide = kind == "16 bit"
    if wide:
        image = Image.fromarray(noise.integers(0, 65536, size).astype(np.uint16))
    kinds = (
        ("JPEG", "TIFF")
        if kind == "cmyk"
        else ("PNG", "TIFF")
        if wide
        else ("PNG", "JPEG", "BMP", "WEBP", "TIFF")
    )
    image.save(out, rng.choice(kinds))
    content = out.getvalue()
    if kind == "truncated":
        return content[: rng.randrange(len(content))]
    if kind == "flipped bytes":
        spoilt = bytearray(content)
        for _ in range(rng.randint(1, 20)):
            spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
        return bytes(spoilt)
    if kind == "empty":
        return b""
    if kind == "noise":
        return rng.randbytes(rng.randint(1, 5000))
    if kind == "text":
        return b"<svg xmlns='http://www.w3.org/2000/svg'/>" * rng.randint(1, 50)
    if kind == "bomb":
        return rng.choice(bombs)
    if kind == "huge header":
        sides = struct.pack(">II", rng.randint(2**14, 2**31 - 1), rng.randint(2**14, 2**31 - 1))
        header = chunk(b"IHDR", sides + b"\x08\x02\0\0\0")
        return b"\x89PNG\r\n\x1a\n" + header + rng.randbytes(200)
    return content


KINDS = (
    "truncated", "flipped bytes", "empty", "noise", "text", "bomb", "huge header",
    "one pixel", "animated", "cmyk", "16 bit", "wrong suffix",
)  # fmt: skip


def hostile(count, seed=0):
    """Every file gives a mask or a refusal, within a memory bound."""
    torch.set_num_threads(1)
    rng = random.Random(seed)
    predictor = Predictor(build_model("deit_tiny_patch16_224", classes=11))
    bombs = [bomb_png(side) for side in (9000, 16000, 40000)]
    longest = 0.0
    with tempfile.TemporaryDirectory() as place:
        root = Path(place) / "in"
        root.mkdir()
        for number in range(count):
            kind = KINDS[number % len(KINDS)]
            suffix = rng.choice((".png", ".jpg", ".webp", ".tif", ".gif", ".bmp"))
            path = root / f"{number:03}-{kind.replace(' ', '-')}{suffix}"
            path.write_bytes(hostile_file(rng, kind, bombs))
        sources = find_sources([root])
        predictor.predict(np.zeros((90, 90, 3), np.uint8))
        worst, written, refused = 0.0, 0, 0
        for source in sources:
            job = Job(predictor, Mode(), Path(place) / "out", Inference(batch=1), ("mask",))
            outcomes = []
            begin = time.perf_counter()
            peak = peak_memory(lambda: outcomes.append(job.run([source])), CPU)  # noqa: B023
            longest = max(longest, time.perf_counter() - begin)
            worst = max(worst, peak or 0.0)
            written += outcomes[0].written
            refused += len(outcomes[0].broken)
    assert written + refused == count
    print(
        f"{count} files: {written} masks, {refused} refusals, no crash; largest extra memory "
        f"{worst:.0f} MB, longest {longest:.2f} s"
    )


def video(model, seconds):
    """Whether a rate between the slowest and the fastest point is held, also under load."""
    predictor = load(model)
    torch.set_num_threads(1)  # As --threads 1: reading and writing have the other core.
    rungs = ladder(list(predictor.points.values()))
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "drive.mp4"
        scenes = open_dataset("scenes:40@480x360", "train")
        frames = [scenes[number].image for number in range(40)]
        speeds = []
        for rung in (rungs[0], rungs[-1]):
            begin = time.perf_counter()
            for frame in frames[:12]:
                predictor.predict_batch([frame], rung.point.mode)
            speeds.append(12 / (time.perf_counter() - begin))
        for power in (0.3, 0.6):
            target = speeds[0] * (speeds[1] / speeds[0]) ** power
            for busy in (False, True):
                length = int(seconds * target)
                with VideoWriter(path, Fraction(target).limit_denominator(1000)) as writer:
                    for number in range(length):
                        writer.write(frames[number % len(frames)])
                governor = Governor(rungs, 1 / target, dwell=1.0)
                job = Job(predictor, Mode(), Path(place) / "out", governor=governor)
                load_ = [
                    subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    for _ in range(busy)
                ]
                outcome = job.run_video(find_sources([path])[0])
                for process in load_:
                    process.kill()
                    process.wait()
                with VideoReader(Path(place) / "out" / "drive_overlay.mp4") as reader:
                    kept = sum(1 for _ in reader) == length
                print(
                    f"slowest {speeds[0]:.2f}, fastest {speeds[1]:.2f}, target {target:.2f}, "
                    f"{'one core taken' if busy else 'alone'}: "
                    f"{outcome.written / outcome.seconds:.2f} frames/s, "
                    f"{outcome.late / outcome.written:.1%} late, {outcome.changes} changes, "
                    f"frames {'kept' if kept else 'LOST'}",
                    flush=True,
                )


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("what", choices=["agree", "folder", "large", "hostile", "video"])
parser.add_argument("--model")
parser.add_argument("--data", default="scenes")
parser.add_argument("--count", type=int)
parser.add_argument("--seconds", type=float, default=30)
arguments = parser.parse_args()
if arguments.what == "agree":
    agree(arguments.model or "street-tiny", arguments.data, arguments.count or 50)
elif arguments.what == "folder":
    folder(arguments.model, arguments.count or 200)
elif arguments.what == "large":
    large()
elif arguments.what == "hostile":
    hostile(arguments.count or 500)
else:
    video(arguments.model or "street-tiny", arguments.seconds)
