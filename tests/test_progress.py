"""Progress of fits on a terminal, in a notebook and in a file."""

import functools
import io
import multiprocessing
import re
import sys
import time
from dataclasses import replace

import pytest
import torch
import tqdm.auto
from tqdm import tqdm as plain

import pyro_bnn as pb
from pyro_bnn._core import progress
from pyro_bnn._core.progress import progress_bar
from pyro_bnn.app.datasets import Dataset, Facts
from pyro_bnn.app.own.targets import Target
from pyro_bnn.app.recipes import OWN
from pyro_bnn.app.tracking import FitProgress
from pyro_bnn.auto import choosing
from pyro_bnn.auto.choosing import Deadline
from pyro_bnn.inference.history import History

from .cases import small_model


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def shown_on(monkeypatch):
    """A function that replaces standard error by a new stream of a class, and returns the stream."""

    def replace(kind):
        monkeypatch.setattr(sys, "stderr", kind())
        return sys.stderr

    return replace


LINE = re.compile(r"epoch (\d)/3 [ 0-9#▏▎▍▌▋▊▉█]{10}( ELBO -?\d+\.\d)? 00:0\d, (00:\d\d|\?) left *")


def test_a_terminal_shows_epoch_elbo_and_time_from_the_beginning(shown_on):
    written = shown_on(Terminal)
    model, x, y = small_model(num_data=6)
    adam = functools.partial(torch.optim.Adam, lr=1e-2)
    pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=adam, num_epochs=3, progress=True, seed=0)
    shown = [LINE.fullmatch(line) for line in written.getvalue().strip().split("\r") if line.strip()]
    assert all(shown), written.getvalue()
    assert shown[0].group(1) == "0"
    assert shown[-1].group(1) == "3"
    assert shown[-1].group(2)
    assert all(len(line.group()) <= 60 for line in shown)


def test_the_bar_of_chains_says_what_its_draws_are(shown_on):
    written = shown_on(Terminal)
    model, x, y = small_model(num_data=6)
    with pytest.warns(pb.ConvergenceWarning):
        pb.fit_nuts(model, (x, y), num_chains=2, num_warmup=4, num_samples=4, progress=True, compile=False, seed=0)
    assert re.search(r"draw 16/16 \S+ of 2 chains, with warm-up 00:", written.getvalue())


@pytest.mark.nightly
def test_a_comparison_of_networks_counts_its_fits(shown_on, monkeypatch):
    monkeypatch.setattr(choosing._budget, "FEWEST_SECONDS", 0.5)
    monkeypatch.setattr(choosing._budget, "MOST_DESCENT", 20)
    monkeypatch.setattr(choosing._budget, "MOST_STEPS", 20)
    monkeypatch.setattr(choosing._choose, "FEWEST_STEPS", 20)
    written = shown_on(Terminal)
    x, y = (part.repeat(2, *[1] * (part.dim() - 1)) for part in small_model(num_data=12)[1:])
    candidates = {name: lambda num_data: small_model(num_data=num_data)[0] for name in "ab"}
    choosing.fit_best(candidates, (x + 0.1 * torch.randn(12, 4), y), progress=True, seed=0)
    shown = re.findall(r"comparing 2 networks: fit (\d)/6 .{10,12} 00:\d\d, [\d:?]+ left", written.getvalue())
    assert (shown[0], shown[-1]) == ("0", "6")


def test_the_time_left_of_a_fit_that_may_end_early_is_a_bound(shown_on):
    written = shown_on(Terminal)
    model, x, y = small_model(num_data=6)
    adam = functools.partial(torch.optim.Adam, lr=1e-2)
    ends = [lambda history: len(history.epochs) == 2]
    pb.fit_svi(
        model, (x, y), pb.MeanFieldGuide(model), optimizer=adam, num_epochs=9, callbacks=ends, progress=True, seed=0
    )
    assert re.search(r"epoch 2/9 .* 00:0\d, at most 00:\d\d left", written.getvalue())


def test_a_file_gets_a_line_every_ten_seconds(shown_on, monkeypatch):
    written, clock = shown_on(io.StringIO), Clock()
    monkeypatch.setattr(progress.Lines, "_time", clock, raising=False)
    with progress_bar("draw", 40, shown=True) as bar:
        bar._time = clock
        bar.start_t = bar.last_print_t = 0.0
        for _ in range(40):
            clock.now += 1.0
            bar.update()
    assert [line.split()[1] for line in written.getvalue().splitlines()] == ["10/40", "20/40", "30/40", "40/40"]
    assert "\r" not in written.getvalue()


def test_long_epochs_show_lines_too(shown_on):
    written = shown_on(io.StringIO)
    with progress_bar("epoch", 2, shown=True) as bar:
        bar.start_t = bar.last_print_t = bar.start_t - 2 * progress.EVERY
        bar.update(0)
    assert written.getvalue().startswith("epoch 0/2")


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_nothing_is_shown_unless_asked(shown_on, kind):
    written = shown_on(kind)
    with progress_bar("epoch", 2, shown=False) as bar:
        bar.update()
    assert not written.getvalue()


