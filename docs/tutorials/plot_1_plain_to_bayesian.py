r"""From a plain network to a Bayesian one
======================================

If you can train a network in PyTorch, this tutorial shows you how to make it say how certain its predictions are. A
Bayesian neural network predicts with many networks that agree with the data, and is uncertain where they disagree.

To make a network Bayesian, you choose a **prior** (which weights are plausible before the data are seen), a
**likelihood** (how targets scatter around the network's output) and a **guide** (the family of distributions that may
approximate the posterior). We choose them one by one, for 200 noisy points of a sine.
"""

# %%
# The problem
# -----------
# The data lie between -0.5 and 0.5, but we predict from -1 to 1. Outside of the data, the network should be uncertain.

import functools

import matplotlib.pyplot as plt
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import data, nets, plotting

NOISE = 1.0
x, y = data.regression_problem(200, noise=NOISE)
grid = torch.linspace(-1, 1, 201)[:, None]
truth = 10 * torch.sin(2 * torch.pi * grid)

# %%
# A plain network, three times
# ----------------------------
# We train the same network from three random starts. ``nets.mlp`` builds an ``nn.Sequential``, but any module works.
# Its first layer, ``nets.Standardize``, gives the inputs mean 0 and scale 1, for a reason explained below.


def build_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nets.mlp([1, 50, 50, 1], first=[nets.Standardize.of(x)])


