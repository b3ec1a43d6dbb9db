import hashlib

import numpy as np
import pytest
import torch

import pyro_bnn as pb
from pyro_bnn.data import MissingDataError, load_images, load_uci, regression_problem
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
    with pytest.raises(ValueError, match=r"unknown data set 'cifar' \(did you mean 'cifar10'\?\); choose from"):
        load_images("cifar")


@pytest.mark.daily("fashion*")
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


def write_uci(root, name, *, num_rows=12, num_inputs=2):
    """A data set in the published layout, with one split: row 3 and the last one are the test set."""
    folder = root / "uci" / name
    folder.mkdir(parents=True)
    columns = [torch.arange(num_rows) + 100.0 * column for column in range(num_inputs + 1)]
    np.savetxt(folder / "data.txt", torch.stack(columns, 1).numpy())
    test = [3, num_rows - 1]
    parts = {
        "features": range(1, num_inputs + 1),
        "target": [0],
        "train_0": [row for row in range(num_rows) if row not in test],
        "test_0": test,
    }
    for part, numbers in parts.items():
        np.savetxt(folder / f"index_{part}.txt", [*numbers], fmt="%d")


def test_a_split_has_the_rows_and_columns_that_its_files_name(tmp_path, monkeypatch):
    write_uci(tmp_path, "yacht")
    data = load_uci("yacht", 0, root=tmp_path)
    assert torch.equal(data.x_test, torch.tensor([[103.0, 203.0], [111.0, 211.0]]))
    assert torch.equal(data.y_test, torch.tensor([[3.0], [11.0]]))
    assert data.x_train.shape == (10, 2)
    assert data.y_train.flatten().tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert data.x_train.dtype == data.y_train.dtype == torch.float64
    monkeypatch.setenv("PYRO_BNN_DATA", str(tmp_path))
    assert torch.equal(load_uci("yacht", 0.0).y_test, data.y_test)


def test_a_missing_or_unknown_split_says_what_to_do(tmp_path):
    write_uci(tmp_path, "yacht")
    with pytest.raises(MissingDataError, match=rf"split 1 of yacht was not found in {tmp_path}/uci/yacht; pass"):
        load_uci("yacht", 1, root=tmp_path)
    with pytest.raises(MissingDataError, match="split 0 of energy"):
        load_uci("energy", 0, root=tmp_path)
    with pytest.raises(ValueError, match="unknown data set 'naval'; choose from"):
        load_uci("naval", 0, root=tmp_path)
    for split in (-1, 20, 0.5):
        with pytest.raises(ValueError, match="`split` must be a whole number from 0 to 19"):
            load_uci("yacht", split, root=tmp_path)


@pytest.mark.parametrize(
    ("name", "num_rows", "num_inputs"),
    [
        ("concrete", 1030, 8),
        ("energy", 768, 8),
        ("kin8nm", 8192, 8),
        ("power-plant", 9568, 4),
        ("wine-quality-red", 1599, 11),
        ("yacht", 308, 6),
    ],
)
def test_the_published_splits_hold_every_row_once(real_uci, name, num_rows, num_inputs):
    data = load_uci(name, 19, root=real_uci)
    assert data.x_train.shape[1] == data.x_test.shape[1] == num_inputs
    assert len(data.x_train) + len(data.x_test) == num_rows
    assert len(data.x_test) == pytest.approx(num_rows / 10, abs=1)
    together = torch.cat([torch.cat([data.x_train, data.y_train], 1), torch.cat([data.x_test, data.y_test], 1)])
    table = torch.tensor(np.loadtxt(real_uci / "uci" / name / "data.txt"))[:, : num_inputs + 1]
    torch.testing.assert_close(together.sum(0), table.sum(0))
