r"""Prune: which weights does the network need?
===========================================

If you need a smaller network, a posterior shows which weights can be removed: those whose mean is smaller in
magnitude than their standard deviation. This needs a mean and a standard deviation for each weight, and a guide that
can be trained further. So the fit is variational (``method="svi"``), instead of the chains (MCLMC) that ``fit`` runs by
default.

In this tutorial you train a classifier of scikit-learn's digits, look at the signal-to-noise ratios of its weights,
remove 95 % of them, train the others further, and make a plain sparse network.
"""

# %%
# Train
# -----

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
    net,
    prior=pb.NormalPrior(1.0),
    likelihood=pb.CategoricalLikelihood(),
    num_data=len(digits.x_train),
)
posterior = pb.fit(model, train, method="svi", seed=0)
print(posterior.status)

# %%
# Signal and noise
# ----------------
# The signal-to-noise ratio of a weight is ``|mean| / sd``, often given in decibels: 0 dB is a ratio of 1, and 10 dB a
# ratio of 10.

ratios = pruning.signal_to_noise(posterior)
for site, ratio in ratios.items():
    print(
        f"{site:15} {ratio.numel():6,d} weights, "
        f"{float((ratio < 1).float().mean()):6.1%} of them below 0 dB"
    )

axes = plotting.new_axes(1, 2, size=("page", 3))[0]
# smaller ratios count as -40 dB
plotting.signal_to_noise(
    {site: ratio.clamp_min(1e-4) for site, ratio in ratios.items()}, axes
)
for ax in axes:
    ax.set_xticks(range(-40, 11, 10))
    ax.set_xlabel("signal-to-noise ratio (dB)")
plt.show()

# %%
# *Most weights have a mean that is smaller than its standard deviation, so they are left of 0 dB. The first bar holds
# all ratios of -40 dB and less.*
#
# Because the data did not need these weights, they stayed near the prior. Each of the 100 hidden units has 8 x 8 pixels
# as inputs, so the mean ratio of a pixel over all units shows how much it matters.

first = next(iter(ratios.values()))
with plotting.style():
    left, right = plotting.new_axes(1, 2, size=("page", 3))[0]
    left.imshow(digits.x_train.mean(0).numpy(), cmap="gray_r")
    left.set(title="mean image", xticks=[], yticks=[])
    shown = right.imshow(
        pruning.decibel(first.mean(0)).reshape(8, 8).numpy(),
        cmap="Blues",
        vmin=-20,
        vmax=0,
    )
    right.set(title="signal-to-noise ratio, first layer", xticks=[], yticks=[])
    for ax in (left, right):
        ax.spines[:].set_visible(True)
    right.figure.colorbar(
        shown,
        ax=right,
        label="mean over hidden units (dB)",
        ticks=range(-20, 1, 5),
    )
plt.show()

# %%
# *The weights of pixels in the middle have the largest ratios. Those of the left and right edge, where hardly anything
# is drawn, have the smallest.*
#
# Pixels at these edges are the same in nearly all images. They carry no information, so their weights stayed at the
# prior.
#
# How many weights can be removed?
# --------------------------------
# **Common mistake: a share chosen without a test.** Choose the share by its effect: ``snr_report`` tries several
# shares, with the mean weights and with a mean of draws. In real work use validation data for this, because the result
# is too optimistic with the test set.

fractions = (0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
report = pruning.snr_report(
    model, posterior, *test, fractions=fractions, num_samples=50, seed=0
)
print(report)

axes = plotting.new_axes(1, 2, size=("page", 3))[0]
plotting.pruning_curve(report, axes)
plt.show()

# %%
# *From left to right, more weights are removed. Error and NLL stay about the same until 5 % of the weights are left,
# and rise steeply after that. Bars are standard errors.*
#
# With 90 % of the weights removed, the network is nearly as good. The NLL of the mean of draws even *falls* at first,
# because the removed weights added only noise. With 98 % removed, the network is bad.
#
# Prune, then train on
# --------------------
# ``prune`` returns a posterior whose removed weights are exactly 0 in every draw. Because they stay 0 when the guide is
# trained further, you can remove many weights, and then train the others:


def describe(name: str, pruned: pb.GuidePosterior) -> float:
    prediction = pb.predict(
        model, pruned, test[0], y=test[1], num_samples=50, seed=0
    )
    accuracy = metrics.accuracy(prediction.probs, test[1])
    print(f"{name:28} accuracy {accuracy:.1%}, NLL {prediction.nll:.3f} nats")
    return accuracy


describe("all weights", posterior)
for fraction in (0.98, 0.95):
    pruned = pruning.prune(posterior, fraction=fraction)
    describe(f"{fraction:.0%} removed", pruned)
    small = pb.fit(model, train, guide=pruned.guide, seed=0)
    describe(f"{fraction:.0%} removed, trained on", small)
    print(
        f"{'':28} last ELBO {small.history.elbo[-1]:.0f} nats, "
        f"of all weights {posterior.history.elbo[-1]:.0f}"
    )

# %%
# Further training greatly improves the network that keeps 2 % of its weights, and the one that keeps 5 % is about as
# good as the whole network. The ELBO is far higher, because a removed weight adds no KL divergence.
#
# **Common mistake: comparing ELBOs.** The two ELBOs are bounds for different models, so the difference does not show
# that the small model is better. It does show that weights without use lower the ELBO of the large one.
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
# This network is small and fast, but has no epistemic uncertainty. For that, use the pruned posterior:
# ``pb.save_posterior(small, "small.posterior", model)`` writes a file that is smaller the fewer weights are left.
#
# **Common mistake: an unsuitable prior.** The prior determines how many weights can be removed. If many small weights
# matter *together*, each has a low ratio, and accuracy falls early in the report. Then change the prior, or fit for
# longer.
#
# Exercises
# ---------
# 1. Remove 99 %, and train further. How much accuracy is left with 75 weights?
# 2. Prune in steps, 75 %, 90 %, 95 %, 98 %, with training after each. Is this better than a single step?
# 3. Use ``per="layer"``. Why is it worse for the last layer?
# 4. Use ``pb.ScaleMixturePrior(mixing=0.5, scale1=1.0, scale2=0.0025)`` and compare the reports. Then fit for three
#    times as long.
