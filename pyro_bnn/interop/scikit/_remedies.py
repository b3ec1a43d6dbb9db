"""Statuses of fits, with advice that names parameters of the estimators."""

from dataclasses import replace

from ...auto import choosing, fitting
from ...inference import gauss_newton, guides, posterior, svi
from ...inference.posterior import Status

REMEDIES = {  # the advice of other functions, and what it means for the estimators
    fitting.REMEDY: "Raise `max_iter`, or `learning_rate` if the ELBO rises steadily.",
    svi.LONGER: "Raise `max_iter` or `learning_rate`.",
    svi.LOWER: "Lower `learning_rate`.",
    guides.IF_COLLAPSED: "Raise `max_iter`, lower `learning_rate`, or raise `kl_weight` if it is close to 0.",
    guides.IF_AT_PRIOR: (
        "Fit more rows, raise `max_iter`, or choose a narrower `prior`; check that the targets depend on the inputs."
    ),
    gauss_newton.FARTHER: "Raise `max_iter`.",
    choosing.LONGEST: (
        "Judge such chains by scores on test rows; for longer chains set `max_iter`, such as 20000, and raise "
        "`time_limit`."
    ),
    choosing.SMOOTHER: "Many steps diverged: use a tighter `prior`.",
    posterior.OTHERS: "The others are in the `status` of each of `posterior_.members`.",
}


def of_estimator(status: Status) -> Status:
    """Return a status whose advice names parameters of the estimators."""
    message, remedy = status.message, status.remedy
    for theirs, own in REMEDIES.items():
        message, remedy = message.replace(theirs, own), remedy.replace(theirs, own)
    return replace(status, message=message, remedy=remedy)
