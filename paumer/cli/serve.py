"""`paumer serve`: an HTTP service that pauses more under load."""

import math
from functools import partial

from paumer.arguments import at_least_one
from paumer.cli.console import above_zero, say, set_threads
from paumer.cli.options import ServeOptions


def serve(options: ServeOptions = ServeOptions()) -> None:  # noqa: B008
    """Serve segmentation over HTTP, with a page to try it, and metrics. SIGTERM drains."""
    try:
        from paumer.serve import guard, http, process
    except ImportError as error:
        raise ImportError(f"serving needs more ({error}): pip install 'paumer[serve]'") from error
    import torch

    from paumer.data.isolated import DecodingLimits
    from paumer.loaded import load
    from paumer.serve.service import Service

    workers = at_least_one(options.workers, "workers")
    threads = options.threads
    if workers > 1:
        threads = threads or max(1, torch.get_num_threads() // workers)
    set_threads(threads)
    make = partial(load, options.model, options.device, options.engine, threads)
    target = options.latency_ms
    if target is not None:
        target = above_zero(target, "latency-ms") / 1000
    limits = http.Limits(
        body_bytes=math.ceil(above_zero(options.max_mb, "max-mb") * 2**20),
        seconds=above_zero(options.body_seconds, "body-seconds"),
        decoding=DecodingLimits(
            seconds=above_zero(options.decode_seconds, "decode-seconds"),
            clock=4 * options.decode_seconds,
            bytes=math.ceil(above_zero(options.decode_mb, "decode-mb") * 2**20),
            pixels=at_least_one(options.max_pixels, "max-pixels"),
            longest=at_least_one(options.max_side, "max-side"),
        ),
        drain=above_zero(options.drain_seconds, "drain-seconds"),
        hosts=guard.allowed_hosts(options.host, options.allow_host),
    )
    service = Service(
        make(),
        target=target,
        point=options.point,
        queue=at_least_one(options.queue, "queue"),
        batch=at_least_one(options.batch, "batch"),
        workers=workers,
        make=make,
    )
    socket = process.listen(options.host, options.port)
    host, port = socket.getsockname()[:2]
    say(f"serving {options.model} at http://{f'[{host}]' if ':' in host else host}:{port}")
    say(f"operating points: {', '.join(service.names)}")
    if (side := service.predictor.config.trained_side) is not None:
        say(f"images whose shorter side is above {side} are scaled down to it (size=full: not)")
    app = http.create_app(service, limits)
    process.run(app, service, socket, limits.seconds, limits.drain)
    say("drained")
