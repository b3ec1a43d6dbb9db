"""The line on the model at the top of a report."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pyro_bnn.app.recipes import OWN
from pyro_bnn.app.reports.page.model import model_in_words
from pyro_bnn.inference.mcmc import ChainStatistics, MCMCPosterior
from pyro_bnn.inference.posterior import Status


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": ()}, "linear model, without hidden units; prior normal:1; "),
        ({"hidden": (16, 8), "activation": "silu"}, "network with 16 + 8 SiLU units; prior normal:1; "),
        ({"net": "own.py:make"}, "network own.py:make; prior normal:1; "),
    ],
)
def test_the_top_of_the_page_says_what_was_fitted(changes, words):
    config = replace(OWN, prior="normal:1", likelihood="gaussian", **changes)
    subject = SimpleNamespace(config=config, num_samples=1000, posterior=None)
    how = "mean-field posterior, fitted by variational inference; 1,000 draws of the weights."
    assert model_in_words(subject) == f"{words}likelihood gaussian; {how}"
    subject.posterior = MCMCPosterior(
        {"w": torch.zeros(2, 9)}, ChainStatistics(), Status(True, "well."), sampler="MCLMC"
    )
    how = "1,000 draws of the weights, from 2 chains (MCLMC)."
    assert model_in_words(subject) == f"{words}likelihood gaussian; {how}"
