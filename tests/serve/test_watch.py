from paumer.serve.watch import Watch


def test_a_history_second_by_second():
    now = [100.0]
    watch = Watch(["accurate", "fast"], clock=lambda: now[0])
    assert watch.percentiles() == (None, None)
    for number in range(100):
        watch.answered("fast", (number + 1) / 1000)
    watch.refuse("busy")
    watch.refuse("wrong")
    watch.tick("fast", 7)
    assert list(watch.history) == [
        {"t": 100.0, "requests": 101, "refused": 1, "point": "fast", "queue": 7, "p99": 99.0}
    ]
    assert watch.percentiles()[0] == 51.0
    now[0] += 1000
    for _ in range(200):
        watch.tick("accurate", 0)
    assert len(watch.history) == 120
    assert watch.history[-1]["p99"] is None
    assert watch.rate() == 0


def test_the_ratio_of_a_minute_at_the_fastest_point():
    watch = Watch(["accurate", "fast"])
    assert watch.fastest_ratio() == 0
    for point in ["fast"] * 70 + ["accurate"] * 45:
        watch.tick(point, 0)
    assert watch.fastest_ratio() == 15 / 60
    assert "paumer_fastest_ratio 0.25" in watch.metrics().decode().splitlines()
    alone = Watch(["fast"])
    alone.tick("fast", 0)
    assert alone.fastest_ratio() == 0


def test_metrics_by_name():
    watch = Watch(["accurate"])
    watch.answered("accurate", 0.02)
    watch.answered(None, 0.02)
    watch.batch(3, 0.04)
    watch.refuse("busy")
    watch.in_flight = 2
    assert "paumer_queue 0.0" in watch.metrics().decode().splitlines()
    watch.follow(
        point=lambda: 1, point_changes=lambda: 4, queue=lambda: 5, queue_filled=lambda: 0.5
    )
    text = watch.metrics().decode()
    for line in (
        'paumer_answered_total{point="accurate"} 1.0',
        'paumer_answered_total{point="other"} 1.0',
        'paumer_latency_seconds_bucket{le="0.025"} 2.0',
        'paumer_batch_size_bucket{le="4.0"} 1.0',
        'paumer_refused_total{reason="busy"} 1.0',
        "paumer_point 1.0",
        "paumer_point_changes 4.0",
        "paumer_queue 5.0",
        "paumer_queue_filled 0.5",
        "paumer_in_flight 2.0",
    ):
        assert line in text.splitlines(), text
