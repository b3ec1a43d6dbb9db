r"""Is my posterior any good?
=========================

A fit returns a posterior even if the fit failed. This tutorial checks the default of ``fit`` and a variational fit,
beginning with the cheapest check:

1. Read the status, and see with ``diagnose`` whether the chains agree, or what each layer learned.
2. Check whether the gradients of a variational fit are more than noise.
3. Draw by NUTS (the No-U-Turn sampler), which is asymptotically exact, on this or a smaller problem, and ``compare``
   predictions.

Each check takes seconds, but without a C compiler the third one takes minutes.

The data come from the same curve as in the first tutorial. This time there are fewer points, they are noisier, and none
of them is in the middle of the curve. A good posterior is uncertain in that gap.
"""

# %%
# The candidates
# --------------

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
regions = {
    "data": (place >= 0.25) & (place <= 0.5),
    "gap": place < 0.25,
    "outside": place > 0.5,
}


torch.manual_seed(0)
net = nets.mlp([1, 20, 1], activation=nn.Tanh, first=[nets.Standardize.of(x)])
model = pb.BayesianModel(
    net,
    prior=pb.NormalPrior(2.0),
    likelihood=pb.GaussianLikelihood(NOISE),
    num_data=len(x),
)
mclmc = pb.fit(model, (x, y), seed=0)
print(mclmc.status)
fitted = pb.fit(model, (x, y), method="svi", seed=0)
print(fitted.status)

# %%
# With a C compiler and a network this small, the default of ``fit`` is chains (MCLMC, :doc:`/understand/which_method`):
# random steps from eight trained networks to others that explain the data about equally well. The sampler is MCLMC
# (microcanonical Langevin Monte Carlo). A *mode*, as in the status, is a region of such networks. The variational fit
# approximates the posterior by an independent Gaussian for each weight (mean field), which also works for large
# networks.
#
# Check 1: do the chains agree, and what did the weights learn?
# -------------------------------------------------------------
# R-hat compares the chains. If it is close to 1, they agree.

print(mclmc.diagnose(model, grid))

# %%
# **Common mistake: R-hat of weights.** Hidden units can swap places without changing the function, and each chain has
# its own order. R-hat of single weights is therefore bad for many networks, but this does not matter: look at R-hat of
# *predictions*.
#
# The status of the variational fit says that the objective no longer rises. This is not enough, because the objective
# may be wrong. Look at the weights too, site by site.

print(fitted.diagnose())

# %%
# "At prior" is the share of weights that learned almost nothing, "collapsed" the share whose draws are all the same
# number. Some weights at the prior are normal: here the data need fewer than 20 units. Two common mistakes give a bad
# fit:
#
# - The KL divergence is counted many times, such as once for every row in a loss that is a mean over rows. This has
#   the effect of a KL weight far above 1. A wrong ``num_data`` would have the same effect, but is refused.
# - Standard deviations start at practically 0, and the fit ends before they have grown.
#
# The library warns of both. We silence the warnings here, because ``diagnose`` repeats them.

with warnings.catch_warnings():
    warnings.simplefilter("ignore", pb.PosteriorWarning)
    warnings.simplefilter("ignore", pb.ConvergenceWarning)
    vague = pb.fit(model, (x, y), kl_weight=1000.0, num_epochs=1000, seed=0)
    started_as_point = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=1e-6))
    point = pb.fit(
        model, (x, y), guide=started_as_point, num_epochs=300, seed=0
    )
for name, posterior in (
    ("KL weight 1000", vague),
    ("initial sd 1e-6, 300 epochs", point),
):
    print(f"--- {name}")
    print(*posterior.diagnose().warnings)

with plotting.style():
    axes = plotting.new_axes(1, 3, size=("page", 2.9))[0]
    candidates = {
        "variational fit": fitted,
        "KL weight 1000": vague,
        "initial sd 1e-6, 300 epochs": point,
    }
    for ax, (title, posterior) in zip(axes, candidates.items(), strict=True):
        prediction = pb.predict(model, posterior, grid, num_samples=200, seed=0)
        plotting.regression_bands(grid, prediction, data=(x, y), ax=ax)
        ax.set(title=title, ylim=(-25, 25), xticks=(-1, -0.5, 0, 0.5, 1))
        ax.get_legend().remove()
    entries = axes[0].get_legend_handles_labels()
    axes[0].figure.legend(*entries, loc="outside upper left", ncols=4)
plt.show()

# %%
# *The first fit has no sign of a failure; check 3 shows what it misses. With KL weight 1000, the bands ignore the data.
# With the last fit, the mean follows the data, but the blue epistemic band is too thin to see, even in the gap.*
#
# The messages above name both problems and their remedies.
#
# Check 2: how noisy are the gradients?
# -------------------------------------
# The gradients of variational inference are random. ``gradient_noise`` measures their mean (signal) and their standard
# deviation (noise) at fixed parameters. At an optimum the signal is 0. Before that, a ratio far below 1 means that
# steps are mostly random.

