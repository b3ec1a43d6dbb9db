"""A run of chains that is killed at any moment resumes bit for bit."""

import dataclasses
import os
import signal
import threading

import pytest
import torch
from pyro.poutine.runtime import _PYRO_STACK

import pyro_bnn as pb
from pyro_bnn._core.files import read_state
from pyro_bnn.inference.mcmc import Kernel, Sampler

from .cases import small_model
from .chains import hierarchy, quietly
from .test_exact import Problem


class KilledError(Exception):
    """Stands for the end of the process."""


@dataclasses.dataclass(frozen=True)
class Mortal(Sampler):
    """A sampler that wraps another and kills the run at a given draw; files have the name of the wrapped sampler."""

    sampler: Sampler
    dies_at: list = dataclasses.field(default_factory=list, repr=False)

    def adaptation(self, *arguments):
        return self.sampler.adaptation(*arguments)

    def kernel(self, value_and_grad, z, *, compile=False):
        return MortalKernel(self.sampler.kernel(value_and_grad, z, compile=compile), iter([*self.dies_at]))


class MortalKernel(Kernel):
    def __init__(self, kernel, deaths):
        super().__init__(kernel.value_and_grad, kernel.inverse_mass)
        self.step_size, self.inverse_mass = kernel.step_size, kernel.inverse_mass  # warm-up writes into these
        self.length = getattr(kernel, "length", None)
        self._kernel, self._dies_at, self._count = kernel, next(deaths, None), 0
        self.state, self.restore = kernel.state, kernel.restore

    def draw(self):
        if self._count == self._dies_at:
            raise KilledError
        self._count += 1
        return self._kernel.draw()


SAMPLERS = {"NUTS": pb.NUTS(3), "HMC": pb.HMC(3), "MCLMC": pb.MCLMC(3)}
WARMUP = 50
"""The fewest draws with which a mass matrix is learned."""


def problem_fit(sampler, problem=None, **options):
    problem = problem or Problem()
    options = {"num_samples": 6, "num_warmup": WARMUP, "num_chains": 2, "seed": 4, "compile": False, **options}
    return quietly(pb.fit_mcmc, problem.model, (problem.x, problem.y), sampler=sampler, **options)


def assert_same(one, other):
    """Two posteriors are bit for bit equal, but for the time that they took."""
    assert one.chains.keys() == other.chains.keys()
    for name, value in one.chains.items():
        assert torch.equal(value, other.chains[name])
    for field in dataclasses.fields(one.statistics):
        if field.name != "seconds":
            pair = getattr(one.statistics, field.name), getattr(other.statistics, field.name)
            assert pair == (None, None) or torch.equal(*pair)


def interrupted(fit, path, dies_at, **options):
    """The posterior of a run that is killed repeatedly, after given numbers of draws, and resumed each time."""
    checkpoint, resume = pb.Checkpoint(path, minutes=0), None
    for count in dies_at:
        with pytest.raises(KilledError):
            fit([count], checkpoint=checkpoint, resume=resume, **options)
        resume = path
    return fit([], checkpoint=checkpoint, resume=resume, **options)


DEATHS = {"NUTS": [0, 7, 45, 29, 1, 1, 3], "HMC": [0, 7, 43, 1, 3], "MCLMC": [0, 7, 43, 1, 3]}
"""Numbers of draws, those of chains that finish together counting as one, after which a process dies."""


def num_drawn(path):
    """Number of draws of each chain in a file."""
    return [chain["num_drawn"] for chain in read_state(path, "checkpoint of chains")["chains"]]


@pytest.mark.daily("NUTS", "MCLMC")
@pytest.mark.parametrize("name", SAMPLERS)
def test_resumed_chains_are_to_the_bit_those_of_an_uninterrupted_run(name, tmp_path):
    """Chains are killed before the first draw, in warm-up, when one or all chains have ended it, and while sampling."""
    sampler, seen = SAMPLERS[name], []

    def fit(deaths, resume=None, **options):
        seen.append(num_drawn(resume) if resume else [])
        return problem_fit(Mortal(sampler, deaths), resume=resume, **options)

    whole = problem_fit(Mortal(sampler))
    assert_same(whole, interrupted(fit, tmp_path / "run", DEATHS[name]))
    assert [0, 0] in seen
    assert any(0 < max(counts) < WARMUP for counts in seen[2:])
    assert any(min(counts) == WARMUP for counts in seen[2:])
    assert any(min(counts) > WARMUP for counts in seen[2:])
    assert (name != "NUTS") == all(len(set(counts)) <= 1 for counts in seen)
    assert not torch.equal(problem_fit(Mortal(sampler), seed=5).chains["net.weight"], whole.chains["net.weight"])


