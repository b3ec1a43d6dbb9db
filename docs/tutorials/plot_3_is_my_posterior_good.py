r"""Is my posterior any good?
=========================

A fit always returns something. This tutorial checks, from cheap to expensive, whether it is a good posterior.

1. Read the status, and ``diagnose`` what each layer learned: seconds.
2. Measure the noise of the gradients: did the optimizer follow a signal? Seconds.
3. Draw from the exact posterior with NUTS, on this or a smaller problem, and ``compare`` predictions: a minute.

The problem is a noisy sine without data in the middle. A good posterior is uncertain in that gap.
"""

# %%
# The candidate
# -------------

# sphinx_gallery_thumbnail_number = 2
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import data, nets, plotting

NOISE = 2.0
x, y = data.regression_problem(noise=NOISE, gap=0.5)
grid = torch.linspace(-1, 1, 201)[:, None]
place = grid.flatten().abs()
regions = {"data": (place >= 0.25) & (place <= 0.5), "gap": place < 0.25, "outside": place > 0.5}


torch.manual_seed(0)
net = nets.mlp([1, 20, 1], activation=nn.Tanh, first=[nets.Standardize.of(x)])
model = pb.BayesianModel(net, prior=pb.NormalPrior(2.0), likelihood=pb.GaussianLikelihood(NOISE), num_data=len(x))
fitted = pb.fit(model, (x, y), method="svi", seed=0)
print(fitted.status)

# %%
# Check 1: what did the weights learn?
# ------------------------------------
# The status says that the objective is level. That is necessary but not sufficient: the wrong objective can be level
# too. So look at the weights, site by site.

print(fitted.diagnose())

# %%
# "At prior" is the share of weights that learned next to nothing, "collapsed" the share whose draws are all the same
# number. Some weights at the prior are normal: here the data need fewer than 20 units. What would a bad fit look like?
# Here are two common mistakes:
#
# - a divergence that is counted many times over, such as once for every row in a loss that is a mean over rows. That
#   is a KL weight far above 1. (Another way to get it, a wrong ``num_data``, is refused.)
# - standard deviations that start at practically 0, in a fit that ends before they have grown.
#
# The library warns of both. (The warnings are silenced here, since ``diagnose`` repeats them.)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", pb.PosteriorWarning)
    vague = pb.fit(model, (x, y), kl_weight=1000.0, max_epochs=1000, seed=0)
    started_as_point = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-6))
    point = pb.fit(model, (x, y), guide=started_as_point, max_epochs=300, seed=0)
for name, posterior in (("KL weight 1000", vague), ("start 1e-6, 300 epochs", point)):
    print(f"--- {name}")
    print(posterior.diagnose())

figure, axes = plt.subplots(1, 3, figsize=(7.4, 2.7), sharey=True, layout="constrained")
candidates = {"the candidate": fitted, "KL weight 1000": vague, "start 1e-6, 300 epochs": point}
for ax, (title, posterior) in zip(axes, candidates.items(), strict=True):
    prediction = pb.predict(model, posterior, grid, num_samples=200, seed=0)
    plotting.regression_bands(grid, prediction, data=(x, y), ax=ax)
    ax.set(title=title, ylim=(-25, 25))
    ax.get_legend().set_visible(ax is axes[0])
plt.show()

# %%
# In the middle the network has learned nothing and says so with bands that ignore the data. On the right it fits the
# data and is certain in the gap, where it has seen nothing. The picture alone would not tell which of the two mistakes
# is in the code; the messages above do, with the remedies.
#
# Check 2: how noisy are the gradients?
# -------------------------------------
# Variational inference follows gradients that are drawn at random. ``gradient_noise`` holds the parameters still and
# measures signal and noise. At an optimum the signal is 0; before that, a ratio far below 1 means that most of each
# step goes in a random direction.

start = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02))
for name, guide in (("at the start", start), ("at the end", fitted)):
    for kind, estimator in (("sampled weights", None), ("local reparameterisation", pb.LocalReparameterization())):
        rows = pb.gradient_noise(model, guide, x, y, estimator=estimator, num_samples=50, seed=0).parameters
        signal = sum(row.signal**2 for row in rows) ** 0.5
        noise = sum(row.noise**2 for row in rows) ** 0.5
        print(f"{name:13} {kind:25} signal {signal:8.1f}   noise {noise:8.1f}   ratio {signal / noise:7.2f}")