plain = []
for seed in range(3):
    net = build_net(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    plain.append(net(grid).detach())
    print(
        f"start {seed}: mean squared error {loss:.2f}, "
        f"prediction at x = 1: {plain[-1][-1].item():6.1f}"
    )

with plotting.style():
    ax = plotting.new_axes(1, 1, size=(6.2, 3.1))[0, 0]
    ax.plot(grid, truth, "-.", color="0.4", label="truth")
    ax.plot(x, y, "x", color="0.6", markersize=4, label="data")
    for seed, curve in enumerate(plain):
        ax.plot(grid, curve, label=f"start {seed}")
    ax.set(xlabel="x", ylabel="y", xlim=(-1, 1), ylim=(-25, 25))
    ax.figure.legend(loc="outside upper center", ncols=5)
plt.show()

# %%
# All three networks fit the data equally well, but outside of the data they disagree, and nothing shows which one is
# right. A single network hides this. Bayes' rule instead keeps all networks, with probabilities that depend on the
# data:
#
# .. math:: p(w \mid y) \propto p(y \mid w)\, p(w).
#
# Decisions one and two: prior and likelihood
# -------------------------------------------
# ``BayesianModel`` makes a Pyro model from a copy of the network.

model = pb.BayesianModel(
    build_net(0),
    # before we see data, every weight is probably between -1 and 1
    prior=pb.NormalPrior(0.5),
    # targets scatter around the output with this standard deviation
    likelihood=pb.GaussianLikelihood(NOISE),
    num_data=len(x),
)
print("random weights:", ", ".join(model.site_names))

# %%
# **Trap: num_data.** This is the number of rows in the whole data set, not in a batch. It balances the data against the
# prior, so if it is too small, the prior has too much influence. ``fit`` refuses a wrong number if you pass all data at
# once, but in your own loop, with your own loader, nothing checks it.
#
# A prior over weights is also a prior over *functions*, so look at some of them before you use it. Because the model is
# a Pyro model, calling it draws weights and returns the network's output.

torch.manual_seed(1)
with plotting.style():
    ax = plotting.new_axes(1, 1, size=(6.2, 3.1))[0, 0]
    with torch.no_grad():
        for _ in range(30):
            (line,) = ax.plot(grid, model(grid), "-", color="C0", alpha=0.4)
    line.set_label("30 networks from the prior")
    ax.plot(x, y, "x", color="0.4", markersize=4, label="data")
    ax.set(xlabel="x", ylabel="y", xlim=(-1, 1))
    ax.figure.legend(loc="outside upper center", ncols=2)
plt.show()

# %%
# The functions have about the size of the data. With a prior scale of 0.1 they would all be flat lines near 0, and with
# 10 they would reach thousands. None of them looks like the sine, but 200 points will be enough to pull them into its
# shape. Outside of the data nothing pulls them, so the fit will continue in a straight line there.
#
# This picture is the cheapest check of a prior. Here the targets lie between -12 and 12. For standardised targets,
# start with ``FanInNormalPrior`` (:doc:`/understand/priors`).
#
# **Trap: scales.** The effect of a prior scale depends on the scales of the inputs and targets, so standardise both.
# Here the first layer standardises the inputs, while the targets keep their scale, for which this prior is wide enough.
#
# Decision three: the guide
# -------------------------
# The posterior of 2701 weights has no formula, so variational inference looks for the closest distribution of a simple
# shape, the *guide*. ``MeanFieldGuide`` is an independent Gaussian for each weight. With a mean and a standard
# deviation each, it has twice as many parameters as the plain network. The closest guide is the one with the largest
# ELBO, which is the expected log-likelihood under the guide minus the divergence of the guide from the prior, in nats.
#
# Independent Gaussians are cheap, but only a rough approximation. By default, ``fit`` draws Markov chains for a network
# of this size. These are often more accurate, but have no guide. With ``method="svi"``, ``fit`` uses a mean-field guide
# and Adam, and decides when to end. The status reports these choices.

posterior = pb.fit(model, (x, y), method="svi", seed=0)
print(posterior.status)

# %%
# **Trap: stopping too early.** The standard deviations converge long after the means. Before you look at predictions,
# check in these curves that the ELBO no longer rises.

axes = plotting.new_axes(1, 3, size=(6.2, 2.2))[0]
plotting.loss_curves(posterior.history, axes)
plt.show()

# %%
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
    left, right = plotting.new_axes(1, 2, size=(6.2, 3.1))[0]
    plotting.regression_bands(
        grid, prediction, data=(x, y), truth=truth, ax=left
    )
    for draw in posterior.draws(20):
        curve = pb.predict_point(model, draw, grid).mean
        right.plot(grid, curve, "-", color="C0", alpha=0.4)
    right.plot(x, y, ".", color="black", markersize=3, zorder=1.9)
    left.set(title="predictive bands", ylim=(-20, 20))
    right.set(title="20 of the networks behind them", xlabel="x")
    right.set(xlim=(-1, 1), ylim=(-20, 20))
    left.get_legend().remove()
    left.figure.legend(loc="outside upper center", ncols=5)
plt.show()

# %%
# The inner band shows two standard deviations of the drawn curves, and the outer band adds the noise. Inside the data
# the curves nearly coincide, so most of the outer band is noise. Outside they diverge, and the inner band widens.
#
# How much a mean-field band widens depends on the network and its prior. Here the curves continue as straight lines
# with different slopes, whereas those of tanh units would level off. In a gap between two groups of data, the band may
# hardly widen, although that of the exact posterior does. The :ref:`third tutorial
# <sphx_glr_gallery_tutorials_plot_3_is_my_posterior_good.py>` measures this.
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
# **Trap: the KL weight.** Many programs reduce the weight of the divergence, for better accuracy. In the extreme case,
# the weight is 0:

point = pb.fit_svi(
    model,
    pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02)),
    (x, y),
    optimizer=functools.partial(torch.optim.Adam, lr=0.02),
    num_epochs=400,
    kl_weight=0.0,
    seed=0,
)
pinched = pb.predict(model, point, grid, num_samples=200, seed=0)
at_one = float(pinched.epistemic[-1].sqrt())
print(
    f"epistemic sd at x = 1: {epistemic[-1]:.2f} with KL weight 1, "
    f"{at_one:.2f} with KL weight 0"
)

with plotting.style():
    ax = plotting.new_axes(1, 1, size=(6.2, 3.1))[0, 0]
    plotting.regression_bands(grid, pinched, data=(x, y), ax=ax)
    ax.set(title="KL weight 0: back to a plain network", ylim=(-20, 20))
    ax.get_legend().remove()
    ax.figure.legend(loc="outside upper center", ncols=4)
plt.show()

# %%
# With weight 0 the standard deviations shrink, and the network is overconfident again. For large networks, a weight
# between 0 and 1 can be a good compromise. But then state it with your results, because the fit no longer approximates
# the posterior under the stated prior.
#
# Exercises
# ---------
# 1. Leave out ``nets.Standardize``. Which prior scale brings the bends back?
# 2. Draw functions from ``NormalPrior(0.25)`` and ``NormalPrior(1.0)``, then fit both. Which has the larger last ELBO
#    in ``posterior.history``?
# 3. Learn the noise, with ``GaussianLikelihood()``. Is it close to 1?
# 4. Open a gap, ``data.regression_problem(200, noise=1.0, gap=0.5)``. Is the network less certain in the gap? The third
#    tutorial measures whether it is uncertain *enough*.
# 5. Draw Markov chains, ``pb.fit(model, (x, y), seed=0)``. Where do their bands differ from those of the guide?
