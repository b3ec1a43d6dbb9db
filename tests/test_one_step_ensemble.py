"""Ensembles on a GPU, whose members are fitted side by side in one step, and the reasons to fit one after the other."""

import functools

import pyro.distributions as dist
import pytest
import torch
from pyro.infer import Trace_ELBO
from torch import nn

import pyro_bnn as pb
from pyro_bnn._core.processes import Processes
from pyro_bnn.auto.fitting import _ensemble, _one_step, _variational
from pyro_bnn.inference.svi import _graph

from .accelerator import DEVICE, Accelerator
from .fits import FUSED
from .recorder import record_steps
from .test_stacked_ensemble import NUM_DATA, SGD, problem

pytestmark = pytest.mark.filterwarnings("ignore::pyro_bnn.ConvergenceWarning")  # short fits


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Ensembles on a CPU are fitted as on a GPU."""
    monkeypatch.setattr(_ensemble, "reads_wait", lambda device: True)
    monkeypatch.setattr(_one_step.grouped, "can_be_grouped", lambda net, random: False)


def fitted(model, data, **options):
    options = {"num_members": 3, "num_epochs": 4, "seed": 1, "optimizer": FUSED, **options}
    return pb.fit(model, data, method="ensemble", **options)


def weights(posterior):
    return [next(iter(member.draws(1))) for member in posterior.members]


def assert_close(first, second):
    torch.testing.assert_close(weights(first), weights(second), rtol=1e-9, atol=1e-12)


def in_one_step(posterior):
    return "Fitted with 2 other members in one step: " in str(posterior.status)


@pytest.mark.daily("*-mlp", "{}-lenet")
@pytest.mark.parametrize("network", ["mlp", "lenet"])
@pytest.mark.parametrize("options", [{}, {"optimizer": SGD}, {"kl_weight": 0.5}, {"num_epochs": 60}], ids=str)
def test_members_in_one_step_are_those_that_are_fitted_one_after_the_other(as_on_a_gpu, monkeypatch, network, options):
    model, data = problem(network)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    together = fitted(model, data, **options)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    monkeypatch.undo()
    apart = fitted(model, data, num_workers=1, **options)
    assert in_one_step(together)
    assert not in_one_step(apart)
    assert_close(together, apart)
    elbos = torch.tensor([member.history.elbo for member in apart.members])
    for member in together.members:
        torch.testing.assert_close(torch.tensor(member.history.elbo), elbos.mean(0), rtol=1e-9, atol=1e-9)
        assert member.history.loss == pytest.approx(
            [weight * kl - likelihood for weight, kl, likelihood in zip(*steps(member.history), strict=True)]
        )


def steps(history):
    return history.kl_weight, history.kl, history.expected_log_likelihood


def test_all_members_have_the_batches_of_the_first(as_on_a_gpu, monkeypatch):
    model, data = problem()
    together = fitted(model, data, batch_size=6)
    monkeypatch.undo()
    apart = fitted(model, data, batch_size=6, num_workers=1)
    torch.testing.assert_close(weights(together)[0], weights(apart)[0], rtol=1e-9, atol=1e-12)
    assert (weights(together)[1]["net.0.weight"] - weights(apart)[1]["net.0.weight"]).abs().max() > 1e-6


def test_the_status_says_how_members_ended_and_times_add_up(as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(_variational, "WINDOW_STEPS", 100)
    model, data = problem()
    posterior = fitted(model, data, num_epochs=3000, optimizer=None)
    assert posterior.status
    beginning = "converged: the ELBO rose by less than"
    end = "in one step: here the ELBO is the sum over members, and in their histories the mean."
    assert str(posterior.status).startswith(f"All 3 members ended well; the first: {beginning}")
    assert str(posterior.status).endswith(f"{end} Fitted in {posterior.seconds:.3g} s in this process.")
    assert str(posterior.members[2].status).startswith(beginning)
    assert str(posterior.members[2].status).endswith(f"Fitted with 2 other members {end}")
    assert 0 < sum(member.seconds for member in posterior.members) < posterior.seconds
    short = fitted(model, data)
    assert not short.status
    assert "not converged: stopped after 4 epochs" in str(short.status)
    assert str(short.status).endswith("pass an `optimizer` with a higher learning rate.")


def test_members_predict_and_are_saved(as_on_a_gpu, tmp_path):
    model, (x, y) = problem()
    posterior = fitted(model, (x, y), guide=pb.DeltaGuide)
    assert in_one_step(posterior)
    outputs = torch.stack([model.output_given(draw, x) for draw in weights(posterior)])
    prediction = pb.predict(model, posterior, x)
    torch.testing.assert_close(prediction.mean, outputs.mean(0))
    torch.testing.assert_close(prediction.epistemic, outputs.var(0))
    pb.save_posterior(posterior, tmp_path / "file", model)
    loaded = pb.load_posterior(tmp_path / "file", problem()[0])
    assert loaded.status == posterior.status
    assert loaded.members[1].history == posterior.members[1].history
    torch.testing.assert_close(weights(loaded), weights(posterior), rtol=0, atol=0)


@pytest.mark.parametrize("execution", [pb.Execution(num_parts=3), pb.Execution(autocast=torch.bfloat16)], ids=str)
def test_options_of_the_execution_apply_to_all_members(as_on_a_gpu, monkeypatch, execution):
    """In bfloat16 numbers have eight bits, so products that are grouped otherwise are rounded otherwise."""
    model, data = problem("lenet")
    together = fitted(model, data, execution=execution)
    monkeypatch.undo()
    apart = fitted(model, data, execution=execution, num_workers=1)
    assert in_one_step(together)
    tolerance = 1e-9 if execution.autocast is None else 2e-2
    torch.testing.assert_close(weights(together), weights(apart), rtol=tolerance, atol=tolerance)


# --- recorded steps, and an imitated device ---------------------------------------------------------------------------


class Own(nn.Tanh):
    """A module whose Python code a replay would leave out."""


def own():
    return nn.Sequential(nn.Linear(4, 3), Own(), nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("network", "likelihood", "is_recorded"),
    [("mlp", None, True), ("lenet", None, True), (own, None, False), ("mlp", "own", False)],
)
def test_a_step_of_all_members_is_recorded_if_no_code_of_the_user_is_left_out(
    as_on_a_gpu, monkeypatch, network, likelihood, is_recorded
):
    class Mine(pb.GaussianLikelihood):
        """A likelihood of the user."""

    likelihood = None if likelihood is None else Mine(0.5)
    model, data = problem(network, likelihood=likelihood)
    options = {"batch_size": 6, "num_epochs": 8}
    ordinary = fitted(model, data, **options)
    recorded = record_steps(monkeypatch)
    replayed = fitted(model, data, **options)
    assert in_one_step(replayed)
    assert len(recorded) == (2 if is_recorded else 0)  # one for each batch size
    torch.testing.assert_close(weights(replayed), weights(ordinary), rtol=0, atol=0)


@pytest.mark.daily("lenet")
@pytest.mark.parametrize("network", ["mlp", "lenet"])
def test_on_a_device_members_wait_once_an_epoch_and_have_the_numbers_of_the_cpu(as_on_a_gpu, network):
    model, data = problem(network)
    expected = fitted(model, data, batch_size=6)
    counts = []
    for num_epochs in (2, 4):
        with Accelerator() as accelerator:
            try:
                torch.optim.Adam([torch.zeros(1, device=DEVICE)], fused=True)
            except RuntimeError as error:
                assert torch.__version__.startswith("2.4.")  # later versions have them
                pytest.skip(f"this torch has no fused steps on the device of the test: {error}")
            model, data = problem(network)
            accelerator.reset()
            found = fitted(model.to(DEVICE), data, batch_size=6, num_epochs=num_epochs)
            assert in_one_step(found)
            counts.append((accelerator.num_reads, accelerator.num_transfers))
            found = [{name: value.cpu() for name, value in draw.items()} for draw in weights(found)]
    torch.testing.assert_close(found, weights(expected), rtol=1e-9, atol=1e-12)
    assert [later - earlier for earlier, later in zip(*counts, strict=True)] == [2, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("network", ["mlp", "lenet"])
def test_on_a_gpu_members_are_fitted_in_one_recorded_step(monkeypatch, network):
    model, data = problem(network)
    recorded, record = [], _graph.record
    monkeypatch.setattr(_graph, "record", lambda *arguments: (recorded.append(1), record(*arguments))[1])
    posterior = fitted(model.cuda(), data, batch_size=6, num_epochs=8, optimizer=None)
    assert in_one_step(posterior)
    assert len(recorded) == 2  # one for each batch size
    ordinary = fitted(model, data, batch_size=6, num_epochs=8, optimizer=None, execution=pb.Execution())
    rounding = {"rtol": 1e-5, "atol": 1e-6}  # sums in another order
    torch.testing.assert_close(weights(posterior), weights(ordinary), **rounding)
    monkeypatch.setattr(_ensemble, "reads_wait", lambda device: False)
    first = weights(fitted(model, data, batch_size=6, num_epochs=8, optimizer=None))[0]
    torch.testing.assert_close(weights(posterior)[0], first, **rounding)
    x = data[0].cuda()
    assert pb.predict(model, posterior, x).mean.shape == (NUM_DATA, 2)


# --- reasons to fit members one after the other -----------------------------------------------------------------------


def dropout():
    return nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))


def normalised():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))


class Branching(nn.Linear):
    """Asks for the value of its weight, which `vmap` cannot answer for several members."""

    def forward(self, x):
        return super().forward(x) if bool(self.weight.sum() > 0) else -super().forward(x)


class Single(nn.Linear):
    """Computes in single precision only."""

    def forward(self, x):
        assert self.weight.dtype == torch.float32
        return super().forward(x)


class Masked(nn.Linear):
    """Has a mask, which new weights come with."""

    def __init__(self):
        super().__init__(4, 2)
        self.register_buffer("mask", torch.ones(2, 4))

    def reset_parameters(self):
        super().reset_parameters()
        if hasattr(self, "mask"):
            self.mask.copy_(torch.rand(2, 4).round())

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.mask, self.bias)


class Words(nn.Sequential):
    """Reads whole numbers, of which 0 is padding."""

    def __init__(self):
        super().__init__(nn.Embedding(5, 2, padding_idx=0), nn.Flatten(), nn.Linear(8, 2))

    def forward(self, x):
        return super().forward((x.abs() * 2).long().clamp(max=4))


def hooked():
    net = nn.Sequential(nn.Linear(4, 2))
    net[0].register_forward_hook(lambda *_: None)
    return net


class Hooked(torch.optim.SGD):
    """An optimizer of the user."""


def with_a_hook(parameters):
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


def decaying_matrices(parameters):
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    others = [parameter for parameter in parameters if parameter.dim() < 2]
    return torch.optim.SGD([{"params": matrices, "weight_decay": 0.1}, {"params": others}], lr=1e-3)


VMAP = "`torch.func.vmap` cannot run the network, or gives other numbers"
OPTIONS = {
    "`guide` is given": {"guide": functools.partial(pb.DeltaGuide, jacobian=True)},
    "`elbo` is given": {"elbo": Trace_ELBO()},
    "`validation` is given": {"validation": (torch.zeros(3, 4), torch.zeros(3, 2))},
    "the optimizer clips gradients, or has other hooks": {"optimizer": pb.optim.clipped(SGD, 1.0)},
    "the optimizer clips gradients": {"optimizer": with_a_hook},
    "an update by Hooked may depend on all numbers of a parameter": {"optimizer": functools.partial(Hooked, lr=1e-3)},
    "the optimizer has other groups of parameters": {"optimizer": decaying_matrices},
}
PROBLEMS = {
    VMAP: {"network": dropout},
    VMAP[:-1]: {"network": functools.partial(Branching, 4, 2)},
    "each batch changes buffers of the network": {"network": normalised},
    "new networks differ in more than their weights": {"network": Masked},
    "an embedding has a padding row": {"network": Words},
    "the network has hooks": {"network": hooked},
    "the prior depends on the initial weights": {"prior": pb.NetworkNormalPrior(0.3)},
    "the model has latent variables besides the weights": {"prior": pb.HierarchicalNormalPrior()},
    "the model has latent variables": {"likelihood": pb.GaussianLikelihood(dist.LogNormal(0.0, 1.0))},
    "the model learns parameters that have no prior": {"likelihood": pb.GaussianLikelihood(None)},
}


def assert_one_after_the_other(monkeypatch, make, reason, **options):
    """The members are those of a fit in which nobody asks for one step, and the status says why."""
    found = fitted(*make(), **options)
    assert f"in this process one after the other, since {reason}" in str(found.status)
    monkeypatch.undo()
    expected = fitted(*make(), num_workers=1, **options)
    torch.testing.assert_close(weights(found), weights(expected), rtol=0, atol=0)


@pytest.mark.parametrize("reason", OPTIONS)
def test_options_that_need_a_fit_for_each_member(as_on_a_gpu, monkeypatch, reason):
    assert_one_after_the_other(monkeypatch, problem, reason, **OPTIONS[reason])


@pytest.mark.parametrize("reason", PROBLEMS)
def test_models_that_need_a_fit_for_each_member(as_on_a_gpu, monkeypatch, reason):
    assert_one_after_the_other(monkeypatch, functools.partial(problem, **PROBLEMS[reason]), reason)


def test_a_loader_needs_a_fit_for_each_member(as_on_a_gpu, monkeypatch):
    def make():
        model, data = problem()
        return model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data), batch_size=10)

    assert_one_after_the_other(monkeypatch, make, "the data are a loader")


def test_a_model_with_code_of_its_own_needs_a_fit_for_each_member(as_on_a_gpu, monkeypatch):
    class Mine(pb.BayesianModel):
        def observation(self, x):
            return super().observation(x)

    def make():
        _, data = problem()
        torch.manual_seed(0)
        options = {"prior": pb.NormalPrior(), "likelihood": pb.GaussianLikelihood(0.5), "num_data": NUM_DATA}
        return Mine(nn.Linear(4, 2), **options), data

    assert_one_after_the_other(monkeypatch, make, "the model, of type Mine, overrides observation")


def test_a_network_that_cannot_be_tried_out_in_double_precision(as_on_a_gpu, monkeypatch):
    def make():
        model, data = problem(functools.partial(Single, 4, 2, dtype=torch.float32))
        return model, tuple(part.float() for part in data)

    assert_one_after_the_other(monkeypatch, make, "the network could not be tried out (AssertionError)")


def test_a_checkpoint_needs_a_fit_for_each_member(as_on_a_gpu, tmp_path):
    model, data = problem()
    posterior = fitted(model, data, checkpoint=tmp_path / "state")
    assert "one after the other, since `checkpoint` is given" in str(posterior.status)
    assert len([*tmp_path.iterdir()]) == 3


def test_if_memory_is_too_short_members_are_fitted_one_after_the_other(as_on_a_gpu, monkeypatch):
    def no_memory(*_, **__):
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(_one_step, "fit_variational", no_memory)
    assert_one_after_the_other(monkeypatch, problem, "the GPU has too little memory for all members at once")


def test_processes_that_share_fits_make_a_fit_for_each_member(monkeypatch):
    monkeypatch.setattr(Processes, "present", lambda: Processes(0, 2))
    model, data = problem()
    arguments = {"progress": None, "seed": 0, "options": {}}
    reason = _one_step.fit_in_one_step(model, data, None, 3, **arguments)
    assert reason == "this process shares its fits with others by `torch.distributed`"


def test_a_single_member_is_an_ordinary_fit(as_on_a_gpu):
    posterior = fitted(*problem(), num_members=1)
    assert " in this process." in str(posterior.status)


def test_wrong_targets_are_refused_as_in_a_fit(as_on_a_gpu):
    model, (x, y) = problem()
    with pytest.raises(ValueError, match=r"GaussianLikelihood expects `y` of shape \(20, 2\), got \(20, 3\)"):
        fitted(model, (x, torch.zeros(NUM_DATA, 3)))
    with pytest.raises(ValueError, match="`optimizer` must make a torch optimizer"):
        fitted(model, (x, y), optimizer=3)
