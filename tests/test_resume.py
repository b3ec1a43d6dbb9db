"""A fit that is interrupted after any step resumes bit for bit."""

import functools
import os
import signal

import pytest
import torch
from pyro.infer import RenyiELBO, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, MultiStepLR, ReduceLROnPlateau, SequentialLR
from torch.utils.data import DataLoader, TensorDataset

import pyro_bnn as pb
from benchmarks import kill
from pyro_bnn._core import scope as _scope

from .fits import ADAM, EndsAt, KilledError, forbid_direct

SGD = functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9)
NUM_EPOCHS, NUM_BATCHES = 4, 5


class CountsEpochs:
    """A callback with a state."""

    def __init__(self):
        self.epochs = []

    def __call__(self, history):
        self.epochs.append(history.epochs[-1].elbo)

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict):
        self.epochs = state_dict["epochs"]


def tensors(num_rows=23):
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(num_rows, 4, generator=generator)
    return x, x[:, :1] - x[:, 1:2].sin() + 0.1 * torch.randn(num_rows, 1, generator=generator)


class Jittered(TensorDataset):
    """Rows with noise from torch's generator, as in data augmentation."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.01 * torch.randn_like(x), y


def pruned(model):
    return pb.pruning.prune(pb.MeanFieldGuide(model), fraction=0.4).guide


def precise(model):
    return pb.MeanFieldGuide(model, scale_map=pb.scale_maps.Precision())


def pruned_and_precise(model):
    return pb.pruning.prune(precise(model), fraction=0.4).guide


def natural(**options):
    return pb.optim.natural_gradient(0.05, hessian_decay=0.95, **options)


def make(net=None, likelihood=None, guide=pb.MeanFieldGuide, prior=None):
    torch.manual_seed(0)
    net = net() if net else nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    likelihood = likelihood or pb.GaussianLikelihood(0.3)
    model = pb.BayesianModel(net, prior=prior or pb.NormalPrior(), likelihood=likelihood, num_data=23)
    return model, guide(model)


def with_dropout():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Tanh(), nn.Linear(6, 1))


def loader(**kwargs):
    return DataLoader(Jittered(*tensors()), batch_size=5, shuffle=True, **kwargs)


def own_generator(**kwargs):
    return loader(generator=torch.Generator().manual_seed(3), **kwargs)


def in_sequence(optimizer):
    parts = [LinearLR(optimizer, 0.1, total_iters=2), MultiStepLR(optimizer, [1, 2], gamma=0.3)]
    return SequentialLR(optimizer, parts, milestones=[2])


def cosine(num_epochs=NUM_EPOCHS):
    return pb.optim.scheduled(ADAM, functools.partial(CosineAnnealingLR, T_max=num_epochs))


CASES = {
    "plain": {},
    "pyro": {"path": "pyro"},
    "pruned": {"guide": pruned},
    "pruned-pyro": {"guide": pruned, "path": "pyro"},
    "local-reparameterisation": {"estimator": pb.LocalReparameterization()},
    "flipout-pyro": {"estimator": pb.Flipout(), "path": "pyro"},
    "cosine": {"optimizer": cosine()},
    "sequence": {"optimizer": pb.optim.scheduled(ADAM, in_sequence)},
    "rate-in-a-tensor": {"optimizer": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01))},
    "plateau": {
        "optimizer": pb.optim.scheduled(pb.optim.clipped(SGD, 5.0), functools.partial(ReduceLROnPlateau, patience=0))
    },
    "two-draws": {"elbo": Trace_ELBO(num_particles=2)},
    "dropout": {"net": with_dropout},
    "learned-noise": {"likelihood": pb.GaussianLikelihood(None)},
    "low-rank": {"guide": functools.partial(pb.LowRankGuide, rank=2)},
    "delta": {"guide": pb.DeltaGuide},
    "batch-ensemble": {"guide": pb.BatchEnsembleGuide},
    "batch-ensemble-pyro": {"guide": pb.BatchEnsembleGuide, "path": "pyro"},
    "auto-normal": {"guide": functools.partial(pb.auto_guide, AutoNormal)},
    "loader": {"data": loader},
    "loader-own-generator": {"data": own_generator},
    "loader-workers": {"data": functools.partial(loader, num_workers=2)},
    "callback": {"callbacks": CountsEpochs},
    "natural": {"guide": precise, "optimizer": natural()},
    "natural-all": {
        "guide": pruned_and_precise,
        "net": with_dropout,
        "likelihood": pb.GaussianLikelihood(None),
        "prior": pb.PriorByName({"net.0.weight": pb.ScaleMixturePrior(), "**": pb.FanInNormalPrior()}),
        "optimizer": pb.optim.scheduled(
            natural(initial_hessian=0.5, clip=0.1), functools.partial(CosineAnnealingLR, T_max=4)
        ),
        "elbo": Trace_ELBO(num_particles=2),
    },
}


def run(case, **options):
    """A fit from the start; returns everything it has learned or recorded."""
    case = dict(case)
    case.pop("path", None)
    model, guide = make(**{key: case.pop(key) for key in ("net", "likelihood", "guide", "prior") if key in case})
    callbacks = [case.pop("callbacks")()] if "callbacks" in case else options.get("callbacks", [])
    made = case.pop("data", None)
    data, batch_size = (made(), None) if made else (tensors(), 5)
    case = {"optimizer": ADAM, "batch_size": batch_size, "callbacks": callbacks, "seed": 5, **case}
    posterior = pb.fit_svi(model, data, guide, **{"num_epochs": NUM_EPOCHS, **case, **options})
    learned = {f"{name}.{key}": v for name, m in (("m", model), ("g", guide)) for key, v in m.state_dict().items()}
    history = posterior.history.to_dict()
    for record in history["epochs"]:
        del record["seconds"]
    remembered = [callback.epochs for callback in callbacks if isinstance(callback, CountsEpochs)]
    return learned, history, remembered, str(posterior.status)


def assert_identical_to(first, second):
    assert first[1:] == second[1:]
    assert list(first[0]) == list(second[0])
    for name, value in first[0].items():
        assert torch.equal(value, second[0][name]), name


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # by torch 2.4's own SequentialLR
@pytest.mark.daily(
    *("plain", "pyro", "pruned-pyro", "local-reparameterisation", "cosine", "sequence", "rate-in-a-tensor", "plateau"),
    *(
        "dropout",
        "learned-noise",
        "low-rank",
        "batch-ensemble",
        "auto-normal",
        "loader-own*",
        "callback",
        "natural-all",
    ),
)
@pytest.mark.parametrize("name", CASES)
def test_a_fit_goes_on_to_the_bit(name, tmp_path, monkeypatch):
    case = CASES[name]
    if "path" in case:
        forbid_direct(monkeypatch)
    whole = run(case, kl_weight=lambda *_: 1.0)
    path = tmp_path / "fit"
    for end in (NUM_BATCHES - 1, 2 * NUM_BATCHES):
        resume = None
        for step in (end, 2):  # the second life ends too
            with pytest.raises(KilledError):
                run(case, kl_weight=EndsAt(step), checkpoint=pb.Checkpoint(path, minutes=0), resume=resume)
            resume = path
        assert_identical_to(run(case, kl_weight=lambda *_: 1.0, resume=path), whole)
        path.unlink()


def start(path, **options):
    return run({}, checkpoint=pb.Checkpoint(path, minutes=0), **options)


def test_without_the_random_numbers_it_would_not(tmp_path, monkeypatch):
    whole, path = run({}, kl_weight=lambda *_: 1.0), tmp_path / "fit"
    with pytest.raises(KilledError):
        start(path, kl_weight=EndsAt(7))
    monkeypatch.setattr(_scope.Stream, "restore", lambda *_: None)
    assert run({}, kl_weight=lambda *_: 1.0, resume=path)[1] != whole[1]


def test_a_finished_fit_is_returned_at_once_and_can_get_more_epochs(tmp_path):
    path = tmp_path / "fit"
    done = start(path)
    assert_identical_to(run({}, resume=path), done)
    assert_identical_to(run({}, resume=path, num_epochs=NUM_EPOCHS + 2), run({}, num_epochs=NUM_EPOCHS + 2))


def test_a_stopped_fit_stays_stopped(tmp_path):
    path = tmp_path / "fit"
    stopped = start(path, callbacks=[lambda history: len(history.epochs) == 2])
    assert "stopped by a callback after 2 of 4 epochs" in stopped[3]
    assert_identical_to(run({}, resume=path, callbacks=[lambda history: True]), stopped)


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (
            {"data": lambda: (tensors()[0] + 1, tensors()[1])},
            "its data is tensors with the digest .*; resume with the argum",
        ),
        ({"optimizer": SGD}, "its optimizer is Adam of"),
        ({"optimizer": pb.optim.scheduled(ADAM, ReduceLROnPlateau)}, "its schedule is none"),
        ({"elbo": Trace_ELBO(num_particles=2)}, "its bound is Trace_ELBO with 1 draw"),
        ({"estimator": pb.Flipout()}, "its estimator is none"),
        ({"kl_weight": 0.5}, "its KL weight is 1.0, but this fit has 0.5"),
        ({"batch_size": 6}, "its number of batches is 5"),
        ({"callbacks": [CountsEpochs()]}, "its callbacks is none|callbacks"),
    ],
)
def test_a_checkpoint_of_another_fit_is_refused(other, sentence, tmp_path):
    path = tmp_path / "fit"
    start(path)
    model, guide = make()
    options = {"optimizer": ADAM, "batch_size": 5, "num_epochs": NUM_EPOCHS, **other}
    data = options.pop("data", tensors)()
    before = [value.clone() for value in guide.state_dict().values()]
    with pytest.raises(ValueError, match=sentence):
        pb.fit_svi(model, data, guide, resume=path, **options)
    assert all(map(torch.equal, before, guide.state_dict().values()))


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        ({}, {"optimizer": functools.partial(ADAM, lr=0.1)}, "its optimizer's settings is .*'lr': 0.01.*'lr': 0.1"),
        ({}, {"optimizer": pb.optim.clipped(ADAM, 0.1)}, "'clipped_to': 0.1"),
        ({"optimizer": cosine()}, {"optimizer": cosine(8)}, "its schedule's settings is .*'T_max': 4.*'T_max': 8"),
        ({"elbo": RenyiELBO(0.5, 2)}, {"elbo": RenyiELBO(0.0, 2)}, r"draw, alpha=0\.5, but .* draw, alpha=0\.0"),
        ({"kl_weight": pb.kl.linear_warmup(2)}, {"kl_weight": pb.kl.linear_warmup(3)}, "num_epochs=2.*num_epochs=3"),
        ({}, {"likelihood": pb.GaussianLikelihood(0.4)}, "its likelihood is"),
        ({}, {"prior": pb.NormalPrior(2.0)}, r"its prior is NormalPrior\(scale=1.0\), but .*scale=2.0"),
        ({}, {"net": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1))}, "its network is"),
    ],
)
def test_a_checkpoint_of_a_fit_with_other_settings_is_refused(first, second, sentence, tmp_path):
    path = tmp_path / "fit"
    run(first, num_epochs=1, checkpoint=path)
    with pytest.raises(ValueError, match=f"(?s){sentence}"):
        run({**first, **second}, resume=path)
    run(first, num_epochs=2, resume=path)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    path = tmp_path / "fit"
    start(path)
    with pytest.raises(ValueError, match="its model is BayesianModel"):
        run({"net": lambda: nn.Linear(4, 1)}, resume=path)


def test_a_checkpoint_of_another_prior_is_refused(tmp_path):
    """The priors have no parameters, so that the shapes of the two models are the same."""
    path = tmp_path / "fit"
    start(path)
    model = pb.BayesianModel(
        nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)),
        prior=pb.NormalPrior(2.0),
        likelihood=pb.GaussianLikelihood(0.3),
        num_data=23,
    )
    with pytest.raises(
        ValueError, match=r"its prior is NormalPrior\(scale=1.0\), but this fit has NormalPrior\(scale=2.0\)"
    ):
        pb.fit_svi(
            model,
            tensors(),
            pb.MeanFieldGuide(model),
            optimizer=ADAM,
            batch_size=5,
            num_epochs=NUM_EPOCHS,
            resume=path,
        )


def test_a_checkpoint_is_not_overwritten_by_a_new_fit(tmp_path):
    path = tmp_path / "fit"
    start(path)
    content = path.read_bytes()
    with pytest.raises(FileExistsError, match="resume="):
        start(path)
    assert path.read_bytes() == content


def test_a_damaged_checkpoint_is_refused(tmp_path):
    path = tmp_path / "fit"
    start(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged"):
        run({}, resume=path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        run({}, resume=tmp_path / "nothing")


@pytest.mark.nightly
def test_a_killed_process_loses_nothing(tmp_path):
    kills, same = kill.killed_and_resumed("pruned", tmp_path, seed=0, num_kills=1)
    assert kills == 1
    assert same


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_fit_with_a_checkpoint_and_says_how_to_go_on(number, tmp_path):
    path = tmp_path / "fit"

    def sends(history):
        os.kill(os.getpid(), number)

    with pytest.raises(pb.Interrupted, match=f"resume='{path}'"):
        run({}, callbacks=[sends], checkpoint=path)
    assert_identical_to(run({}, resume=path, callbacks=[lambda history: None]), run({}))