def test_resumed_chains_in_c_are_bit_for_bit_those_of_an_uninterrupted_run(tmp_path):
    def fit(deaths, **options):
        return problem_fit(Mortal(SAMPLERS["NUTS"], deaths), compile=True, **options)

    assert_same(fit([]), interrupted(fit, tmp_path / "run", [20, 25]))


def test_a_finished_run_that_is_resumed_says_how_it_was_computed(tmp_path):
    first = problem_fit(SAMPLERS["NUTS"], checkpoint=tmp_path / "run")
    assert problem_fit(SAMPLERS["NUTS"], resume=tmp_path / "run").path == first.path == "replayed: `compile` is False"


def test_a_plain_pyro_model_is_gone_on_with_too(tmp_path):
    x = torch.randn(5, 3)
    y = x.sum(1)

    def fit(deaths, **options):
        options = {"num_samples": 4, "num_warmup": 6, "num_chains": 2, "seed": 0, **options}
        return quietly(pb.fit_mcmc, hierarchy, (x, y), sampler=Mortal(pb.NUTS(2), deaths), **options)

    assert_same(fit([]), interrupted(fit, tmp_path / "run", [9]))


def test_other_random_numbers_and_no_seed_do_not_matter_to_a_run_that_goes_on(tmp_path):
    def fit(deaths, **options):
        return problem_fit(Mortal(SAMPLERS["NUTS"], deaths), seed=None, **options)

    torch.manual_seed(1)
    whole = fit([])
    torch.manual_seed(1)
    with pytest.raises(KilledError):
        fit([20], checkpoint=pb.Checkpoint(tmp_path / "run", minutes=0))
    torch.manual_seed(2)
    assert_same(whole, fit([], resume=tmp_path / "run"))


def test_a_finished_run_is_returned_at_once(tmp_path):
    whole = problem_fit(Mortal(SAMPLERS["NUTS"]), checkpoint=tmp_path / "run")
    content = (tmp_path / "run").read_bytes()
    again = problem_fit(Mortal(SAMPLERS["NUTS"], [0]), resume=tmp_path / "run")  # it would die at its first draw
    assert_same(whole, again)
    assert again.seconds > 0
    assert (tmp_path / "run").read_bytes() == content


def test_a_finished_run_goes_on_to_more_draws(tmp_path):
    path = tmp_path / "run"
    short = problem_fit(SAMPLERS["NUTS"], num_samples=8, checkpoint=path)
    longer = [problem_fit(SAMPLERS["NUTS"], num_samples=20, resume=path) for _ in range(2)]
    assert_same(*longer)
    weights, first = longer[0].chains["net.weight"], short.chains["net.weight"]
    assert torch.equal(weights[:, :8], first)
    assert weights.flatten(2).unique(dim=1).shape[1] > 15  # they move on
    for name in ("step_size", "inverse_mass"):
        assert torch.equal(getattr(longer[0].statistics, name), getattr(short.statistics, name))


def interrupt_at(path, count, number):
    """A run that gets a signal while it makes a draw."""

    class Signalled(MortalKernel):
        def draw(self):
            self._count += 1
            if self._count == count:
                os.kill(os.getpid(), number)
            return self._kernel.draw()

    @dataclasses.dataclass(frozen=True)
    class Signals(Mortal):
        def kernel(self, value_and_grad, z, *, compile=False):
            return Signalled(self.sampler.kernel(value_and_grad, z), iter([]))

        def __repr__(self):
            return repr(Mortal(self.sampler))

    return problem_fit(Signals(SAMPLERS["NUTS"]), checkpoint=path)


@pytest.mark.daily("2")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_its_draw_with_all_in_the_file(number, tmp_path):
    path = tmp_path / "run"
    with pytest.raises(pb.Interrupted, match=r"call again with the same arguments and `resume='.*run'`"):
        interrupt_at(path, 64, number)
    assert_same(problem_fit(Mortal(SAMPLERS["NUTS"])), problem_fit(Mortal(SAMPLERS["NUTS"]), resume=path))


def changed(**changes):
    """A run of the problem with other data, another model or other arguments."""
    problem = Problem()
    x, y = changes.pop("x", problem.x), changes.pop("y", problem.y)
    model = changes.pop("model", problem.model)
    sampler = changes.pop("sampler", pb.NUTS(3))
    options = {"num_samples": 6, "num_warmup": 5, "num_chains": 2, "seed": 4, "compile": False, **changes}
    return lambda **more: quietly(pb.fit_mcmc, model, (x, y), sampler=sampler, **options, **more)


