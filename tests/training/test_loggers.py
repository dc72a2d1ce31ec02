"""A run's numbers in TensorBoard, in Lightning's loggers by name, and in functions of one's own."""

import csv
import sys
from dataclasses import replace

import pytest

import paumer
from paumer.training.options import plain_options, read_options

pytest.importorskip("lightning_fabric")
from paumer.training import loggers, run


def test_names_of_metrics_are_those_that_loggers_take(tmp_path):
    seen = []

    class Kept(loggers.Logger):
        name = version = None

        def log_hyperparams(self, params):
            seen.append(params)

        def log_metrics(self, metrics, step=None):
            seen.append((step, metrics))

    (board,) = loggers.make_loggers(["tensorboard", "none"], tmp_path)
    board.log_metrics = lambda metrics, step: seen.append((step, metrics))
    values = {"loss": 1.0, "miou 3:0.4,5:<0.2 exit by=neighbours": 0.5}
    loggers.log_metrics([Kept(), board], values, 7)
    assert seen == [
        (7, {"loss": 1.0, "miou 3-0.4_5-_0.2 exit by_neighbours": 0.5}),
        (7, values),
    ]
    loggers.log_options([Kept(), board], {"lr": 1})
    assert seen[2:] == [{"lr": 1}]


def test_tensorboard_holds_the_numbers(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    board = loggers.make_loggers(["tensorboard"], tmp_path)
    for step in (1, 2):
        loggers.log_metrics(board, {"loss": 1 / step, "miou 3:0.4": step / 4}, step)
    loggers.finish(board, "success")
    kept = events.EventAccumulator(str(tmp_path / "tensorboard"))
    kept.Reload()
    found = {tag: [(s.step, s.value) for s in kept.Scalars(tag)] for tag in kept.Tags()["scalars"]}
    assert found == {"loss": [(1, 1.0), (2, 0.5)], "miou 3:0.4": [(1, 0.25), (2, 0.5)]}


@pytest.mark.slow
def test_an_unknown_logger_is_named(tiny, tmp_path, monkeypatch):
    pytest.importorskip("pytorch_lightning")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match='no logger "wb": choose from none, comet, csv, lit, mlfl'):
        run.train(replace(tiny, out=tmp_path / "run", logger=("wb",)))
    with pytest.raises(ValueError, match="set MLFLOW_TRACKING_URI"):
        run.train(replace(tiny, out=tmp_path / "run", logger=("mlflow",)))
    assert not (tmp_path / "run").exists()


def test_a_missing_logger_is_named(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_lightning.loggers", None)
    with pytest.raises(ImportError, match=r"paumer\[loggers\]"):
        run.train(replace(tiny, out=tmp_path / "run", logger=("wandb",)))
    assert not (tmp_path / "run").exists()


def test_the_loggers_of_a_run_are_kept(tiny, tmp_path):
    import yaml

    options = replace(tiny, out=tmp_path, logger=("tensorboard", "mlflow"))
    (tmp_path / "args.yaml").write_text(yaml.safe_dump(plain_options(options)))
    assert read_options(tmp_path) == options


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning:mlflow", "ignore::Warning:pytorch_lightning")
def test_mlflow_csv_and_callbacks_get_the_numbers_of_the_table(tiny, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    pytest.importorskip("pytorch_lightning", reason="Lightning's loggers are not installed")
    store = f"file:{tmp_path / 'store'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    heard = []
    options = plain_options(
        replace(tiny, out=tmp_path / "run", steps=3, val_mode=("none", "2:0.5"))
    )
    options |= {"val_mode": tuple(options["val_mode"]), "logger": ("mlflow", "csv")}
    out = paumer.train(**options, callbacks=[lambda step, values: heard.append((step, values))])
    with (out / "metrics.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert not (out / "tensorboard").exists()
    (table,) = out.glob("csv/**/metrics.csv")
    with table.open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["miou 2-0.5"]) == pytest.approx(float(row["miou 2:0.5"]), rel=1e-5)

    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("paumer")
    (kept,) = client.search_runs([experiment.experiment_id])
    assert (kept.info.run_name, kept.info.status) == ("run", "FINISHED")
    assert kept.data.params["backbone"] == tiny.backbone
    names = {"loss": "loss", "miou none": "miou none", "miou 2:0.5": "miou 2-0.5"}
    for name, theirs in names.items():
        assert kept.data.metrics[theirs] == pytest.approx(float(row[name]), rel=1e-5)
        assert heard[-1][1][name] == pytest.approx(float(row[name]), rel=1e-5)
    assert [step for step, _ in heard] == [1, 2, 3]
    assert "miou none" not in heard[0][1]
    assert set(heard[0][1]) >= {"loss", "aux_loss"}
