"""A vision transformer of its real size: 86 million random weights, in single precision as people have it."""

import gc

import pytest
import torch

import pyro_bnn as pb

from .architecture_case import Case
from .architecture_nets import CLASSES, numbers
from .architectures import Architecture
from .fits import SGD


def vit_b_16():
    from torchvision.models import vit_b_16

    net = vit_b_16(image_size=32, num_classes=CLASSES)
    torch.nn.init.normal_(net.heads.head.weight, std=0.05)  # torchvision starts at zeros
    return net


@pytest.mark.nightly
@pytest.mark.parametrize("is_natural", [False, True])
def test_vit_b_16(is_natural, tmp_path):
    case = Case(Architecture(vit_b_16, lambda: numbers((3, 32, 32))), dtype=torch.float32)
    model = case.model(is_training=False)
    options = {"scale_map": pb.scale_maps.Precision()} if is_natural else {}
    guide = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-4), **options)
    optimizer = pb.optim.natural_gradient(1e-3) if is_natural else SGD
    posterior = pb.fit_svi(model, (case.x, case.y), guide, optimizer=optimizer, num_epochs=2, seed=0)
    assert posterior.history.path == "direct"
    case.assert_unchanged()
    probs = pb.predict(model, posterior, case.x, num_samples=2, seed=1).probs
    mean = posterior.median()
    with torch.no_grad():
        by_hand = case.logits(case.plain(mean, model)).softmax(-1)
    torch.testing.assert_close(pb.predict_point(model, mean, case.x).probs, by_hand, rtol=1e-4, atol=1e-5)
    pb.save_posterior(posterior, tmp_path / "posterior", model)
    del posterior, guide, model, mean
    gc.collect()
    other = case.model(vit_b_16().float(), is_training=False)
    loaded = pb.load_posterior(tmp_path / "posterior", other)
    assert torch.equal(pb.predict(other, loaded, case.x, num_samples=2, seed=1).probs, probs)
