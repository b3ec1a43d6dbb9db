"""What MLflow and Weights & Biases keep of a fit, without a network."""

import json
import random
import struct
import sys

import pytest
import torch.distributed as dist

import pyro_bnn as pb
from pyro_bnn.inference.history import History
from pyro_bnn.interop import MLflow, WandB
from pyro_bnn.interop._loggers import MOST

from .test_tensorboard import fit

TERMS = ("elbo", "nll", "kl")
CURVES = {
    *(f"per_row/{term}" for term in TERMS),
    *(f"schedule/{name}" for name in ("learning_rate", "kl_weight", "seconds_per_epoch")),
}


class OfMLflow:
    """A run in a folder."""

    make = MLflow

    def __init__(self, folder, monkeypatch):
        before = random.getstate()
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the store that needs no other package
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{folder / 'runs'}")
        monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
        self.mlflow = pytest.importorskip("mlflow")
        self.run = self.mlflow.start_run()  # which draws a name for the run
        random.setstate(before)

    def given(self):
        return self.run.info.run_id

    def end(self):
        self.mlflow.end_run()

    def points(self):
        client = self.mlflow.MlflowClient()
        names = client.get_run(self.given()).data.metrics
        return {name: [(m.step, m.value) for m in client.get_metric_history(self.given(), name)] for name in names}


class OfWandB:
    """A run that is offline."""

    make = WandB

    def __init__(self, folder, monkeypatch):
        monkeypatch.setenv("WANDB_CONFIG_DIR", str(folder))
        self.folder, self.wandb = folder, pytest.importorskip("wandb")
        settings = self.wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True)
        self.run = self.wandb.init(mode="offline", dir=folder, project="test", settings=settings)

    def given(self):
        return self.run

    def end(self):
        self.run.finish()
        self.wandb.teardown()

    def points(self):
        self.end()  # the file is complete only then
        found = {}
        (path,) = self.folder.glob("wandb/offline-*/*.wandb")
        for row in histories(path):
            for name in {*row} - {"svi_step"} if "svi_step" in row else ():
                if not name.startswith("_"):
                    found.setdefault(name, []).append((row["svi_step"], row[name]))
        return found


def histories(path):
    """The logged values in a file of wandb: records of LevelDB's log format, each a protobuf message."""
    from wandb.proto import wandb_internal_pb2

    content, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # records do not begin at the end of a block
            place += 32768 - place % 32768
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                yield {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.fixture(params=[OfMLflow, OfWandB])
def place(request, tmp_path, monkeypatch):
    """A run of another program."""
    made = request.param(tmp_path, monkeypatch)
    yield made
    made.end()


def test_the_curves_are_those_of_the_history_per_row(place):
    history = fit([place.make()]).history
    found = place.points()
    assert {*found} == CURVES
    for name, value in (
        ("per_row/elbo", lambda epoch: epoch.elbo / 6),
        ("per_row/nll", lambda epoch: -epoch.expected_log_likelihood / 6),
        ("per_row/kl", lambda epoch: epoch.kl / 6),
        ("schedule/learning_rate", lambda epoch: 0.01),
        ("schedule/seconds_per_epoch", lambda epoch: epoch.seconds),
    ):
        assert found[name] == [
            (step, pytest.approx(value(e))) for step, e in zip((3, 6, 9), history.epochs, strict=True)
        ]


def test_each_step_can_be_written_to_a_given_run(place):
    history = fit([place.make(place.given(), every_step=True)]).history
    found = place.points()
    assert {*found} == CURVES | {f"step_per_row/{term}" for term in TERMS}
    assert found["step_per_row/elbo"] == [(i + 1, pytest.approx(value / 6)) for i, value in enumerate(history.elbo)]


def test_more_values_than_a_request_may_have(tmp_path, monkeypatch):
    place = OfMLflow(tmp_path, monkeypatch)
    history, num_steps = History(6), MOST // 3 + 7
    for step in range(num_steps):
        history.add_step(-step, 0.0, 1.0)
    history.end_epoch([num_steps], 0.1, 1.0)
    MLflow(every_step=True)(history)
    assert len(place.points()["step_per_row/kl"]) == num_steps
    place.end()


def test_what_you_log_yourself_does_not_move_the_axis(tmp_path, monkeypatch):
    place = OfWandB(tmp_path, monkeypatch)
    fit([place.make(), lambda history: place.run.log({"mine": 1.0}, step=100 * len(history.epochs))])
    assert [step for step, _ in place.points()["per_row/elbo"]] == [3, 6, 9]
    place.end()


def test_a_fit_goes_on_in_the_same_run(place, tmp_path):
    path = tmp_path / "fit"
    fit([place.make(every_step=True)], num_epochs=1, checkpoint=pb.Checkpoint(path, minutes=0))
    history = fit([place.make(every_step=True)], num_epochs=3, resume=path).history
    expected = [(i + 1, pytest.approx(value / 6)) for i, value in enumerate(history.elbo)]
    assert place.points()["step_per_row/elbo"] == expected


@pytest.mark.parametrize("make", [MLflow, WandB])
def test_only_the_first_process_needs_a_run_and_writes(make, monkeypatch):
    history = fit([], num_epochs=1).history
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with make() as writer:
        writer(history)
    assert writer.state_dict() == {"num_steps": 3}  # the processes' checkpoints agree


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLflow(), r"no run of MLflow is active; call `mlflow\.start_run\(\)`"),
        (lambda: WandB(), r"no run of Weights & Biases; call `wandb\.init\(\)`"),
        (lambda: WandB(every_step=3), "`every_step` must"),
    ],
)
def test_wrong_arguments_are_answered_with_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "name", "title"), [(MLflow, "mlflow", "MLflow"), (WandB, "wandb", "Weights & Biases")]
)
def test_without_the_package_the_error_says_how_to_get_it(make, name, title, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=rf"needs {title}, .*pip install -e '\.\[{name}\]'"):
        make()
