r"""From a plain network to a Bayesian one
======================================

This tutorial turns a plain PyTorch network into one that says how certain its predictions are. A Bayesian neural
network predicts with many networks that agree with the data, and is uncertain where they disagree.

To make a network Bayesian, you choose a **prior** (which weights are plausible before the data are seen) and a
**likelihood** (how targets scatter around the network's output). Then ``fit`` draws networks from the **posterior**,
the distribution of the weights given the data. We do this for 200 noisy points of a sine. At the end, we use a
**guide**, the faster approximation for larger networks.
"""

# %%
# The problem
# -----------
# The data lie between -0.5 and 0.5, but we predict from -1 to 1. Outside the data, the network should be uncertain.

import functools

import matplotlib.pyplot as plt
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import data, nets, plotting

BLUE, VERMILION, *_ = plotting.PALETTE
NOISE = 1.0
x, y = data.regression_problem(200, noise=NOISE)
grid = torch.linspace(-1, 1, 201)[:, None]
truth = 10 * torch.sin(2 * torch.pi * grid)


def shade(ax: plt.Axes) -> None:
    """Make the background grey where there are no data."""
    ax.axvspan(-1, -0.5, color="0.93", zorder=0, label="no data")
    ax.axvspan(0.5, 1, color="0.93", zorder=0)
    ax.set_xticks([-1, -0.5, 0, 0.5, 1])


# %%
# A plain network, eight times
# ----------------------------
# We train the same network from eight random starts. ``nets.mlp`` builds an ``nn.Sequential``, but any module works.
# Its first layer, ``nets.Standardize``, gives the inputs mean 0 and scale 1, for a reason explained below.


def build_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nets.mlp([1, 20, 20, 1], first=[nets.Standardize.of(x)])