def test_a_file_of_another_run_is_refused_by_name(tmp_path):
    path, problem = tmp_path / "run", Problem()
    x = problem.x.clone()
    x[3, 1] += 1e-9
    changed()(checkpoint=path)
    wider = pb.BayesianModel(
        torch.nn.Linear(3, 1, bias=False),
        prior=pb.NormalPrior(2.0),
        likelihood=pb.GaussianLikelihood(0.6),
        num_data=len(x),
    )
    other, _, _ = small_model(num_data=len(x), likelihood="gaussian-latent", net=torch.nn.Linear(3, 1))
    rows = [
        (changed(x=x), "is of another `data`"),
        (changed(y=problem.y + 1), "is of another `data`"),
        (changed(model=wider), "the posterior density differs"),
        (changed(model=other), "is of another `model`"),
        (changed(sampler=pb.NUTS(4)), r"has sampler='NUTS\(max_tree_depth=3\)', got 'NUTS\(max_tree_depth=4\)'"),
        (changed(sampler=pb.HMC(4)), "got 'HMC"),
        (changed(num_chains=3), "has num_chains=2, got 3; pass the arguments of that run"),
        (changed(num_warmup=6), "has num_warmup=5, got 6"),
        (changed(num_samples=5), "has num_samples=6, got 5; pass the arguments of that run"),
        (changed(target_accept=0.9), "has target_accept=0.8, got 0.9"),
        (changed(dtype=torch.float32), "has dtype='torch.float64', got 'torch.float32'"),
        (changed(compile=True), "has compile=False, got True"),
        (changed(seed=5), "has seed=4, got 5"),
    ]
    for fit, message in rows:
        with pytest.raises(ValueError, match=message):
            fit(resume=path)
    changed()(resume=path)


def test_files_that_cannot_be_gone_on_from_are_refused(tmp_path):
    path = tmp_path / "run"
    with pytest.raises(KilledError):
        problem_fit(Mortal(pb.NUTS(), [20]), checkpoint=pb.Checkpoint(path, minutes=0))
    with pytest.raises(ValueError, match="has num_samples=6, got 7; finish that run first"):
        problem_fit(Mortal(pb.NUTS()), num_samples=7, resume=path)
    with pytest.raises(ValueError, match="`resume` must be the path of a file or folder, got True"):
        problem_fit(Mortal(pb.NUTS()), resume=True)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        problem_fit(Mortal(pb.NUTS()), resume=tmp_path / "nothing")
    content = path.read_bytes()
    with pytest.raises(FileExistsError, match="to resume from it, pass `resume="):
        problem_fit(Mortal(pb.NUTS()), checkpoint=path)
    assert path.read_bytes() == content
    path.write_bytes(content[:-7])
    with pytest.raises(ValueError, match="damaged"):
        problem_fit(Mortal(pb.NUTS()), resume=path)


class Plain(Sampler):
    """A user's sampler that cannot return the state of its chains."""

    def kernel(self, value_and_grad, z, *, compile=False):
        return PlainKernel(pb.NUTS().kernel(value_and_grad, z))


class PlainKernel(Kernel):
    def __init__(self, kernel):
        super().__init__(kernel.value_and_grad, kernel.inverse_mass)
        self.step_size, self.inverse_mass, self._kernel = kernel.step_size, kernel.inverse_mass, kernel

    def draw(self):
        return self._kernel.draw()


def test_a_sampler_without_a_state_is_refused_before_its_first_draw(tmp_path):
    problem_fit(Plain(), num_warmup=5)
    with pytest.raises(ValueError, match="PlainKernel does not define both `state` and `restore`"):
        problem_fit(Plain(), checkpoint=tmp_path / "run")
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="PlainKernel does not define both"):
        PlainKernel(pb.NUTS().kernel(lambda z: (z.square().sum(-1), 2 * z), torch.zeros(1, 1))).restore({})


@pytest.mark.nightly
def test_threads_do_not_change_each_others_chains():
    """Runs of two models and of a Pyro model in parallel; torch's generators do not change."""
    problems, x = [Problem(), Problem()], torch.randn(5, 3)
    short = {"num_warmup": 20, "num_samples": 4}

    def network(index, sampler, **options):
        problem = problems[index]
        return pb.fit_mcmc(problem.model, (problem.x, problem.y), sampler=SAMPLERS[sampler], **short, **options)

    fits = [
        lambda: network(0, "NUTS", seed=0, num_chains=2),
        lambda: network(0, "HMC", seed=1, num_chains=2),
        lambda: network(1, "NUTS", seed=2, num_chains=3),
        lambda: pb.fit_nuts(hierarchy, (x, x.sum(1)), num_samples=4, num_warmup=4, max_tree_depth=2, seed=3),
    ]

    def side_by_side():
        results = [None] * len(fits)

        def run(index):
            results[index] = fits[index]()

        threads = [threading.Thread(target=run, args=(index,)) for index in range(len(fits))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    alone = quietly(lambda: [fit() for fit in fits])
    before = torch.get_rng_state()
    together = quietly(side_by_side)  # filters of warnings are for all threads at once
    assert torch.equal(torch.get_rng_state(), before)
    assert not _PYRO_STACK
    for one, other in zip(alone, together, strict=True):
        assert_same(one, other)
