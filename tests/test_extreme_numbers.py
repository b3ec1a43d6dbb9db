"""Numbers that a dtype cannot hold, and arguments of a wrong kind, raise errors that say so."""

import functools

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import pyro_bnn as pb
from pyro_bnn import data, scale_maps
from pyro_bnn.modelling.priors import PosteriorPrior

ADAM = functools.partial(torch.optim.Adam, lr=1e-2)


def posterior_prior(scale):
    shapes = {"net.weight": (1, 2), "net.bias": (1,)}
    locations = {name: torch.zeros(shape) for name, shape in shapes.items()}
    return PosteriorPrior(locations, {name: torch.full(shape, scale) for name, shape in shapes.items()})


PRIORS = {
    "normal": (pb.NormalPrior, "scale"),
    "network": (pb.NetworkNormalPrior, "scale"),
    "laplace": (pb.LaplacePrior, "scale"),
    "mixture-1": (lambda scale: pb.ScaleMixturePrior(0.5, scale, 0.1), "scale1"),
    "mixture-2": (lambda scale: pb.ScaleMixturePrior(0.5, 1.0, scale), "scale2"),
    "fan-in": (pb.FanInNormalPrior, "gain"),
    "learned": (pb.LearnedNormalPrior, "scale"),
    "horseshoe": (pb.HorseshoePrior, "global_scale"),
    "slab": (lambda scale: pb.HorseshoePrior(slab_scale=scale), "slab_scale"),
    "posterior": (posterior_prior, r"scales\['net.weight'\]"),
}


def make_model(prior=None, likelihood=None, dtype=torch.float32):
    torch.manual_seed(3)
    likelihood = likelihood or pb.GaussianLikelihood(0.5)
    return pb.BayesianModel(
        nn.Linear(2, 1, dtype=dtype), prior=prior or pb.NormalPrior(1.0), likelihood=likelihood, num_data=4
    )


def fit(model, guide=None, **options):
    x = torch.arange(8).reshape(4, 2).to(model.dtype) / 8
    guide = guide or pb.MeanFieldGuide(model)
    return pb.fit_svi(model, guide, (x, x[:, :1]), **{"optimizer": ADAM, "num_epochs": 2, "seed": 0, **options})


@pytest.mark.parametrize("scale", [1e50, 1e-50, 1e-30, 1e300])
@pytest.mark.parametrize("prior", PRIORS)
def test_a_prior_says_which_scales_its_dtype_can_hold(prior, scale):
    make, name = PRIORS[prior]
    with pytest.raises(ValueError, match=rf"`{name}` must lie between 5.4e-20 and 3.4e.38 in torch.float32, got"):
        make_model(make(scale))


@pytest.mark.parametrize("scale", [1e30, 1e-9])
@pytest.mark.parametrize("prior", PRIORS)
def test_wide_and_narrow_scales_that_fit_are_used(prior, scale):
    make, _ = PRIORS[prior]
    fit(make_model(make(scale)), kl_weight=1e-9)


@pytest.mark.parametrize("scale", [1e50, 1e-50])
@pytest.mark.parametrize("prior", PRIORS)
def test_double_precision_holds_more(prior, scale):
    make, _ = PRIORS[prior]
    make_model(make(scale), dtype=torch.float64)


@pytest.mark.parametrize("scale", [1e50, 1e-50])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("scale", lambda s: {"init": pb.NetworkInit(scale=s)}),
        ("scale` of `net.weight` by `prior_fraction", lambda s: {"init": pb.NetworkInit(prior_fraction=s)}),
        ("max_scale", lambda s: {"scale_map": scale_maps.Capped(s)}),
    ],
)
def test_the_first_scales_of_a_guide_fit_its_dtype(name, make, scale):
    with pytest.raises(ValueError, match=f"`{name}` must lie between"):
        pb.MeanFieldGuide(make_model(), **make(scale))


@pytest.mark.parametrize("scale", [1e50, 1e-50])
def test_a_noise_scale_that_the_dtype_cannot_hold_is_refused(scale):
    with pytest.raises(ValueError, match=r"`fixed_scale` .* is out of range in torch.float32; use a model in float64"):
        make_model(likelihood=pb.GaussianLikelihood(scale))


@pytest.mark.parametrize("mixing", [1e-50, 1e-9, 1 - 1e-12])
def test_a_mixture_of_one_component_is_refused(mixing):
    with pytest.raises(ValueError, match=r"`mixing` must lie between 1.2e-07 and 1 - 1.2e-07 in torch.float32"):
        make_model(pb.ScaleMixturePrior(mixing, 1.0, 0.1))


@pytest.mark.parametrize("weight", [1e50, 2**1030, pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize("is_function", [False, True])
def test_kl_weights_have_a_range(weight, is_function):
    with pytest.raises(ValueError, match=r"a KL weight must be at most 1e\+30"):
        fit(make_model(), kl_weight=(lambda *_: weight) if is_function else weight)


def test_a_kl_weight_may_be_a_large_whole_number():
    fit(make_model(dtype=torch.float64), kl_weight=2**70)
    with pytest.raises(
        ValueError, match=r"`kl_weight` 1.* times the prior's precision 1e.2. is too large for torch.float32"
    ):
        fit(make_model(pb.NormalPrior(1e-10)), kl_weight=1e25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": 1e50}, "`lr` is a fraction of a Newton step"),
        ({"initial_hessian": 1e50}, "`initial_hessian` 1e.50 gives"),
    ],
)
def test_natural_gradients_have_a_range(options, message):
    model = make_model()
    guide = pb.MeanFieldGuide(model, scale_map=scale_maps.Precision())
    with pytest.raises(ValueError, match=message):
        fit(model, guide, optimizer=pb.natural_gradient(**options))


@pytest.mark.parametrize("result", [0, None, "x", CosineAnnealingLR])
@pytest.mark.parametrize("make", [lambda r: pb.scheduled(ADAM, lambda _: r), lambda r: lambda p: (ADAM(p), r)])
def test_a_schedule_that_is_none_is_refused(make, result):
    with pytest.raises(
        ValueError, match="`schedule` must be a function from an optimizer to one of torch's schedulers"
    ):
        fit(make_model(), optimizer=make(result))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (functools.partial(data.regression_problem, n), "`num_data` must be a whole number")
            for n in ("x", -1, 0, None)
        ),
        (lambda: data.regression_problem(5, noise=-1.0), "`noise` must be a finite number of at least 0"),
        (lambda: data.regression_problem(5, gap="x"), r"`gap` must lie in \[0, 1\)"),
        (lambda: data.regression_problem(5, seed="x"), "`seed` must be a whole number"),
        *((functools.partial(data.load_images, name), "unknown data set") for name in ([], {}, 3, None)),
        *((functools.partial(data.load_uci, name, 0), "unknown data set") for name in ([], {}, 3, None)),
        *((functools.partial(data.load_images, "mnist", root=r), "`root` must be the path") for r in (3, [], "")),
        *((functools.partial(data.load_uci, "yacht", 0, root=r), "`root` must be the path") for r in (3, [], "")),
    ],
)
def test_data_sets_say_what_they_take(call, message):
    with pytest.raises(ValueError, match=message):
        call()
