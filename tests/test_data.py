import hashlib

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.data import MissingDataError, load_images, regression_problem
from pyro_bnn.nets import Standardize, mlp


def test_digits_need_no_files():
    digits = load_images("digits")
    assert digits.x_train.shape == (1347, 8, 8)
    assert digits.x_test.shape == (450, 8, 8)
    assert digits.x_train.dtype == torch.float32
    assert float(digits.x_train.min()) == 0.0
    assert float(digits.x_train.max()) == 1.0
    assert set(digits.y_train.tolist()) == set(range(10))


def test_missing_data_says_where_it_looked_and_how_to_get_it(tmp_path, monkeypatch):
    with pytest.raises(MissingDataError, match=rf"MNIST was not found in {tmp_path}/MNIST/raw.*--data.*--download"):
        load_images("mnist", root=tmp_path)
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(MissingDataError, match=r"elsewhere/FashionMNIST/raw"):
        load_images("fashion-mnist")
    with pytest.raises(ValueError, match="unknown data set 'cifar'; choose from"):
        load_images("cifar")


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [
        ("mnist", "6bbc9ace898e44ae57da46a324031adb", "2646ac647ad5339dbf082846283269ea"),
        ("fashion-mnist", "f4a8712d7a061bf5bd6d2ca38dc4d50a", "8181f5470baa50b63fa0f6fddb340f0a"),
    ],
)
def test_real_images_are_the_published_ones(real_data, name, train, test):
    images = load_images(name, root=real_data)
    for x, checksum, count in ((images.x_train, train, 60_000), (images.x_test, test, 10_000)):
        assert x.shape == (count, 28, 28)
        header = b"\x00\x00\x08\x03" + b"".join(int(n).to_bytes(4, "big") for n in x.shape)
        pixels = (x * 255).round().to(torch.uint8).numpy().tobytes()
        assert hashlib.md5(header + pixels).hexdigest() == checksum
    assert len(images.classes) == 10


def test_the_regression_problem_is_a_noisy_sine():
    x, y = regression_problem(num_data=5000)
    assert x.shape == y.shape == (5000, 1)
    residual = y - 10 * torch.sin(2 * torch.pi * x)
    assert float(residual.std()) == pytest.approx(2.0, rel=0.05)
    assert (float(x.min()), float(x.max())) == (-0.5, 0.5)
    assert torch.equal(regression_problem(seed=3)[1], regression_problem(seed=3)[1])
    assert not torch.equal(regression_problem(seed=3)[1], regression_problem(seed=4)[1])


def test_standardised_training_inputs_have_mean_zero_and_scale_one():
    x = 3 + 5 * torch.randn(200, 4)
    z = Standardize.of(x)(x)
    torch.testing.assert_close(z.mean(0), torch.zeros(4), atol=1e-12, rtol=0)
    torch.testing.assert_close(z.std(0), torch.ones(4))
    with pytest.raises(ValueError, match="`scale` must be above 0 everywhere"):
        Standardize.of(torch.ones(5, 2))
    assert torch.isfinite(Standardize.of(torch.ones(5, 2), floor=0.1)(torch.ones(1, 2))).all()


def test_a_model_carries_its_preprocessing():
    x = 100 + torch.randn(6, 4)
    net = mlp([4, 3], first=[Standardize.of(x)])
    model = pb.BayesianModel(net, prior=pb.NormalPrior(), likelihood=pb.CategoricalLikelihood(), num_data=6)
    assert model.site_names == ("net.1.weight", "net.1.bias")
    assert model(x).abs().max() < 50
    with pytest.raises(ValueError, match="must name inputs and outputs"):
        mlp([3])