curves, errors = [], []
for seed in range(8):
    net = build_net(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(1000):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    curves.append(net(grid).detach())
    errors.append(loss.item())
print(f"mean squared errors: {min(errors):.2f} to {max(errors):.2f}")
print("at x = 1:", ", ".join(f"{curve[-1].item():.1f}" for curve in curves))

with plotting.style():
    ax = plotting.new_axes(1, 1, size=("page", 3.5))[0, 0]
    ax.plot(grid, truth, ":", color=VERMILION, label="truth")
    ax.plot(x, y, ".", color="black", markersize=4, label="data")
    for curve in curves:
        (line,) = ax.plot(grid, curve, "-", color=BLUE, alpha=0.6)
    line.set_label("eight trained networks")
    shade(ax)
    ax.set(xlabel="x", ylabel="y", xlim=(-1, 1), ylim=(-30, 30))
    ax.figure.legend(loc="outside upper left", ncols=4)
plt.show()

# %%
# *Eight trainings of the same network agree where there are data. Outside (grey), most become flat, and others
# continue in a straight line.*
#
# The networks fit the data about equally well, and nothing shows which one is right. A single network hides this.
# Bayes' rule instead keeps all networks, with probabilities that depend on the data:
#
# .. math:: p(w \mid y) \propto p(y \mid w)\, p(w).
#
# Prior and likelihood
# --------------------
# ``BayesianModel`` makes a Pyro model from a copy of the network.

model = pb.BayesianModel(
    build_net(0),
    # before we see data, most weights are probably between -1 and 1
    prior=pb.NormalPrior(0.7),
    # targets scatter around the output with this standard deviation
    likelihood=pb.GaussianLikelihood(NOISE),
    num_data=len(x),
)
print("random weights:", ", ".join(model.site_names))

# %%
# **Common mistake: num_data.** This is the number of rows in the whole data set, not in a batch
# (:doc:`/understand/glossary`).
#
# A prior over weights is also a prior over *functions*, so look at some of them before you use it. Because the model is
# a Pyro model, calling it draws weights and returns the network's output.

torch.manual_seed(1)
with plotting.style():
    ax = plotting.new_axes(1, 1, size=("page", 3.5))[0, 0]
    with torch.no_grad():
        for _ in range(30):
            (line,) = ax.plot(grid, model(grid), "-", color=BLUE, alpha=0.4)
    line.set_label("30 networks from the prior")
    ax.plot(x, y, ".", color="black", markersize=4, label="data")
    shade(ax)
    ax.set(xlabel="x", ylabel="y", xlim=(-1, 1))
    ax.figure.legend(loc="outside upper left", ncols=3)
plt.show()

# %%
# *Networks from the prior: their values are about as large as the data, but no curve has the shape of the data.*
#
# If the prior scale were 0.1, all functions would be flat lines near 0. If it were 10, they would reach thousands. 200
# points will be enough to pull these functions into the shape of the sine. Outside the data nothing pulls them, so the
# fit will continue in a straight line there.
#
# This picture is the cheapest check of a prior. Here the targets lie between -12 and 12. For standardised targets,
# start with ``FanInNormalPrior`` (:doc:`/understand/priors`).
#
# **Common mistake: scales.** The effect of a prior scale depends on the scales of the inputs and targets, so
# standardise both. Here the first layer standardises the inputs, while the targets keep their scale, for which this
# prior is wide enough.
#
# Fit
# ---

posterior = pb.fit(model, (x, y), seed=0)
print(posterior.status)

# %%
# By default, ``fit`` runs eight chains (MCLMC) for a network of this size (:doc:`/understand/which_method`): random
# steps from eight trained networks to others that explain the data about equally well. A *mode* is a region of such
# networks. The status says how the chains went. R-hat compares their predictions: it is close to 1 if they agree. The
# :ref:`third tutorial <sphx_glr_gallery_tutorials_plot_3_is_my_posterior_good.py>` checks such a fit more closely.
#
# Predictions
# -----------
# ``predict`` draws weights from the posterior, runs the network with each draw, and averages. It divides the variance
# of a new target into two parts:
#
# - **aleatoric**: the noise of the data, which more data do not reduce;
# - **epistemic**: the disagreement of the drawn networks, which more data would remove.

prediction = pb.predict(model, posterior, grid, num_samples=200, seed=0)
epistemic, aleatoric = (
    prediction.epistemic.sqrt().flatten(),
    prediction.aleatoric.sqrt().flatten(),
)
print("    x   epistemic sd   aleatoric sd")
for place in (-1.0, -0.25, 0.0, 0.25, 1.0):
    row = int((grid.flatten() - place).abs().argmin())
    print(f"{place:5.2f}   {epistemic[row]:12.2f}   {aleatoric[row]:12.2f}")

with plotting.style():
    left, right = plotting.new_axes(1, 2, size=("page", 3.5))[0]
    plotting.regression_bands(
        grid, prediction, data=(x, y), truth=truth, ax=left
    )
    for draw in posterior.draws(20):
        curve = pb.predict_point(model, draw, grid).mean
        right.plot(grid, curve, "-", color=BLUE, alpha=0.4)
    right.plot(x, y, ".", color="black", markersize=3, zorder=1.9)
    shade(right)
    shade(left)
    left.set(title="predictive bands", ylim=(-35, 30))
    right.set(title="20 of the networks behind them", xlabel="x")
    right.set(xlim=(-1, 1), ylim=(-35, 30))
    left.get_legend().remove()
    entries = left.get_legend_handles_labels()
    left.figure.legend(*entries, loc="outside upper left", ncols=6)
plt.show()

# %%
# *Left: the inner band is two standard deviations of the drawn curves, and the outer band adds the noise. Right: the
# drawn curves nearly coincide inside the data. Outside, they spread out and do not always contain the truth.*
#
# How much a band widens outside the data depends on the network and its prior. Here the curves continue as straight
# lines with different slopes, whereas those of tanh units would level off.
#
# How often does the outer band contain the truth?

outside = grid.flatten().abs() > 0.5
inside_band = ((prediction.mean - truth).abs() <= 2 * prediction.sd).flatten()
for name, rows in (("inside the data", ~outside), ("outside", outside)):
    print(
        "the band holds the truth at "
        f"{float(inside_band[rows].float().mean()):.0%} of the places {name}"
    )

# %%
# Outside the data, the band contains the truth less often than it should, because functions from this prior continue in
# a straight line, while the sine turns back. **A posterior depends on its prior.** It is less certain outside of the
# data, but its band need not contain the truth there.
#
# A guide, for larger networks
# ----------------------------
# Chains (MCLMC) take too long for a network with many more weights. For large networks,
# variational inference is faster: it looks for the closest distribution of a simple shape, the *guide*.
# ``MeanFieldGuide`` is an independent Gaussian for each weight, so it has twice as many parameters as the plain
# network. The closest guide is the one with the largest ELBO, which is the expected log-likelihood under the guide
# minus the KL divergence of the guide from the prior, in nats.
#
# With ``method="svi"``, ``fit`` uses a mean-field guide and Adam, and decides when to end:

fitted = pb.fit(model, (x, y), method="svi", seed=0)
print(fitted.status)

axes = plotting.new_axes(1, 3, size=("page", 2.5))[0]
plotting.loss_curves(fitted.history, axes)
plt.show()

# %%
# *The ELBO and its two terms. At the end, the ELBO no longer rises: the fit was long enough. The first epochs, in which
# it rose from -33 to -2.6 nats per row, are left out, because the rest would look flat beside them. The pale curves
# are the values of each epoch, and the lines their moving averages.*
#
# **Common mistake: stopping too early.** The standard deviations converge long after the means. Check these curves
# before you look at predictions.
#
# Independent Gaussians are only a rough approximation. Compare the uncertainty with that of the chains:

mean_field = pb.predict(model, fitted, grid, num_samples=200, seed=0)
for place in (0.0, 1.0):
    row = int((grid.flatten() - place).abs().argmin())
    print(
        f"epistemic sd at x = {place:.0f}: {epistemic[row]:.2f} with chains, "
        f"{float(mean_field.epistemic[row].sqrt()):.2f} with mean field"
    )

# %%
# Mean field ignores how weights depend on each other. Here it is less certain than the chains inside the data, and
# more certain outside. The third tutorial measures such differences in a gap between data.
#
# **Common mistake: the KL weight.** Many programs reduce the weight of the KL divergence, for better accuracy. In the
# extreme case, the weight is 0:

point = pb.fit_svi(
    model,
    (x, y),
    pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02)),
    optimizer=functools.partial(torch.optim.Adam, lr=0.02),
    num_epochs=400,
    kl_weight=0.0,
    seed=0,
)
pinched = pb.predict(model, point, grid, num_samples=200, seed=0)
print(
    f"epistemic sd at x = 1: {float(mean_field.epistemic[-1].sqrt()):.2f} "
    f"with KL weight 1, {float(pinched.epistemic[-1].sqrt()):.2f} "
    "with KL weight 0"
)

