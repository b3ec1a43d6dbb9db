"""Records of posteriors in files: removed weights, users' classes, and wrong arguments."""

import pytest
import torch

import pyro_bnn as pb
from pyro_bnn import pruning
from pyro_bnn._core.files import read_state

from .posteriors import make, make_model, same, whole
from .pruned import scattered


def test_a_pinned_posterior_keeps_its_removed_weights_removed_in_the_file_too(tmp_path):
    """Its file is as large as that of the pinned posterior, since the network has no learned parameters here."""
    model, _, posterior = make("pinned-pruned")
    for name, which in (("pinned", posterior), ("pruned", posterior.inner)):
        pb.save_posterior(which, tmp_path / name, model)
    loaded = pb.load_posterior(tmp_path / "pinned", make_model("pinned-pruned", seed=1)[0])
    weights = {"net.0.weight", "net.2.weight"}
    assert loaded.pruned_sites == posterior.pruned_sites == weights
    left_out = [set(read_state(tmp_path / name, "posterior")["model"]["left_out"]) for name in ("pinned", "pruned")]
    assert left_out == [weights, weights]
    drawn = loaded.sample(4, seed=0)
    assert all(same_zeros(drawn[site], posterior.inner.guide.kept(site)) for site in weights)


def same_zeros(draws, kept):
    return all(torch.equal(draw != 0, kept) for draw in draws)


def test_weights_that_one_member_still_has_are_pruned_in_no_ensemble(tmp_path):
    model, *_ = whole()
    members = [pb.GuidePosterior(scattered(model)), pruning.prune(scattered(model), fraction=0.5)]
    ensemble = pb.EnsemblePosterior(members)
    assert members[1].pruned_sites
    assert not ensemble.pruned_sites
    pb.save_posterior(ensemble, tmp_path / "file", model)
    assert read_state(tmp_path / "file", "posterior")["model"]["left_out"] == []


# --- a posterior of one's own -----------------------------------------------------------------------------------------


class Shrunk(pb.Posterior):
    """The draws of another posterior, times a number."""

    def __init__(self, inner, factor):
        self.inner, self.factor, self.status = inner, factor, inner.status

    def draws(self, num_samples, *args):
        for draw in self.inner.draws(num_samples, *args):
            yield {name: self.factor * value for name, value in draw.items()}

    def to_record(self):
        return {"inner": self.inner.to_record(), "factor": self.factor}

    @classmethod
    def from_record(cls, values, destination):
        return cls(pb.GuidePosterior.from_record(values["inner"], destination), values["factor"])


def test_a_class_of_ones_own_is_saved_by_its_two_methods(tmp_path):
    model, *_ = whole()
    posterior = Shrunk(pb.GuidePosterior(pb.MeanFieldGuide(model)), 0.5)
    pb.save_posterior(posterior, tmp_path / "file", model)
    loaded = pb.load_posterior(tmp_path / "file", whole(seed=1)[0])
    assert type(loaded) is Shrunk
    assert same(posterior.sample(3, seed=0), loaded.sample(3, seed=0))


@pytest.mark.parametrize("path", [3, None, "", b"file"])
def test_a_path_that_is_none_is_told(path):
    model, *_ = whole()
    with pytest.raises(ValueError, match="`path` must be the path of a file"):
        pb.load_posterior(path, model)
    with pytest.raises(ValueError, match="`path` must be the path of a file"):
        pb.save_posterior(pb.DeltaGuide(model), path, model)


@pytest.mark.parametrize("guide", [0, False, "guide", 3.5, {"a": 1}])
def test_a_guide_to_load_into_that_is_none_is_told(tmp_path, guide):
    model, *_ = whole()
    pb.save_posterior(pb.DeltaGuide(model), tmp_path / "file", model)
    with pytest.raises(ValueError, match="`guide` must be a guide that is a module"):
        pb.load_posterior(tmp_path / "file", model, guide=guide)
