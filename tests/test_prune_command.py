"""What `pyro-bnn prune` prints: tables that fit narrow terminals, and how many weights can go."""

import math
from dataclasses import replace

import pytest
import torch

from pyro_bnn.app.cli.output import fitted
from pyro_bnn.app.cli.pruned import conclusions_of, table_of
from pyro_bnn.app.reports.weights import Change, Gain, PruningGains, judged_share
from pyro_bnn.results.pruning import PruningReport, PruningRow


def report(*nlls):
    """A report on the shares 0, 50 and 90 % with these NLLs."""
    rows = [
        PruningRow(
            fraction,
            threshold=1.5 * fraction,
            num_weights=round(100_000 * (1 - fraction)),
            accuracy=None,
            nll=nll,
            rmse=38_774.2,
            nll_standard_error=0.1,
            mean_accuracy=None,
            mean_nll=17.5892,
            mean_rmse=6.572,
            mean_nll_standard_error=0.1,
        )
        for fraction, nll in zip((0.0, 0.5, 0.9), nlls, strict=True)
    ]
    return PruningReport(tuple(rows), 100_000, 301, 100)


GAINS = PruningGains((Gain(0.0, 8000, 2e-4, 1e-4), Gain(0.5, 4000, 1e-4, 1e-4)), 301, 8000)


@pytest.mark.parametrize(("nlls", "share"), [((2.0, 2.005, 3.0), 0.5), ((2.0, 1.9, 1.8), 0.9), ((2.0, 3.0, 1.8), 0.5)])
def test_the_largest_share_without_loss_is_judged(nlls, share):
    assert judged_share(report(*nlls)) == share
    assert judged_share(replace(report(*nlls), rows=report(*nlls).rows[1:])) is None  # nothing to compare with


@pytest.mark.parametrize(
    ("mean", "error", "said"),
    [
        (
            0.002,
            0.001,
            "50 % of the weights can be removed: the NLL changes by +0.0020 ± 0.0010 nats per row.",
        ),
        (-0.00001, 0.0019, "50 % of the weights can be removed: the NLL changes by +0.0000 ± 0.0019"),
        (-0.1, 0.01, "50 % of the weights can be removed: the NLL changes by -0.1000 ± 0.0100 nats per row."),
        (0.3, 0.1, "No share of the weights in the table can be removed. Without 50 % of the weights, the NLL changes"),
        (0.002, 0.02, "301 rows are too few to say how many weights can be removed. Without 50 % of the weights, the"),
        (0.3, 0.2, "301 rows are too few to say"),
        (0.002, math.nan, "301 rows are too few to say"),  # a single row has no standard error
    ],
)
def test_a_share_can_go_only_if_the_rows_suffice_to_say_so(mean, error, said):
    gains = replace(GAINS, change=Change(0.5, mean, error))
    assert conclusions_of(report(2.0, 2.0, 2.0), gains).startswith(said)
    assert not conclusions_of(report(2.0, 2.0, 2.0), GAINS)


def test_the_standard_error_is_that_of_the_difference():
    change = Change.of(0.5, torch.tensor([0.1, 0.3]))
    assert (change.mean, change.standard_error) == pytest.approx((0.2, 0.1))
    assert math.isnan(Change.of(0.5, torch.tensor([0.1])).standard_error)


@pytest.mark.parametrize(("sparse", "is_slower"), [(2e-4, True), (5e-5, False)])
def test_it_is_said_if_sparse_layers_are_slower(sparse, is_slower):
    gains = PruningGains(tuple(Gain(part, 4000, sparse, 1e-4) for part in (0.0, 0.5, 0.9)), 301, 8000)
    assert ("sparse layers make it slower" in conclusions_of(report(2.0, 2.0, 2.0), gains)) == is_slower


def test_the_table_fits_sixty_columns_and_shares_are_in_per_cent():
    sparse = (Gain(part, 4000, 2e-4, 1e-4) for part in (0.0, 0.5, 0.9))
    lines = fitted(table_of(report(2.0, 2.0, 2.0), PruningGains((*sparse,), 301, 8000)), 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum("50 %" in line for line in lines) == 1  # one line for each share
    assert any("38,774" in line for line in lines)
    assert lines[-1].endswith("0.5 x")  # sparse layers are slower here
