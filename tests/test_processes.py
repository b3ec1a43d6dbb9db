"""Several processes make the steps of one fit together: average gradients, equal parameters, checkpoints."""

import functools
import json

import pyro
import pytest
import torch

import pyro_bnn as pb

from . import rank_programs
from .ranks import NUM_PROCESSES, together

PATHS = ["direct", "pyro"]
SHARES = [(0, 20), (20, 33)]


def assert_equal_in_all(results):
    first = results[0]
    for other in results[1:]:
        assert other[1] == first[1]
        assert list(first[0]) == list(other[0])
        for name, value in first[0].items():
            assert torch.equal(value, other[0][name]), name


REFUSED = {
    "shards": "all processes must run the same fit, but the data of process 1 is",
    "batch size": "a batch must have a row for each of 2 processes, got 1",
    "num_epochs": "the num_epochs of process 1 is 2, and that of process 0 is 1",
    "optimizer's settings": "the optimizer's settings of process 1 is",
    "checkpoint": "the checkpoint of process 1 is none, and that of process 0 is a file",
    "KL weight": "the KL weight of process 1 is 2.0, and that of process 0 is 1.0",
    "wrapped": "DistributedDataParallel",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results of all programs, which share two processes, since processes take seconds to start."""
    programs = [
        *(("fit", path, 4) for path in PATHS),
        *(("one_step", path, SHARES) for path in PATHS),
        ("with_checkpoint", str(tmp_path_factory.mktemp("run")), 2),
        *(("refused", what) for what in REFUSED),
        ("by_loader",),
        ("without_length", (0, 20), (20, 41)),
        ("without_length", (0, 20), (20, 40)),
        ("odd_tensors",),
        ("separate",),
        ("torchs_own",),
        ("natural_gradient",),
        ("chains",),
        ("shared_chains", str(tmp_path_factory.mktemp("shared"))),
    ]
    found = together(programs)
    return {json.dumps(program): by_rank for program, by_rank in zip(programs, found, strict=True)}


def of(results, *program):
    return next(by_rank for key, by_rank in results.items() if json.loads(key)[: len(program)] == list(program))


@pytest.mark.parametrize("path", PATHS)
def test_after_twenty_steps_all_have_the_same_parameters(results, path):
    found = of(results, "fit", path)
    assert len(found[0][1]["elbo"]) == 20  # the sixth batch of an epoch has one row, and joins the fifth
    assert_equal_in_all(found)


@pytest.mark.parametrize("path", PATHS)
def test_the_gradient_is_the_average_of_the_gradients_of_both_draws(results, path):
    alone = [rank_programs.one_step(rank, path, SHARES) for rank in range(NUM_PROCESSES)]
    sizes = torch.tensor([float(end - begin) for begin, end in SHARES])
    for values, gradients in of(results, "one_step", path):
        expected = sum(size * own[0][:2] for size, own in zip(sizes, alone, strict=True)) / sizes.sum()
        torch.testing.assert_close(values[:2], expected, rtol=1e-6, atol=0)
        assert values[3] == 33
        for name, gradient in gradients.items():
            expected = sum(size * own[1][name] for size, own in zip(sizes, alone, strict=True)) / sizes.sum()
            torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)
            assert alone[0][1][name].allclose(alone[1][1][name]) is False  # the noise is each process's own


def test_a_signal_to_one_ends_all_with_a_checkpoint_that_goes_on_to_the_bit(results):
    assert_equal_in_all([*of(results, "with_checkpoint"), *of(results, "fit", "direct")])


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_let_the_processes_differ_is_refused_in_all(results, what):
    for message in of(results, "refused", what):
        assert REFUSED[what] in message


def test_a_loader_gives_each_process_its_share(results):
    found = of(results, "by_loader")
    assert len(found[0][1]["elbo"]) == 3 * 4
    assert_equal_in_all(found)


def test_loaders_without_a_length_must_end_together(results):
    for message in of(results, "without_length", [0, 20], [20, 41]):
        assert "must give the same number of batches" in message
    for counts in of(results, "without_length", [0, 20], [20, 40]):
        assert counts == [6] * 10  # an estimate: 41 rows, of which a step takes 4 in each process


def test_tensors_of_all_types_and_layouts_travel(results):
    for number, turned, repeated, total in of(results, "odd_tensors"):
        assert number == 1
        assert torch.equal(turned, torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).t())
        assert torch.equal(repeated, torch.ones(3))
        assert torch.equal(total, torch.full((3, 2), 3.0))


def test_separate_fits_stay_separate(results):
    for rank, (learned, history) in enumerate(of(results, "separate")):
        alone = rank_programs.separate(rank)
        assert alone[1] == history
        assert all(map(torch.equal, alone[0].values(), learned.values()))


def test_pyros_elbo_works_inside_torchs_distributed_data_parallel(results):
    first, second = of(results, "torchs_own")
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_processes_make_one_chain_together_and_keep_a_draw_of_each_step(results):
    """An epoch has five steps, because the sixth batch has one row, and joins the fifth."""
    first, second = of(results, "chains")
    for name, draws in first.items():  # (K, S, *event)
        assert torch.equal(draws, second[name])
        assert len(draws.flatten(0, 1).unique(dim=0)) == 20
        assert (draws != 0).all()


def test_processes_share_the_chains_of_nuts_and_all_have_all_of_them(results, tmp_path_factory):
    folder = tmp_path_factory.getbasetemp() / "shared0"
    seen = of(results, "shared_chains")
    for name in ("first", "again", "other seed", "without a seed", "resumed"):
        tensors, message, num_warnings = seen[0][name]
        assert all(torch.equal(*pair) for pair in zip(tensors, seen[1][name][0], strict=True))
        assert message == seen[1][name][1]
        assert "; NUTS: 3 chains of 8 draws" in message
        assert [num_warnings, seen[1][name][2]] == [1, 0]  # the status is of all chains, and is told once
        weights, step_size = tensors[0], tensors[2]
        assert [value.shape[0] for value in tensors] == [3] * 4
        assert weights.shape == (3, 8, 1, 3)
        assert len(weights[:, -1].unique(dim=0)) == len(step_size.unique()) == 3  # no two chains are the same
    first, again, other, resumed = (seen[0][name][0] for name in ("first", "again", "other seed", "resumed"))
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert all(torch.equal(*pair) for pair in zip(first, resumed, strict=True))
    assert not torch.equal(first[0], other[0])
    files = sorted(path.name for path in folder.glob("chains*"))
    assert files == ["chains.0-of-2", "chains.1-of-2"]
    for rank in range(2):
        assert f"the state is in {folder}/long.{rank}-of-2." in seen[rank]["interrupted"]
        assert f"`resume='{folder}/long'`" in seen[rank]["interrupted"]
        assert "`num_chains` must be at least the number of processes, 2, got 1" in seen[rank]["too few"]
        assert "`data` must be the same in all processes" in seen[rank]["shards"]


def test_natural_gradients_average_the_hessians_of_all_draws(results):
    found = of(results, "natural_gradient")
    assert_equal_in_all(found)
    alone = [rank_programs.natural_products(rank) for rank in range(NUM_PROCESSES)]
    for *_, gradients in found:
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, (20 * alone[0][name] + 13 * alone[1][name]) / 33, rtol=1e-6, atol=1e-9)
            assert not torch.allclose(alone[0][name], alone[1][name])


# --- one process: batches in parts, and bfloat16 ----------------------------------------------------------------------


def gradients(estimator=None, is_latent=False, dtype=torch.float64, **options):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1)).to(dtype)
    likelihood = pb.GaussianLikelihood(pyro.distributions.LogNormal(0.0, 1.0) if is_latent else 0.5)
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=likelihood, num_data=41)
    guide = pb.MeanFieldGuide(model)
    frozen = functools.partial(torch.optim.SGD, lr=0.0)
    with pb.svi_step(model, guide, frozen, estimator=estimator, execution=pb.Execution(**options)) as step:
        torch.manual_seed(1)
        values = step(*(part.to(dtype) for part in rank_programs.rows())).values
        assert step.path == "direct"
        return values, {name: parameter.grad.clone() for name, parameter in guide.named_parameters()}


@pytest.mark.parametrize("is_latent", [False, True])
@pytest.mark.parametrize("num_parts", [2, 7, 100])
def test_parts_of_a_batch_add_up_to_the_whole(num_parts, is_latent):
    values, whole = gradients(is_latent=is_latent)
    of_parts, sums = gradients(is_latent=is_latent, num_parts=num_parts)
    torch.testing.assert_close(of_parts, values, rtol=1e-12, atol=0)
    for name, gradient in whole.items():
        torch.testing.assert_close(sums[name], gradient, rtol=1e-9, atol=1e-12)


def test_bfloat16_rounds_the_network_and_not_the_rest():
    values, exact = gradients(dtype=torch.float32)
    rounded_values, rounded = gradients(dtype=torch.float32, autocast=torch.bfloat16)
    assert rounded_values[1] == values[1]  # the divergence
    assert rounded_values[0] != values[0]
    torch.testing.assert_close(rounded_values[0], values[0], rtol=0.02, atol=0)
    for name, gradient in exact.items():
        assert (rounded[name] - gradient).norm() < 0.1 * gradient.norm()


def test_bfloat16_works_with_an_estimator():  # whose noise is rounded, too, and so another
    values, _ = gradients(pb.LocalReparameterization(), dtype=torch.float32)
    rounded_values, rounded = gradients(pb.LocalReparameterization(), dtype=torch.float32, autocast=torch.bfloat16)
    torch.testing.assert_close(rounded_values[0], values[0], rtol=0.1, atol=0)
    assert all(gradient.isfinite().all() for gradient in rounded.values())


def test_float16_is_refused_with_the_reason():
    with pytest.raises(
        ValueError, match=r"its range ends at 65504, too small for gradients over a whole data set; use torch\.bfloat16"
    ):
        pb.Execution(autocast=torch.float16)


def test_options_of_the_direct_path_are_refused_elsewhere():
    model, guide = rank_programs.made("pyro")
    for option in ({"num_parts": 2}, {"autocast": torch.bfloat16}):
        with pytest.raises(
            ValueError, match="needs the direct path, which is impossible because the guide is of type Auto"
        ):
            pb.fit_svi(
                model,
                rank_programs.rows(),
                guide,
                optimizer=rank_programs.ADAM,
                num_epochs=1,
                execution=pb.Execution(**option),
            )
