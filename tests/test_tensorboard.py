"""The files of a fit for TensorBoard."""

import functools
import shutil
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import pyro_bnn as pb
from pyro_bnn.inference.history import History

from .cases import small_model

ADAM = functools.partial(torch.optim.Adam, lr=1e-2)
TERMS = ("elbo", "nll", "kl")


def fit(callbacks, num_epochs=3, guide=pb.MeanFieldGuide, **kwargs):
    torch.manual_seed(0)
    model, x, y = small_model(num_data=6)
    guide = guide(model)
    data = {"data": (x, y), "batch_size": 2}
    options = {"optimizer": ADAM, "num_epochs": num_epochs, "seed": 0, **data, **kwargs}
    return pb.fit_svi(model, guide=guide, callbacks=callbacks(guide) if callable(callbacks) else callbacks, **options)


def read(folder):
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def points(folder, tag):
    """(step, value) of a curve."""
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def approximately(expected):
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in expected]  # event files are in single precision


def test_the_curves_are_those_of_the_history_per_row(tmp_path):
    history = fit([pb.interop.TensorBoard(tmp_path)]).history
    columns = {
        "per_row/elbo": [record.elbo / 6 for record in history.epochs],
        "per_row/nll": [-record.expected_log_likelihood / 6 for record in history.epochs],
        "per_row/kl": [record.kl / 6 for record in history.epochs],
        "schedule/learning_rate": [0.01] * 3,
        "schedule/kl_weight": [1.0] * 3,
        "schedule/seconds_per_epoch": [record.seconds for record in history.epochs],
    }
    assert {*read(tmp_path).Tags()["scalars"]} == {*columns}
    for tag, values in columns.items():
        assert points(tmp_path, tag) == approximately(zip((3, 6, 9), values, strict=True))


def test_each_step_can_be_written(tmp_path):
    history = fit([pb.interop.TensorBoard(str(tmp_path), every_step=True)]).history
    assert points(tmp_path, "step_per_row/elbo") == approximately((i + 1, v / 6) for i, v in enumerate(history.elbo))
    assert points(tmp_path, "step_per_row/kl")[-1] == approximately([(9, history.kl[-1] / 6)])[0]


def test_a_model_that_does_not_say_how_much_data_there_is_has_totals(tmp_path):
    history = History()
    history.add_step(-8.0, 2.0, 1.0)
    history.end_epoch([3], 0.1, 1.0)
    with pb.interop.TensorBoard(tmp_path, every_step=True) as board:
        board(history)
    values = [points(tmp_path, f"{prefix}/{term}") for prefix in ("total", "step_total") for term in TERMS]
    assert values == [[(1, -10.0)], [(1, 8.0)], [(1, 2.0)]] * 2


def test_signal_to_noise_ratios_are_histograms(tmp_path):
    def pruned(model):
        return pb.pruning.prune(pb.MeanFieldGuide(model), fraction=0.4).guide

    guides = []
    fit(lambda guide: [guides.append(guide) or pb.interop.TensorBoard(tmp_path, guide=guide)], guide=pruned)
    accumulator = read(tmp_path)
    ratios = pb.pruning.signal_to_noise(guides[0])
    assert {*accumulator.Tags()["histograms"]} == {f"signal_to_noise/{name}" for name in ratios}
    for name, ratio in ratios.items():
        *_, last = accumulator.Histograms(f"signal_to_noise/{name}")
        decibels = pb.pruning.decibel(ratio[ratio > 0])
        assert (last.step, last.histogram_value.num) == (9, len(decibels))
        assert last.histogram_value.sum == pytest.approx(float(decibels.sum()))


def test_a_fit_goes_on_without_double_points(tmp_path):
    """The fit is killed some time after its checkpoint in the third epoch; the resumed fit writes two epochs again."""
    path, kept, folder = tmp_path / "fit", tmp_path / "kept", tmp_path / "parts"

    def dies(history):
        if len(history.epochs) == 3:
            shutil.copy(path, kept)
        if len(history.epochs) == 4:
            raise RuntimeError("power cut")

    def lives(history):
        return False

    whole = fit([pb.interop.TensorBoard(tmp_path / "whole", every_step=True)], num_epochs=6)
    callbacks = [pb.interop.TensorBoard(folder, every_step=True), dies]
    with pytest.raises(RuntimeError, match="power cut"):
        fit(callbacks, num_epochs=6, checkpoint=pb.Checkpoint(path, minutes=0))
    assert [step for step, _ in points(folder, "per_row/elbo")] == [3, 6, 9, 12]
    resumed = fit([pb.interop.TensorBoard(folder, every_step=True), lives], num_epochs=6, resume=kept)
    assert resumed.history.elbo == whole.history.elbo
    for tag, num_points in (("per_row/elbo", 6), ("step_per_row/nll", 18)):
        assert points(folder, tag) == points(tmp_path / "whole", tag)
        assert len(points(folder, tag)) == num_points


def test_a_second_fit_with_the_same_callback_starts_anew(tmp_path):
    board = pb.interop.TensorBoard(tmp_path, every_step=True)
    fit([board])
    fit([board], num_epochs=2)
    assert sorted(step for step, _ in points(tmp_path, "step_per_row/kl")) == sorted([*range(1, 10), *range(1, 7)])


def test_a_writer_of_ones_own_stays_open(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer:
        fit([pb.interop.TensorBoard(writer)])
        writer.add_scalar("mine", 1.0, 1)
    assert {"mine", "per_row/elbo"} < {*read(tmp_path).Tags()["scalars"]}


def test_the_file_is_complete_after_each_epoch_and_closed_after_an_error(tmp_path):
    def look(history):
        steps = [step for step, _ in points(tmp_path, "per_row/elbo")]
        assert steps == [3 * (epoch + 1) for epoch in range(len(history.epochs))]
        if len(steps) == 2:
            raise RuntimeError("stop")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="stop"):
        fit([pb.interop.TensorBoard(tmp_path), look])
    assert threading.active_count() == before  # a writer has a thread until it is closed


@pytest.mark.parametrize(("rank", "expected"), [(0, [3, 6]), (1, [])])
def test_only_the_first_process_writes(tmp_path, monkeypatch, rank, expected):
    history = fit([], num_epochs=2).history
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pb.interop.TensorBoard(tmp_path) as board:
        for num_epochs in (1, 2):
            so_far = History(6, elbo=history.elbo[: 3 * num_epochs], epochs=history.epochs[:num_epochs])
            board(so_far)
    assert board.state_dict() == {"num_steps": 6}  # the processes' checkpoints agree
    assert ([step for step, _ in points(tmp_path, "per_row/elbo")] if rank == 0 else [*tmp_path.iterdir()]) == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pb.interop.TensorBoard(3), "`log_dir` must be a folder or a SummaryWriter, got int"),
        (lambda: pb.interop.TensorBoard("x", guide=nn.Linear(1, 1)), "`guide` must be a MeanFieldGuide"),
        (lambda: pb.interop.TensorBoard("x", every_step=3), "`every_step` must"),
    ],
)
def test_wrong_arguments_are_answered_with_a_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_without_tensorboard_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    for name in [*sys.modules]:
        if name.startswith(("tensorboard", "torch.utils.tensorboard")):  # torch has its module in any case
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(ImportError, match=r"needs TensorBoard, .*pip install -e '\.\[tensorboard\]'"):
        pb.interop.TensorBoard(tmp_path)
    assert not [*tmp_path.iterdir()]
