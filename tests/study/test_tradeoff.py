import json

from paumer import PauseConfig
from paumer.study.tradeoff import Measurement


def test_a_measurement_survives_json():
    one = Measurement(pause=PauseConfig.parse("3:0.2,5:0.4"), speed_up=1.3, miou=0.7)
    line = json.dumps(one.to_json())
    assert json.loads(line)["pause"] == "3:0.2,5:0.4"
    assert "latency_ms" not in json.loads(line)
    assert Measurement.from_json(json.loads(line)) == one
