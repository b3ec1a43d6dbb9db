"""Every posterior answers the same questions; the table in the documentation says how."""

from pathlib import Path

import pytest
import torch

import pyro_bnn as pb
import pyro_bnn.inference.checkpoint  # it knows every kind
from pyro_bnn.inference.batch_norm import PinnedPosterior
from pyro_bnn.inference.posterior import Posterior

from .posteriors import batch_norm, chains, fitted, gauss_newton, laplace, whole

PAGE = Path(__file__).parent.parent / "docs" / "understand" / "posteriors.md"

MAKERS = {
    "GuidePosterior": fitted(pb.MeanFieldGuide),
    "LaplacePosterior": laplace,
    "GaussNewtonPosterior": gauss_newton("full"),
    "MCMCPosterior": lambda model, x, y: chains({name: value[None] for name, value in draws(model).items()}),
    "EnsemblePosterior": lambda model, x, y: pb.EnsemblePosterior([pb.GuidePosterior(pb.MeanFieldGuide(model))] * 2),
    "StoredPosterior": lambda model, x, y: pb.StoredPosterior.of(pb.MeanFieldGuide(model), 8, seed=0),
    "PinnedPosterior": lambda model, x, y: PinnedPosterior(model, fitted(pb.MeanFieldGuide)(model, x, y)),
    "RefreshedPosterior": lambda model, x, y: pb.RefreshedPosterior(
        model, fitted(pb.MeanFieldGuide)(model, x, y), x, batch_size=3
    ),
}


def draws(model):
    return pb.GuidePosterior(pb.MeanFieldGuide(model)).sample(8, seed=0)


def made(name):
    """A posterior of this kind, with its model and data."""
    options = {"net": batch_norm()} if name == "RefreshedPosterior" else {}
    model, x, y = whole(likelihood="gaussian-fixed", **options)
    return model, x, y, MAKERS[name](model, x, y)


def table():
    """The answers in the table of the page, ``{name: {question: answer}}``."""
    lines = PAGE.read_text().partition("\n|")[2].partition("\n\n")[0].splitlines()  # the first table
    head, _, *rows = ([cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def has_median(posterior):
    try:
        return set(posterior.shapes) <= set(posterior.median())
    except ValueError as error:
        assert "use `sample` instead" in str(error)  # noqa: PT017
        return False


def answers(posterior):
    """What a posterior answers, in the words of the table."""
    yes = {True: "yes", False: ""}
    return {
        "draws": "any number" if posterior.num_stored is None else "stored",
        "moments()": "closed form" if set(posterior.marginals()) == set(posterior.shapes) else "from draws",
        "median()": yes[has_median(posterior)],
        "log_evidence": yes[posterior.log_evidence is not None],
        "history": yes[posterior.history is not None and bool(posterior.history.epochs)],
        "diagnose()": yes[posterior.diagnose() is not None],
    }


def test_the_table_has_every_posterior():
    kinds = Posterior.__subclasses__()
    for kind in kinds:
        kinds += kind.__subclasses__()
    ours = {kind.__name__ for kind in kinds if kind.__module__.startswith("pyro_bnn.")}
    assert set(table()) == set(MAKERS) == ours - {"CarryingPosterior"}


@pytest.mark.parametrize("name", MAKERS)
def test_a_posterior_answers_as_the_table_says(name, tmp_path):
    model, x, _, posterior = made(name)
    assert type(posterior).__name__ == name
    assert answers(posterior) == table()[name]
    assert isinstance(posterior.status, pb.Status)
    assert {site: value.shape[0] for site, value in posterior.sample(4).items() if site in model.latent_names} == (
        dict.fromkeys(model.latent_names, 4)
    )
    pb.save_posterior(posterior, tmp_path / "file.pt", model)
    again = pb.load_posterior(tmp_path / "file.pt", model)
    assert answers(again) == answers(posterior)
    if has_median(posterior):
        point = pb.predict_point(model, posterior, x)
        assert torch.equal(point.mean, pb.predict_point(model, posterior.median(), x).mean)
    else:
        with pytest.raises(ValueError, match="use `sample` instead"):
            pb.predict_point(model, posterior, x)


@pytest.mark.daily("[!R]*")
@pytest.mark.parametrize("name", MAKERS)
def test_moments_are_those_of_the_draws(name):
    _, _, _, posterior = made(name)
    count = posterior.num_stored or 4000
    samples = posterior.sample(count, seed=1)
    moments = posterior.moments(num_samples=count, seed=1)
    assert set(moments.mean) == set(moments.scale) == set(posterior.shapes)
    for site, mean in moments.mean.items():
        assert mean.shape == moments.scale[site].shape == posterior.shapes[site]
        error = 5 * moments.scale[site] / count**0.5
        assert bool(((samples[site].mean(0) - mean).abs() <= error).all())
        torch.testing.assert_close(samples[site].std(0), moments.scale[site], rtol=0.08, atol=0.0)


def test_a_constrained_variable_has_moments_from_draws_beside_closed_forms():
    model, x, y = whole(likelihood="gaussian-latent")
    for posterior in (fitted(pb.MeanFieldGuide)(model, x, y), laplace(model, x, y)):
        closed, moments = posterior.marginals(), posterior.moments(num_samples=200, seed=0)
        assert set(moments.mean) == {*closed, "likelihood.scale"}
        expected = posterior.sample(200, seed=0)["likelihood.scale"].mean(0)
        assert torch.equal(moments.mean["likelihood.scale"], expected)
        assert torch.equal(moments.mean["net.0.weight"], closed["net.0.weight"][0])


def test_a_point_has_no_width():
    model, *_ = whole(likelihood="gaussian-fixed")
    moments = pb.GuidePosterior(pb.DeltaGuide(model)).moments(num_samples=3)
    assert not any(value.any() for value in moments.scale.values())