# %%
# At the start the signal stands out. At the end only noise is left, as it should be at an optimum. Local
# reparameterisation has less noise, so the fit can settle closer to the optimum; ``fit`` chose it by default, as its
# status said.
#
# **Trap:** a small signal is good news only together with a level objective. With a learning rate that is too high a
# fit dances around the optimum; with one that is too low it never gets there.
#
# Check 3: the yardstick
# ----------------------
# NUTS draws from the exact posterior of the same model. It takes longer, and it is the only check that shows what the
# guide *cannot* represent. If your problem is too large for it, use a small one of the same kind: fewer rows, fewer
# units.

with warnings.catch_warnings():
    warnings.simplefilter("ignore", pb.ConvergenceWarning)  # the status says the same
    chains = pb.fit_nuts(model, (x, y), num_samples=150, num_warmup=150, max_tree_depth=7, seed=0)
print(chains.status)

# %%
# The yardstick itself must be checked first. R-hat compares four chains that started far apart: above 1.01 they have
# not found the same posterior. The effective sample size says how many independent draws they are worth; 400 are enough
# here. If a sentence after these numbers says what to try, do that before you believe what follows.
#
# **Trap: R-hat of weights.** Hidden units can swap places without changing the function, and each chain has its own
# order. So R-hat of single weights is bad for nearly every network, and it does not matter. The numbers above are
# those of *predictions*.

comparison = pb.compare(model, {"nuts": chains, "mean-field": fitted}, grid, regions=regions, num_samples=600, seed=0)
print(comparison)

# %%
# Read the column *epistemic sd ratio*, the epistemic standard deviation of the fit divided by that of NUTS: 1 is
# right, and each number has a Monte Carlo standard error. *rms mean difference* says how far apart the means are.

predictions = {
    name: pb.predict(model, posterior, grid, num_samples=600, seed=0)
    for name, posterior in (("NUTS", chains), ("mean-field", fitted))
}
figure, axes = plt.subplots(1, 3, figsize=(7.4, 2.7), layout="constrained")
for ax, (name, prediction) in zip(axes, predictions.items(), strict=False):
    plotting.regression_bands(grid, prediction, data=(x, y), ax=ax)
    ax.set(title=name, ylim=(-25, 25))
    axes[2].plot(grid, prediction.epistemic.sqrt(), label=name)
axes[1].get_legend().set_visible(False)
axes[2].axvspan(-0.5, -0.25, color="0.9", label="data")
axes[2].axvspan(0.25, 0.5, color="0.9")
axes[2].set(title="epistemic sd", xlabel="x", ylim=(0, None))
axes[2].legend()
plt.show()

# %%
# The grey stripes are where the data lie. The exact posterior dips sharply there and rises between and outside. The
# mean-field curve is flatter: **too uncertain where there are data, too certain elsewhere**. It has one
# standard deviation for each weight and no correlations, so it cannot say "these two weights may vary, but only
# together". No number of epochs changes that, and neither status nor ``diagnose`` can see it.
#
# What to do
# ----------
# - Predictions inside the data: the mean-field fit is fine; the noise dominates its total band.
# - Decisions that depend on the gap: use NUTS where it is affordable, or a guide with correlations.
# - Whatever you choose, keep such a comparison on a small problem beside your code, and run it when the model changes.
#
# **Trap:** a better ELBO is not a better posterior in every region. The ELBO depends on the places where there are
# data.
#
# Exercises
# ---------
# 1. Add ``pb.LowRankGuide(model, rank=10)`` to the comparison. Where is it better than the mean-field?
# 2. Give NUTS twice, with two seeds. The distance of the second run from the first is the noise of the yardstick.
# 3. Use ``kl_weight=0.3`` in ``pb.fit``. Which region gains, and which loses?
# 4. Use 20 data points, then 500, with ``data.regression_problem(20, noise=2.0, gap=0.5)``. Does the mean-field come
#    closer to NUTS with more data?
