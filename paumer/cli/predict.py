"""`paumer predict`: images, folders and videos to labels."""

import sys
from typing import TYPE_CHECKING

from paumer.cli.console import above_zero, call, complain, progress_bar, say, set_threads
from paumer.cli.options import PredictOptions

if TYPE_CHECKING:
    from paumer.inference.governor import Governor
    from paumer.inference.jobs import Job, Outcome
    from paumer.inference.predictor import Predictor


def predict(*sources: str, options: PredictOptions = PredictOptions()) -> None:  # noqa: B008, D417
    """Segment images and videos: label masks, overlays, where patches paused.

    Args:
        sources: Images, folders, patterns such as "streets/*.jpg", videos, or a camera
            (/dev/video0).
    """
    import torch

    from paumer.api import load
    from paumer.inference.jobs import Job
    from paumer.inference.sources import find_sources
    from paumer.inference.tiles import Inference

    if not sources:
        raise ValueError("nothing to segment: name an image, a folder or a video")
    found = find_sources(sources, options.out)
    threads = options.threads
    governed = options.target_fps is not None or options.latency_ms is not None
    if threads is None and governed and any(source.is_video for source in found):
        threads = max(1, torch.get_num_threads() - 1)  # A core reads and writes the frames.
    set_threads(threads)
    predictor = load(options.model, options.device, options.engine, threads)
    how, governor = call(Inference, options), _governor(predictor, options)
    job = Job(predictor, predictor.mode(options.mode), options.out, how, options.save, governor)
    images = [source for source in found if not source.is_video]
    broken = []
    if images:
        with progress_bar("segmenting") as update:
            outcome = job.run(images, update)
        passed = f", {outcome.skipped} were finished before" if outcome.skipped else ""
        say(f"segmented {outcome.written} of {len(images)} images into {job.out}{passed}")
        _report_late(job, outcome, "images")
        broken += outcome.broken
    for source in found:
        if source.is_video:
            with progress_bar(source.path.name) as update:
                done = job.run_video(source, update)
            rate = done.written / max(done.seconds, 1e-9)
            frames = f"{done.written} frames in {done.seconds:.1f} s"
            say(f"{source.name}: {frames}, {rate:.2f} a second")
            _report_late(job, done, "frames")
    for message in broken:
        complain(message)
    if broken:
        complain(f"{len(broken)} of {len(images)} images could not be read")
        sys.exit(1)


def _governor(predictor: "Predictor", options: PredictOptions) -> "Governor | None":
    """A governor over the model's operating points, if a rate or a latency is asked for."""
    rate, limit = options.target_fps, options.latency_ms
    if rate is None and limit is None:
        if options.min_miou is not None:
            raise ValueError("--min-miou bounds what --target-fps and --latency-ms move: give one")
        return None
    if rate is not None and limit is not None:
        raise ValueError("--target-fps and --latency-ms say the same: give one of them")
    if options.mode != "none":
        raise ValueError("--mode fixes what --target-fps and --latency-ms would move: give one")
    from paumer.inference.governor import Governor, ladder

    floor = None if options.min_miou is None else options.min_miou / 100
    if rate is not None:
        asked = 1 / above_zero(rate, "target-fps")
    else:
        asked = above_zero(limit or 0.0, "latency-ms") / 1000
    return Governor(ladder(list(predictor.points.values()), floor), asked, dwell=1.0)


def _report_late(job: "Job", outcome: "Outcome", what: str) -> None:
    if job.governor and outcome.written:
        say(
            f"{outcome.late} {what} were late ({outcome.late / outcome.written:.1%}, "
            f"at a target of {1000 * job.governor.target:.0f} ms); "
            f"{job.governor.changes} changes of operating point"
        )
