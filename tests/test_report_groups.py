"""The report holds the errors of groups of test rows against their predicted standard deviations."""

from dataclasses import replace

import pytest
import torch

from pyro_bnn.app.reports.page.regression import of_groups, ranking_of

from .test_report_verdicts import predicted, regressed


@pytest.mark.parametrize(
    ("factors", "short"),
    [
        ((1.0, 1.0, 1.0, 1.0), ""),
        ((0.96, 0.96, 1.04, 1.04), ""),  # clear for so many rows, but too small to matter
        ((0.6, 1.0, 1.0, 1.0), "predicted sd too large in 1 of 4 quarters of the rows"),
        ((0.6, 1.0, 1.5, 1.5), "predicted sd too large in 1 of 4 and too small in 2 of 4 quarters of the rows"),
    ],
)
def test_the_rmse_of_each_group_is_held_against_its_predicted_sd(factors, short):
    """Errors are Gaussian quantiles times the predicted sd times a factor for each quarter of the rows."""
    num = 2000
    z = torch.special.ndtri((torch.arange(num) + 0.5) / num)
    scale = torch.tensor([1.0, 2.0, 3.0, 4.0]).repeat_interleave(num)[:, None]
    y = scale * torch.tensor(factors).repeat_interleave(num)[:, None] * z.repeat(4)[:, None]
    network = predicted(torch.zeros_like(y), scale, y, num_draws=4, epistemic=1e-6)
    groups, _ = ranking_of(replace(regressed().regressed, y=y, prediction=network), seed=0)
    assert [group["ratio"] for group in groups] == pytest.approx(factors, rel=0.01)
    verdict = of_groups(groups)
    assert (verdict.short, verdict.level) == (short, "note" if short else "good")
    assert f"ratio {factors[0]:.2f}, " in verdict.text
    assert verdict.text.startswith(
        short.replace("predicted sd", "The predicted sd is") or "In each quarter of the rows"
    )


def test_few_rows_do_not_show_that_a_predicted_sd_is_wrong():
    found = regressed().regressed
    few = replace(
        found, y=found.y[:20], prediction=predicted(found.y[:20] - 0.6, torch.ones(20, 1), found.y[:20], num_draws=2)
    )
    groups, _ = ranking_of(few, seed=0)
    assert [group["ratio"] for group in groups] == pytest.approx([0.6] * 4, rel=1e-4)
    assert of_groups(groups).level == "good"