with plotting.style():
    axes = plotting.new_axes(1, 2, size=("page", 3.5))[0]
    for ax, name, shown in zip(
        axes,
        ("mean field", "mean field, KL weight 0"),
        (mean_field, pinched),
        strict=True,
    ):
        plotting.regression_bands(grid, shown, data=(x, y), truth=truth, ax=ax)
        shade(ax)
        ax.set(title=name, ylim=(-30, 30))
        ax.get_legend().remove()
    entries = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(*entries, loc="outside upper left", ncols=6)
plt.show()

# %%
# *With KL weight 0 (right), the inner band nearly vanishes: the network is overconfident, as a plain network is.*
#
# For large networks, a weight between 0 and 1 can be a good compromise. But then state it with your results, because
# the fit no longer approximates the posterior under the stated prior.
#
# Exercises
# ---------
# 1. Leave out ``nets.Standardize``. Which prior scale brings the bends back?
# 2. Draw functions from ``NormalPrior(0.35)`` and ``NormalPrior(1.4)``, then fit both with ``method="svi"``. Which has
#    the larger last ELBO in ``fitted.history``?
# 3. Learn the noise, with ``GaussianLikelihood(dist.LogNormal(0.0, 1.0))`` and ``import pyro.distributions as dist``.
#    Is it close to 1?
# 4. Open a gap, ``data.regression_problem(200, noise=1.0, gap=0.5)``. Are the chains less certain in the gap? Is the
#    mean-field guide?
# 5. Use tanh, ``nets.mlp([1, 20, 20, 1], activation=nn.Tanh)``. How does the band continue outside the data?
