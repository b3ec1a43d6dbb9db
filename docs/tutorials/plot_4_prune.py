r"""Prune: which weights does the network need?
==============================================

A posterior has a standard deviation for each weight. A weight whose mean is within its own standard deviation of 0
might as well be 0, so remove it.

We train a classifier of scikit-learn's digits, look at the signal-to-noise ratios of its weights, remove nineteen of
every twenty, train the rest a little further, and end with a plain sparse network.
"""

# %%
# Train
# -----

# sphinx_gallery_thumbnail_number = 3
import matplotlib.pyplot as plt
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import data, metrics, nets, plotting, pruning

digits = data.load_images("digits")
train, test = (digits.x_train, digits.y_train), (digits.x_test, digits.y_test)
torch.manual_seed(0)
net = nets.mlp([64, 100, 10], first=[nn.Flatten()])
model = pb.BayesianModel(
    net, prior=pb.NormalPrior(1.0), likelihood=pb.CategoricalLikelihood(), num_data=len(digits.x_train)
)


posterior = pb.fit(model, train, method="svi", seed=0)
print(posterior.status)

# %%
# Signal and noise
# ----------------
# The ratio of a weight is ``|mean| / sd``, often given in decibel: 0 dB is a ratio of 1, 10 dB one of 10.

ratios = pruning.signal_to_noise(posterior)
for site, ratio in ratios.items():
    print(f"{site:15} {ratio.numel():6,d} weights, {float((ratio < 1).float().mean()):6.1%} of them below 0 dB")

figure, axes = plt.subplots(1, 2, figsize=(7.4, 2.9), layout="constrained")
plotting.signal_to_noise({site: ratio.clamp_min(1e-4) for site, ratio in ratios.items()}, axes)  # cut at -40 dB
plt.show()

# %%
# Most weights of the first layer are below 0 dB: the data did not need them, and the prior pulled them back. Where
# are they? Each of the 100 hidden units sees 8 x 8 pixels; the mean ratio of each pixel over all units shows which
# pixels matter.

first = next(iter(ratios.values()))
figure, (left, right) = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
left.imshow(digits.x_train.mean(0).numpy(), cmap="gray_r")
left.set(title="mean image", xticks=[], yticks=[])
shown = right.imshow(pruning.decibel(first.mean(0)).reshape(8, 8).numpy(), cmap="viridis", vmin=-20)
right.set(title="mean ratio of each pixel's weights, dB", xticks=[], yticks=[])
figure.colorbar(shown, ax=right)
plt.show()

# %%
# Pixels at the edge are white in all images. They carry no information, and their weights stayed at the prior.
#
# How many can go?
# ----------------
# **Trap: never choose a share blindly.** ``snr_report`` tries several, with the mean weights and with an ensemble.
# (In real work hold out validation data for it; choosing on the test set flatters the result.)

fractions = (0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
report = pruning.snr_report(model, posterior, *test, fractions=fractions, num_samples=50, seed=0)
print(report)

figure, axes = plt.subplots(1, 2, figsize=(7.4, 2.9), layout="constrained")
plotting.pruning_curve(report, axes)
plt.show()

# %%
# Nine of ten weights go at next to no cost. The NLL of the ensemble even *falls* at first: the removed weights
# contributed nothing but noise. At 98 % the network breaks.
#
# Prune, then train on
# --------------------
# ``prune`` returns a posterior like any other. Removed weights are exactly 0 in every draw, and stay 0 when the guide
# is trained further. So remove many, and let the rest adapt:


def describe(name: str, pruned: pb.GuidePosterior) -> float:
    prediction = pb.predict(model, pruned, test[0], y=test[1], num_samples=50, seed=0)
    accuracy = metrics.accuracy(prediction.probs, test[1])
    print(f"{name:28} accuracy {accuracy:.1%}, NLL {prediction.nll:.3f} nats")
    return accuracy


describe("all weights", posterior)
for fraction in (0.98, 0.95):
    pruned = pruning.prune(posterior, fraction=fraction)
    describe(f"{fraction:.0%} removed", pruned)
    small = pb.fit(model, train, guide=pruned.guide, seed=0)
    describe(f"{fraction:.0%} removed, trained on", small)
    print(f"{'':28} last ELBO {small.history.elbo[-1]:.0f} nats, of all weights {posterior.history.elbo[-1]:.0f}")

# %%
# Further training repairs much of the damage at 98 %; with a twentieth of its weights the network is about as good as
# with all of them. And the ELBO is far higher, since a removed weight costs no divergence. **Trap:** the two ELBOs are
# bounds for different models, so the difference is no evidence that the small one is "right"; it does show that the
# large one pays for weights that it does not use.
#
# A plain sparse network
# ----------------------
# For deployment, turn the mean weights of the pruned posterior into an ordinary ``nn.Module``. Layers with few weights
# left are stored sparsely.

sparse = pruning.sparse_network(model, small.median())
print(sparse)
with torch.no_grad():
    accuracy = metrics.accuracy(sparse(test[0]).softmax(-1), test[1])
print(f"accuracy of the sparse network {accuracy:.1%}")

# %%
# The mean weights give a point prediction: small and quick, without epistemic uncertainty. To keep that, keep the
# pruned posterior: ``pb.save_posterior(small, "small.posterior", model)`` writes a file that shrinks with the number
# of weights.
#
# **Trap: the prior decides what is prunable.** Where many small weights matter *together*, each has a low ratio, and
# accuracy falls early in the report. Then change the prior, or fit for longer, before blaming the method.
#
# Exercises
# ---------
# 1. Remove 99 %, and train on. How much accuracy is left with 75 weights?
# 2. Prune in steps, 75 %, 90 %, 95 %, 98 %, training on in between. Is it better than one cut?
# 3. Use ``per="layer"``. Why is it worse for the last layer?
# 4. Use ``pb.ScaleMixturePrior(mixing=0.5, scale1=1.0, scale2=0.0025)`` and compare the reports. Then fit
#    it for three times as long.