start = pb.MeanFieldGuide(model, init=pb.NetworkInit(scale=0.02))
for name, guide in (("at the start", start), ("at the end", fitted)):
    for kind, estimator in (
        ("drawn weights", None),
        ("local reparameterisation", pb.LocalReparameterization()),
    ):
        rows = pb.gradient_noise(
            model, guide, x, y, estimator=estimator, num_samples=50, seed=0
        ).parameters
        signal = sum(row.signal**2 for row in rows) ** 0.5
        noise = sum(row.noise**2 for row in rows) ** 0.5
        print(
            f"{name:13} {kind:25} signal {signal:8.1f}   "
            f"noise {noise:8.1f}   ratio {signal / noise:7.2f}"
        )

# %%
# At the start the signal is larger than the noise, while at the end only noise is left, as expected at an optimum.
# Local reparameterisation has less noise, so the fit can come closer to the optimum. By default, a variational ``fit``
# chooses it, as the status said.
#
# **Common mistake: a small signal alone.** A small signal shows convergence only if the objective no longer rises. If
# the learning rate is too high, a fit moves around the optimum, and if it is too low, the fit does not reach it.
#
# Check 3: compare with NUTS
# --------------------------
# The longer the chains of NUTS, the closer their draws are to the posterior. Only this check
# shows what a guide *cannot* represent, and how large the bias of chains without rejection is. If your problem is too
# large, use a smaller one of the same kind, with fewer rows and units.

nuts = pb.fit_nuts(model, (x, y), num_samples=400, num_warmup=300, seed=0)
print(nuts.status)

# %%
# First check NUTS itself. R-hat of the predictions should be at most 1.01. The effective sample size (ESS) is the
# number of independent draws with the same precision, and 400 are enough, a hundred for each chain. Here both are good.
# If the status ends with a remedy, apply it before you use the draws.

comparison = pb.compare(
    model,
    {"NUTS": nuts, "chains (MCLMC)": mclmc, "mean field": fitted},
    grid,
    regions=regions,
    num_samples=600,
    seed=0,
)
for pair in comparison.pairs:
    if pair.reference == "NUTS":
        ratio = pair.scores["epistemic sd ratio"]
        print(
            f"{pair.region:8} {pair.method:15} epistemic sd ratio "
            f"{ratio.value:.2f} ± {ratio.standard_error:.2f}"
        )

# %%
# The ratio is the epistemic standard deviation of the fit divided by that of NUTS, with its Monte Carlo standard error.
# A ratio of 1 is right. ``print(comparison)`` shows more scores, and says in words which fit is closest.

predictions = {
    name: pb.predict(model, posterior, grid, num_samples=600, seed=0)
    for name, posterior in {
        "NUTS": nuts,
        "chains (MCLMC)": mclmc,
        "mean field": fitted,
    }.items()
}
with plotting.style():
    *panels, last = plotting.new_axes(2, 2, size=("page", 5.2)).ravel()
    for ax, (name, prediction) in zip(panels, predictions.items(), strict=True):
        plotting.regression_bands(grid, prediction, data=(x, y), ax=ax)
        ax.set(title=name, ylim=(-25, 25))
        ax.get_legend().remove()
        last.plot(grid, prediction.epistemic.sqrt(), label=name)
    last.set(title="epistemic sd", ylabel="sd", xlim=(-1, 1), ylim=(0, 4))
    for ax in (*panels, last):
        ax.set(xlabel="x" if ax in (panels[2], last) else "")
        ax.set_xticks([-1, -0.5, 0, 0.5, 1])
        for start, end in ((-1, -0.5), (-0.25, 0.25), (0.5, 1)):
            shade = ax.axvspan(start, end, color="0.93", zorder=0)
    shade.set_label("no data")
    entries = [
        entry
        for ax in (panels[0], last)
        for entry in zip(*ax.get_legend_handles_labels(), strict=True)
    ]
    last.figure.legend(
        *zip(*entries, strict=True), loc="outside upper left", ncols=4
    )
plt.show()

# %%
# *Where there are no data (grey), the epistemic standard deviation of NUTS is large. The chains (MCLMC) of the
# default of fit agree with NUTS, while the mean-field curve is too flat.*
#
# In each region, the epistemic standard deviation of chains (MCLMC) is within 5 % of that of NUTS. The
# mean-field fit is **underconfident where there are data, overconfident elsewhere**. Because mean field
# ignores correlations, it cannot represent two weights that vary only together. More epochs do not change this, and
# neither the status nor ``diagnose`` shows it. :doc:`/results/approximations` compares more methods in such a gap.
#
# What to do
# ----------
# - For predictions inside the data, both fits are good enough, because the noise dominates the total band.
# - For decisions that depend on the gap, use chains (MCLMC), or NUTS if it is fast enough.
# - Keep a small comparison of this kind with your code, and run it when the model changes.
#
# **Common mistake: the ELBO as a score.** A larger ELBO does not mean a better posterior in every region. It says
# little about regions without data.
#
# Exercises
# ---------
# 1. Add ``pb.LowRankGuide(model, rank=10)`` to the comparison. Where is it better than the mean-field guide?
# 2. Compare two runs of NUTS with two seeds. Their difference shows how precise the comparison is.
# 3. Use ``kl_weight=0.3`` in ``pb.fit``. Which regions become better, and which worse?
# 4. Use 20 data points, then 500, with ``data.regression_problem(20, noise=2.0, gap=0.5)``. Is the mean-field guide
#    closer to NUTS with more data?
