"""SWAG: its moments are those of the whole path, and its posterior works as any other."""

import functools

import pytest
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn.inference.history import History

from .tolerances import STANDARD_ERRORS


def problem():
    torch.manual_seed(0)
    x = torch.randn(24, 2)
    y = x.sum(1, keepdim=True) + 0.3 * torch.randn(24, 1)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.3), num_data=24)
    return model, x, y


class Path:
    """The points of a fit, all of them."""

    def __init__(self, guide):
        self.guide, self.points = guide, []

    def __call__(self, history):
        values = self.guide.locations().values()
        self.points.append(torch.cat([value.reshape(-1).clone() for value in values]))


def fitted(*, num_epochs=12, more=(), **options):
    model, x, y = problem()
    guide = pb.DeltaGuide(model)
    swag, path = pb.SWAG(guide, **options), Path(guide)
    fit = {"optimizer": functools.partial(torch.optim.SGD, lr=1e-3), "num_epochs": num_epochs, "batch_size": 6}
    pb.fit_svi(model, (x, y), guide, **fit, callbacks=[swag, path, *more], seed=0)
    return model, x, swag, path.points


def draws_of(posterior, num_samples=5000):
    return torch.cat([draws.flatten(1) for draws in posterior.sample(num_samples, seed=0).values()], 1)


def test_the_covariance_is_that_of_the_article_computed_from_the_whole_path():
    model, _, swag, path = fitted(rank=4, start=3, every=2)
    points = torch.stack(path[3::2])
    assert len(points) == 5
    means = torch.stack([points[: k + 1].mean(0) for k in range(len(points))])
    deviations = (points - means)[-4:]
    variance = points.square().mean(0) - points.mean(0).square()
    expected = torch.diag(variance) / 2 + deviations.mT @ deviations / (2 * (4 - 1))
    guide = swag.posterior(model).guide
    scale = torch.cat([guide.scale_map(value).reshape(-1) for value in guide.log_variance.parameters()])
    covariance = scale[:, None] * (torch.eye(len(scale)) + guide.factor.mT @ guide.factor) * scale
    torch.testing.assert_close(covariance, expected, rtol=1e-7, atol=1e-16)
    torch.testing.assert_close(draws_of(swag.posterior(model)).mean(0), points.mean(0), atol=1e-3, rtol=1e-2)
    wrong = torch.diag(variance) / 2 + deviations.mT @ deviations / (2 * 4)
    assert not torch.allclose(covariance, wrong, rtol=1e-3, atol=1e-16)


def test_the_draws_have_this_covariance():
    model, _, swag, path = fitted(rank=4)
    draws = draws_of(swag.posterior(model))
    points = torch.stack(path)
    direction = (points[-1] - points[:-1].mean(0)) / points.std(0)
    guide = swag.posterior(model).guide
    scale = torch.cat([guide.scale_map(value).reshape(-1) for value in guide.log_variance.parameters()])
    scale = scale.detach()
    along = (scale * direction).norm() ** 2 + (guide.factor.detach() @ (scale * direction)).norm() ** 2
    ratio = float((draws @ direction).var() / along)
    error = (2 / len(draws)) ** 0.5
    assert abs(ratio - 1) < STANDARD_ERRORS * error
    diagonal_alone = float((draws @ direction).var() / (scale * direction).norm() ** 2)
    assert abs(diagonal_alone - 1) > STANDARD_ERRORS * error


def test_rank_zero_is_a_diagonal_covariance():
    model, _, swag, path = fitted(rank=0)
    posterior = swag.posterior(model)
    assert isinstance(posterior.guide, pb.MeanFieldGuide)
    points = torch.stack(path)
    scales = torch.cat([value.reshape(-1) for value in posterior.guide.scales().values()])
    torch.testing.assert_close(scales, points.std(0, correction=0), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("rank", [0, 3])
def test_the_posterior_is_like_any_other(rank, tmp_path):
    model, x, swag, _ = fitted(rank=rank)
    posterior = swag.posterior(model)
    assert str(posterior.status).startswith("SWAG of 12 points from epoch 1 to 12")
    assert len(posterior.history.epochs) == 12
    pb.save_posterior(posterior, tmp_path / "file", model)
    loaded = pb.load_posterior(tmp_path / "file", model)
    first, again = (pb.predict(model, p, x, num_samples=8, seed=0).mean for p in (posterior, loaded))
    assert torch.equal(first, again)


def test_a_fit_that_goes_on_collects_the_same(tmp_path):
    def stop(history):
        if len(history.epochs) == 7:
            raise KeyboardInterrupt

    _, _, whole, _ = fitted(rank=3)
    model, x, y = problem()
    guide = pb.DeltaGuide(model)
    options = {"optimizer": functools.partial(torch.optim.SGD, lr=1e-3), "num_epochs": 12, "batch_size": 6, "seed": 0}
    where = {"checkpoint": pb.Checkpoint(tmp_path / "file", minutes=0)}
    with pytest.raises(KeyboardInterrupt):
        pb.fit_svi(model, (x, y), guide, **options, **where, callbacks=[pb.SWAG(guide, rank=3.0), stop])
    swag = pb.SWAG(guide, rank=3)
    pb.fit_svi(
        model, (x, y), guide, **options, **where, resume=tmp_path / "file", callbacks=[swag, lambda history: None]
    )
    for name, value in whole.posterior(model).guide.state_dict().items():
        assert torch.equal(value, swag.posterior(model).guide.state_dict()[name])


def test_wrong_uses_are_named():
    model, *_ = problem()
    with pytest.raises(ValueError, match="`guide` must be a point estimate"):
        pb.SWAG(pb.MeanFieldGuide(model))
    with pytest.raises(ValueError, match=r"`rank` must be 0.*got 1"):
        pb.SWAG(pb.DeltaGuide(model), rank=1)
    with pytest.raises(ValueError, match="at least 20 points, got 0"):
        pb.SWAG(pb.DeltaGuide(model)).posterior(model)


@pytest.mark.parametrize("sd", [1e-3, 1e-5])
def test_a_path_much_narrower_than_its_weights_keeps_its_width_in_single_precision(sd):
    """Computed from means of squares, the width would be lost."""
    torch.manual_seed(0)
    net = nn.Linear(40, 1, bias=False)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.GaussianLikelihood(0.3), num_data=24).float()
    guide = pb.DeltaGuide(model)
    swag, points = pb.SWAG(guide, rank=0), []
    (parameter,) = guide.parameters()
    history = History()
    for _ in range(50):
        history.epochs.append(None)
        with torch.no_grad():
            parameter.copy_(1 + sd * torch.randn(parameter.shape))
        points.append(parameter.detach().double())
        swag(history)
    path = torch.stack(points).flatten(1)
    found = swag.posterior(model).guide
    scale = torch.cat([found.scale_map(value).reshape(-1) for value in found.log_variance.parameters()])
    torch.testing.assert_close(scale.double(), path.std(0, correction=0), rtol=0.02, atol=0.0)
    single = path.float()
    lost = (single.square().mean(0) - single.mean(0).square()).clamp_min(0).sqrt()  # the must-fail twin
    assert not torch.allclose(lost.double(), path.std(0, correction=0), rtol=0.02, atol=0.0)
