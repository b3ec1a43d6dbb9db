"""The networks of `mnist_blundell`: what is trained, how, and how it is measured."""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pyro.infer import Trace_ELBO, TraceMeanField_ELBO
from torch import Tensor, nn

import pyro_bnn as pb
from pyro_bnn import metrics, pruning
from pyro_bnn.app import recipes, specs
from pyro_bnn.app.datasets import load_data
from pyro_bnn.data import Images, load_images
from pyro_bnn.inference.history import History

from ._images import cosine, quality

FRACTIONS = (0.0, 0.5, 0.75, 0.95, 0.98, 0.99)
"""Fractions of all weights and biases that are removed; the smallest |mean| / standard deviation goes first."""


@dataclass(frozen=True)
class Setting:
    """How one network is trained; `init`, `inputs` and `kl_weight` are as for ``pyro-bnn train``."""

    prior: str | None = None  # as for ``pyro-bnn train``; with None, maximum likelihood
    init: str = "network:0.02"
    inputs: str = "raw"
    kl_weight: str = "1"
    # whether to use the closed form of the KL, which a mixture lacks; otherwise the KL is estimated from drawn weights
    is_closed: bool = False
    # whether to use local reparameterisation; otherwise all images of a step share one draw of the weights
    is_local: bool = False
    input_dropout: float = 0.0  # probability that a pixel is dropped in training
    hidden_dropout: float = 0.0  # probability that a hidden unit is dropped in training
    # ``adam``; ``momentum``: SGD with momentum 0.9, on the mean loss of a batch; or natural gradients, as for
    # ``pyro-bnn train``
    optimizer: str = "adam"
    lr: float = 1e-3
    # ``cosine``, ``constant``, or ``warm-cosine``: an epoch at a tenth of the rate, then a cosine
    schedule: str = "cosine"
    epochs: int = 60
    batch_size: int = 128

    @property
    def is_bayesian(self) -> bool:
        return self.prior is not None


def build(setting: Setting, images: Images, units: int, seed: int) -> tuple[pb.BayesianModel, nn.Module]:
    """Two hidden layers of ReLU units; the same seed gives the same start."""
    x = images.x_train.flatten(1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            *(nn.Flatten(), *specs.make_inputs(setting.inputs, x), *_dropout(setting.input_dropout)),
            *(nn.Linear(x.shape[1], units), nn.ReLU(), *_dropout(setting.hidden_dropout)),
            *(nn.Linear(units, units), nn.ReLU(), *_dropout(setting.hidden_dropout)),
            nn.Linear(units, len(images.classes)),
        )
        for layer in net:
            if isinstance(layer, nn.Linear):  # He et al. (2015), https://arxiv.org/abs/1502.01852
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
        model = pb.BayesianModel(
            net,
            prior=specs.make_prior(setting.prior or "normal:1"),  # without effect on a point estimate
            likelihood=pb.CategoricalLikelihood(),
            num_data=len(x),
        )
        init = specs.make_init(setting.init)
        if not setting.is_bayesian:
            return model, pb.DeltaGuide(model, init=init)
        return model, pb.MeanFieldGuide(model, init=init, scale_map=specs.make_scale_map(setting.optimizer))


def train(
    setting: Setting,
    model: pb.BayesianModel,
    guide: nn.Module,
    images: Images,
    *,
    seed: int,
    report: Callable[[History], None],
    device: str = "cpu",
) -> dict[str, float]:
    """Fit in place; returns seconds, and KL and NLL of the last epoch, in nats per image."""
    num_data = len(images.x_train)
    num_weights = sum(model.initial_value(name).numel() for name in model.site_names)
    if setting.optimizer == "momentum":
        optimizer = functools.partial(torch.optim.SGD, lr=setting.lr / num_data, momentum=0.9, fused=True)
    else:
        optimizer = specs.make_optimizer(setting.optimizer, setting.lr, num_batches=-(-num_data // setting.batch_size))
    schedule = functools.partial(cosine, num_epochs=setting.epochs, is_warm=setting.schedule == "warm-cosine")
    start, cpu_start = time.perf_counter(), time.process_time()
    model.to(device)
    guide.to(device)
    posterior = pb.fit_svi(
        model,
        (images.x_train, images.y_train),
        guide,
        optimizer=optimizer if setting.schedule == "constant" else pb.optim.scheduled(optimizer, schedule),
        num_epochs=setting.epochs,
        batch_size=setting.batch_size,
        elbo=TraceMeanField_ELBO() if setting.is_closed else Trace_ELBO(),
        estimator=pb.LocalReparameterization() if setting.is_local else None,
        kl_weight=specs.make_kl_weight(setting.kl_weight, num_weights) if setting.is_bayesian else 0.0,
        callbacks=[report],
        seed=seed,
    )
    last = posterior.history.epochs[-1]
    terms = {"train_nll": -last.expected_log_likelihood / num_data}
    if setting.is_bayesian:  # the KL of a point estimate has no meaning
        terms["kl_per_image"] = last.kl / num_data
    spent = {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - cpu_start}
    return {**spent, **terms}


def evaluate(
    setting: Setting,
    model: pb.BayesianModel,
    guide: nn.Module,
    images: Images,
    unknown: Tensor,
    *,
    num_samples: int,
    seed: int,
) -> dict[str, float]:
    """Errors, calibration and detection of unknown images for one posterior; a point estimate has fewer scores."""
    x, y = images.x_test.to(model.device), images.y_test.to(model.device)
    parts = x, unknown.to(model.device)
    center, foreign = (pb.predict_point(model, pb.GuidePosterior(guide).median(), part) for part in parts)
    scores = {"mean_error": 1 - metrics.accuracy(center.probs, y)}
    known = center
    if setting.is_bayesian:
        known, foreign = (pb.predict(model, guide, part, num_samples=num_samples, seed=seed) for part in parts)
        scores["error"] = 1 - metrics.accuracy(known.probs, y)
        scores["auroc_mutual_information"] = metrics.ood_scores(known.epistemic, foreign.epistemic).auroc
    found = quality(known.probs, y)
    auroc = metrics.ood_scores(known.total, foreign.total).auroc
    return {**scores, "nll": found["nll"], "ece": found["ece"], "auroc_entropy": auroc}


def prune(
    model: pb.BayesianModel, guide: nn.Module, images: Images, *, num_samples: int, seed: int
) -> list[dict[str, float]]:
    """Errors of a pruned posterior, by the fraction of the weights that is removed."""
    x, y = images.x_test.to(model.device), images.y_test.to(model.device)
    report = pruning.snr_report(model, guide, x, y, fractions=FRACTIONS, num_samples=num_samples, seed=seed)
    return [
        {
            "fraction": row.fraction,
            "num_weights": row.num_weights,
            "mean_error": 1 - row.mean_accuracy,
            "error": 1 - row.accuracy,
            "mean_nll": row.mean_nll,
            "nll": row.nll,
        }
        for row in report.rows
    ]


def load(root: Path | None, validation: int) -> tuple[Images, Tensor]:
    """MNIST and FashionMNIST's test images; with validation, both come from the training sets."""
    images, _ = load_data(replace(recipes.RECIPES["mnist", "article"], validation=validation), root=root)
    fashion = load_images("fashion-mnist", root=root)
    return images, fashion.x_train[:validation] if validation else fashion.x_test


def _dropout(p: float) -> list[nn.Module]:
    return [nn.Dropout(p)] if p else []  # on while training, off when predicting
