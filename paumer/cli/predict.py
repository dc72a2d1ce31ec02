"""`paumer predict`: images, folders and videos to labels."""

import sys
from typing import TYPE_CHECKING

from paumer.cli.console import above_zero, call, complain, progress_bar, say, set_threads
from paumer.cli.options import PredictOptions

if TYPE_CHECKING:
    from paumer.inference.governor import Pace
    from paumer.inference.jobs import Job, Outcome
    from paumer.inference.predictor import Predictor
    from paumer.inference.sources import Source


def predict(*sources: str, options: PredictOptions = PredictOptions()) -> None:  # noqa: B008, D417
    """Segment images and videos: label masks, overlays, pause maps.

    Can be stopped at any time (Ctrl-C) and resumes when started again. Started by torchrun, every
    process segments its part.

    Args:
        sources: Images, folders, patterns such as "streets/*.jpg", videos, a camera (/dev/video0),
            or a stream (rtsp://...).
    """
    from paumer.inference.finished import join_parts
    from paumer.inference.jobs import Outcome
    from paumer.inference.processes import process_number, together
    from paumer.inference.sources import find_sources

    if not sources:
        raise ValueError("nothing to segment: name an image, a folder or a video")
    found, (rank, world) = find_sources(sources, options.out), process_number()
    job = _job(options, any(source.is_video for source in found), rank if world > 1 else None)
    images = [source for source in found if not source.is_video]
    videos = [source for source in found if source.is_video]
    own, own_videos, done = images[rank::world], videos[rank::world], Outcome()
    videos_done = 0
    try:
        with together(world) as gather:
            if not rank:
                join_parts(job.out)
            gather(done)  # None begins before the list is whole.
            if own:
                with progress_bar("segmenting") as update:
                    job.run(own, update if not rank else lambda *_: None, done)
            for source in own_videos:
                _video(job, source)
                videos_done += 1
            outcome = sum(gather(done), Outcome())
            if not rank:
                join_parts(job.out)
    except KeyboardInterrupt:
        finished, total = done.written + done.skipped + videos_done, len(own) + len(own_videos)
        complain(
            f"stopped: {finished} of {total} files are finished, with their results in {job.out}: "
            f"the same command segments the others"
        )
        sys.exit(130)
    if rank or not images:  # The first process tells of the images of all.
        return
    _report(job, outcome, len(images), options)
    for message in outcome.broken:
        complain(message)
    if outcome.broken:
        kinds = ", ".join(f"{count} could not be {what}" for what, count in outcome.failed.items())
        complain(f"{len(outcome.broken)} of {len(images)} images have no results: {kinds}")
        sys.exit(1)


def _job(options: PredictOptions, has_video: bool, part: int | None) -> "Job":
    import torch

    from paumer.inference.jobs import Job
    from paumer.inference.tiles import Inference
    from paumer.loaded import load

    threads = options.threads
    governed = options.target_fps is not None or options.latency_ms is not None
    if threads is None and governed and has_video:
        threads = max(1, torch.get_num_threads() - 1)  # A core reads and writes the frames.
    set_threads(threads)
    predictor = load(options.model, options.device, options.engine, threads)
    how, pace = call(Inference, options), _pace(predictor, options)
    mode, out, kinds = predictor.mode(options.mode), options.out, options.save
    return Job(predictor, mode, out, how, kinds, pace, options.isolate, part)


def _video(job: "Job", source: "Source") -> None:
    from paumer.inference.jobs import video_name

    with progress_bar(source.path.name) as update:
        done = job.run_video(source, update)
    result = job.out / video_name(source)
    if done.skipped:
        say(f"{source.name}: was finished before, in {result}")
        return
    rate = done.written / max(done.seconds, 1e-9)
    frames = f"{done.written} frames in {done.seconds:.1f} s"
    say(f"{source.name}: {frames}, {rate:.2f} a second, {_sizes(done)}; wrote {result}")
    _report_late(job, done, "frames")


def _report(job: "Job", outcome: "Outcome", count: int, options: PredictOptions) -> None:
    """Say what was done with the images, how, and where the results are."""
    passed = f", {outcome.skipped} were finished before" if outcome.skipped else ""
    say(f"segmented {outcome.written} of {count} images into {job.out}{passed}")
    if not outcome.written:
        return
    mode, point = f'mode "{job.mode}"', job.predictor.points.get(options.mode)
    if job.pace:
        mode = f"modes of {len(job.pace.rungs)} operating points"
    elif point and point.miou is not None:
        on = f" on {point.data}" if point.data else ""
        mode = f'{mode} ("{options.mode}": mIoU {100 * point.miou:.1f}%{on})'
    rate = outcome.written / max(outcome.seconds, 1e-9)
    say(f"{mode}, {_sizes(outcome)}, {rate:.2f} images/s")
    files = ", ".join(f"*_{kind}.png" for kind in options.save)
    say(f"results: {files} and predictions.jsonl in {job.out}")
    _report_late(job, outcome, "images")


def _sizes(outcome: "Outcome") -> str:
    """At which sizes images ran."""
    ordered = sorted(outcome.seen, key=lambda size: size[0] * size[1])
    first, last = (f"{width}x{height}" for width, height in (ordered[0], ordered[-1]))
    return f"run at {first}" if first == last else f"run at {first} to {last}"


def _pace(predictor: "Predictor", options: PredictOptions) -> "Pace | None":
    """The pace over the model's operating points, if a rate or a latency is asked for."""
    rate, limit = options.target_fps, options.latency_ms
    if rate is None and limit is None:
        if options.min_miou is not None:
            raise ValueError("--min-miou bounds what --target-fps and --latency-ms move: give one")
        return None
    if rate is not None and limit is not None:
        raise ValueError("--target-fps and --latency-ms say the same: give one of them")
    if options.mode != "none":
        raise ValueError("--mode fixes what --target-fps and --latency-ms would move: give one")
    from paumer.inference.governor import Pace, ladder

    floor = None if options.min_miou is None else options.min_miou / 100
    if rate is not None:
        asked = 1 / above_zero(rate, "target-fps")
    else:
        asked = above_zero(limit or 0.0, "latency-ms") / 1000
    return Pace(ladder(list(predictor.points.values()), floor), asked)


def _report_late(job: "Job", outcome: "Outcome", what: str) -> None:
    if job.pace and outcome.written:
        say(
            f"{outcome.late} {what} were late ({outcome.late / outcome.written:.1%}, "
            f"at a target of {1000 * job.pace.target:.0f} ms); "
            f"{job.pace.governor.changes} changes of operating point"
        )
