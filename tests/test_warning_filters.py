"""Filters of warnings, which belong to the process: two fits in two threads leave them as they were, and fits warn."""

import threading
import warnings

import pytest
import torch
from sklearn.exceptions import ConvergenceWarning as SklearnWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core import scope as _scope
from pyro_bnn.inference.sgmcmc import _fit as sgmcmc_fit

from .test_threads import at_once

NUM_ROWS = 20


def make_model():
    likelihood = pb.GaussianLikelihood(0.1)
    return pb.BayesianModel(nn.Linear(1, 1), prior=pb.NormalPrior(), likelihood=likelihood, num_data=NUM_ROWS)


def filters():
    """Filters of this library's warnings: other libraries add filters when they are imported."""
    return [entry for entry in warnings.filters if entry[2].__module__.startswith("pyro_bnn")]


class Meeting:
    """Waits in a fit's first epoch until another fit is there, and remembers the filters of that moment."""

    def __init__(self, barrier):
        self.barrier, self.filters = barrier, None

    def __call__(self, history):
        if self.filters is None:
            self.barrier.wait()
            self.filters = filters()


def chain(meeting, num_epochs):
    x = torch.linspace(-1, 1, NUM_ROWS)[:, None]

    def run():
        options = {"sampler": pb.SGHMC(lr=1e-3, momentum=0.5), "num_epochs": num_epochs, "num_samples": 5, "seed": 0}
        with _scope.silent_fits():
            pb.fit_sgmcmc(make_model(), (x, 2 * x), callbacks=[meeting], **options)

    return run


def test_chains_side_by_side_leave_the_filters_alone():
    before = filters()
    meetings = [Meeting(barrier) for barrier in [threading.Barrier(2, timeout=60)] * 2]
    at_once([chain(meetings[0], 10), chain(meetings[1], 40)])  # the first ends while the second goes on
    assert filters() == before
    assert all(meeting.filters == before for meeting in meetings)


@pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")
def test_chains_of_plain_filters_would_not(monkeypatch):
    """The twin: a filter of the process during a fit, as in an earlier `silent_fits`."""

    class Filtered(warnings.catch_warnings):
        def __enter__(self):
            super().__enter__()
            warnings.simplefilter("ignore", pb.PosteriorWarning)

    before = filters()
    monkeypatch.setattr(sgmcmc_fit, "silent_fits", Filtered)
    meetings = [Meeting(barrier) for barrier in [threading.Barrier(2, timeout=60)] * 2]
    with warnings.catch_warnings():  # pytest's own filters come back
        at_once([chain(meetings[0], 10), chain(meetings[1], 40)])
    assert any(meeting.filters != before for meeting in meetings)  # the first may have ended when the second looks


def test_a_silent_fit_in_one_thread_silences_no_other():
    """A filter would silence all threads."""
    inside, told = threading.Event(), threading.Event()

    def silent():
        with _scope.silent_fits():
            inside.set()
            told.wait(60)
            _scope.warn_of_fit("not shown", UserWarning)

    other = threading.Thread(target=silent)
    other.start()
    inside.wait(60)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        _scope.warn_of_fit("shown", UserWarning)
        told.set()
        other.join()
    assert [str(warning.message) for warning in shown] == ["shown"]
    assert shown[0].filename == __file__


def test_a_warning_has_the_verdict_then_the_remedy_then_the_whole_facts_or_their_place():
    facts = "Chosen: 50 ReLU units; " + "8 chains. " * 99
    warning = pb.Status(False, facts, remedy="Sample longer.", verdict="the chains disagree").warning()
    assert warning == "The chains disagree. Sample longer. `posterior.status` says more."  # nothing is cut
    first = pb.Status(False, "not converged: 5 epochs; Adam.", remedy="Fit longer.").warning("status_")
    assert first == "Not converged: 5 epochs. Fit longer. `status_` says more: Adam."
    long = pb.Status(False, "facts", remedy="Sample longer. " * 30, verdict="Wrong.").warning()
    assert long.count("Sample longer.") == 30  # a remedy is never cut


def test_an_estimator_in_a_pipeline_warns_at_the_users_line():
    X = torch.linspace(-1, 1, 20)[:, None].numpy()
    pipeline = make_pipeline(StandardScaler(), pb.BNNRegressor((3,), method="svi", max_iter=3, random_state=0))
    with pytest.warns(SklearnWarning, match=r"^Not converged: stopped after 3 epochs.* Raise `max_iter`") as caught:
        pipeline.fit(X, X[:, 0])
    assert [warning.filename for warning in caught] == [__file__]
    assert len(str(caught[0].message)) <= 250


def test_a_filter_ends_with_its_context_and_other_threads_wait_for_it():
    before, order = list(warnings.filters), []

    def other():
        started.set()
        with _scope.filtered_warnings("ignore"):
            order.append("other")

    started = threading.Event()
    thread = threading.Thread(target=other)
    with _scope.filtered_warnings("ignore", "bad"):
        thread.start()
        started.wait(60)
        order.append("first")
        warnings.warn("bad thing", stacklevel=1)
    thread.join()
    assert order == ["first", "other"]
    assert list(warnings.filters) == before