def spent(seconds):
    """Make steps that take some seconds, with a bar that nobody asked for."""
    with progress_bar("epoch", 2, shown=None) as bar:
        if not bar.disable:
            bar.start_t -= seconds
            bar.last_print_t -= seconds
        bar.update(2)


def test_a_long_fit_shows_a_bar_on_a_terminal_unasked(shown_on, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    written = shown_on(Terminal)
    spent(0.5 * progress.DELAY)
    assert not written.getvalue()
    spent(2 * progress.DELAY)
    assert "epoch 2/2" in written.getvalue()


def test_a_file_gets_lines_unasked(shown_on, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    written = shown_on(io.StringIO)
    spent(0.5 * progress.EVERY)
    assert not written.getvalue()
    spent(2 * progress.EVERY)
    assert re.fullmatch(r"epoch 2/2 00:20, 00:00 left\n", written.getvalue())


def test_a_worker_process_writes_lines_only_if_asked(shown_on, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    written = shown_on(io.StringIO)
    spent(100)
    assert not written.getvalue()
    assert not progress_bar("epoch", 2, shown=True).disable


def test_nothing_is_shown_unasked_in_pytest(shown_on):
    written = shown_on(Terminal)
    spent(100)
    assert not written.getvalue()


def test_nothing_is_shown_without_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert progress_bar("epoch", 2, shown=True).disable


def test_fits_leave_the_choice_to_the_bar(shown_on, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    written = shown_on(Terminal)
    monkeypatch.setattr(progress, "DELAY", 0.0)
    model, x, y = small_model(num_data=6)
    adam = functools.partial(torch.optim.Adam, lr=1e-2)
    pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=adam, num_epochs=2, seed=0)
    assert "epoch 2/2" in written.getvalue()
    written = shown_on(Terminal)
    pb.fit_svi(model, (x, y), pb.MeanFieldGuide(model), optimizer=adam, num_epochs=2, progress=False, seed=0)
    assert not written.getvalue()


def test_a_short_fit_writes_nothing_to_a_file(shown_on):
    written = shown_on(io.StringIO)
    with progress_bar("epoch", 2, shown=True) as bar:
        bar.update(2)
    assert not written.getvalue()


def test_a_notebook_gets_a_bar_of_widgets(monkeypatch):
    """In a notebook, `tqdm.auto` has the class that draws widgets."""

    class Widget(plain):
        pass

    monkeypatch.setattr(tqdm.auto, "tqdm", Widget)
    with progress_bar("epoch", 2, shown=True) as shown:
        assert isinstance(shown, Widget)
        assert shown.bar_format.count("{bar}") == 1  # which tqdm replaces by the widget
    monkeypatch.undo()
    with progress_bar("epoch", 2, shown=True) as shown:
        assert isinstance(shown, progress.Lines)


def test_evaluations_without_a_known_number_are_counted(shown_on):
    shown_on(io.StringIO)
    bar = progress_bar("evaluation", shown=True)
    bar.update(3)
    assert str(bar).startswith("evaluation 3 00:00")
    bar.close()


def shown_times(capsys, epochs, deadline=None, compiling=0.0):
    """Report three epochs of a fit, and return the negative ELBOs and the times left in the lines of the bar."""
    history = History(num_data=10)
    facts = Facts("", 10, 0, [1], Target("price", [], [0.0], [2.0]), None, None, [])
    data = Dataset(torch.zeros(10, 1), torch.zeros(10, 1), torch.zeros(0, 1), torch.zeros(0, 1), facts)
    with FitProgress(replace(OWN, epochs=epochs), data, deadline, shown=True) as shown:
        shown._bar.start_t -= compiling
        for _ in range(3):
            time.sleep(0.01)
            history.add_step(-1.0, 0.0, 1.0)
            history.end_epoch([10], 0.1, 1.0)
            assert not shown(history)
    lines = re.findall(rf"epoch (\d)/{epochs} negative ELBO (\S+) .* \d\d:\d\d, (.*) left", capsys.readouterr().err)
    assert lines[-1][0] == "3"
    assert {float(cost) for _, cost, _ in lines} == {0.7931}  # 1 nat for 10 rows, and log 2 for the unit of the target
    return [left for *_, left in lines]


def test_the_progress_of_a_limited_fit_does_not_promise_more_than_the_limit(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    left = shown_times(capsys, 10**6, Deadline.after(2.0))
    assert {*left} <= {"00:00", "00:01", "00:02"}  # without the limit, it is hours


def test_the_time_left_leaves_out_the_first_epoch_which_compiles(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    left = shown_times(capsys, 10, compiling=100.0)
    assert set(left[:-1]) == {"?"}
    assert left[-1] in ("00:00", "00:01")
