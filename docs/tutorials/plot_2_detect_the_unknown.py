r"""Detect the unknown
==================

A classifier that was trained on the digits 0 to 6 names one of them for every image, even for a 7. In this tutorial,
you detect such images.

The probabilities of a plain network sum to 1 over the classes that it knows, so it cannot answer "none of these". A
Bayesian neural network is a set of classifiers, one for each draw of the weights. They agree on inputs like the
training data, but disagree on others, and this disagreement can be measured.

The known images are scikit-learn's small digits 0 to 6, and the unknown ones are 7, 8 and 9. Nothing is downloaded.
"""

# %%
# Known and unknown
# -----------------

import matplotlib.pyplot as plt
import torch
from torch import nn

import pyro_bnn as pb
from pyro_bnn import data, metrics, nets, plotting

digits = data.load_images("digits")
known_train, known_test = digits.y_train < 7, digits.y_test < 7
x_train, y_train = digits.x_train[known_train], digits.y_train[known_train]
x_test, y_test = digits.x_test[known_test], digits.y_test[known_test]
unknown = digits.x_test[~known_test]
classes = digits.classes[:7]

print(
    f"{len(x_train)} training images of {len(classes)} kinds; "
    f"{len(x_test)} test images, {len(unknown)} unknown ones"
)

axes = plotting.new_axes(2, 8, size=("page", 2.1))
for row, (name, images) in zip(
    axes, (("known", x_test), ("unknown", unknown)), strict=True
):
    for ax, image in zip(row, images[:8], strict=True):
        ax.imshow(image.numpy(), cmap="gray_r")
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    row[0].set_ylabel(name)
plt.show()

# %%
# *The network is trained on images like the known ones, and never sees a digit of the unknown kinds.*
#
# We use no unknown image for training, nor for choosing a setting.
#
# **Common mistake: tuning on unknown images.** A detector that was tuned on its unknown test images is only a
# classifier with one more class, and will not detect another kind of unknown images.
#
# A plain network, for comparison
# -------------------------------


def build_net() -> nn.Module:
    torch.manual_seed(0)
    num_pixels = x_train[0].numel()
    first = [nets.Standardize.of(x_train, floor=0.1), nn.Flatten()]
    return nets.mlp([num_pixels, 16, len(classes)], first=first)


plain = build_net()
optimizer = torch.optim.Adam(plain.parameters(), lr=1e-3)
for _ in range(200):
    for rows in torch.randperm(len(x_train)).split(128):
        optimizer.zero_grad()
        nn.functional.cross_entropy(
            plain(x_train[rows]), y_train[rows]
        ).backward()
        optimizer.step()
with torch.no_grad():
    plain_known, plain_unknown = (
        plain(x_test).softmax(-1),
        plain(unknown).softmax(-1),
    )


def sure(probs: torch.Tensor) -> float:
    """Share of the images for which one class has a probability above 90 %."""
    return float((probs.max(-1).values > 0.9).float().mean())


print(f"plain network: accuracy {metrics.accuracy(plain_known, y_test):.1%}")
print(
    f"more than 90% sure of {sure(plain_known):.1%} of the "
    f"known and {sure(plain_unknown):.1%} of the unknown images"
)

# %%
# The Bayesian neural network
# ---------------------------
# The network stays the same, but its weights get a prior. By default, ``fit`` runs chains (MCLMC) for a network of this
# size, and the status says whether each has explored its *mode*, a region of networks that explain the data well. For a
# larger network, pass ``method="svi"`` (:doc:`/understand/which_method`).

model = pb.BayesianModel(
    build_net(),
    prior=pb.NormalPrior(1.0),
    likelihood=pb.CategoricalLikelihood(),
    num_data=len(x_train),
)
posterior = pb.fit(model, (x_train, y_train), seed=0)
print(posterior.status)

known_prediction = pb.predict(
    model, posterior, x_test, y=y_test, num_samples=100, seed=0
)
unknown_prediction = pb.predict(
    model, posterior, unknown, num_samples=100, seed=0
)
accuracy = metrics.accuracy(known_prediction.probs, y_test)
print(f"posterior: accuracy {accuracy:.1%}")
print(
    "more than 90% sure of "
    f"{sure(known_prediction.probs):.1%} of the known and "
    f"{sure(unknown_prediction.probs):.1%} of the unknown images"
)

# %%
# Call a network sure of an image if a class has a probability above 90 %. The plain network is sure of about a quarter
# of the unknown images, and the Bayesian neural network of almost none. This has a price: the Bayesian neural network
# is sure of about 87 % of the *known* images, instead of 96 %. The accuracy does not suffer.
#
# Let each of the 100 drawn networks vote for its most probable class:

axes = plotting.new_axes(2, 6, size=("page", 3))
pictures = torch.cat([x_test[:3], unknown[:3]])
votes = torch.cat([known_prediction.votes[:3], unknown_prediction.votes[:3]])
plotting.vote_histograms(
    pictures,
    votes,
    classes,
    titles=[*["known"] * 3, *["unknown"] * 3],
    axes=axes,
)
plt.show()

# %%
# *For the known images, most votes go to one class. For the unknown images, the networks disagree, because they were
# not trained on such images.*
#
# A number for the disagreement
# -----------------------------
# The *total* uncertainty is the entropy of the averaged probabilities, in nats. It is the sum of two parts:
#
# .. math:: \underbrace{H\big[\bar p\big]}_{\text{total}} = \underbrace{\tfrac1S \sum_s H[p_s]}_{\text{aleatoric}} +
#           \underbrace{I}_{\text{epistemic}}
#
# - aleatoric: each drawn network is itself uncertain, for example between a 1 and a 4. More data would not help.
# - epistemic, the *mutual information*: the networks disagree. More data of that kind would help.
#
# An image of an unknown kind should have a large epistemic part.

print("mean, in nats       total   aleatoric   epistemic")
for name, prediction in (
    ("known", known_prediction),
    ("unknown", unknown_prediction),
):
    means = (
        prediction.total.mean(),
        prediction.aleatoric.mean(),
        prediction.epistemic.mean(),
    )
    print(f"{name:15}" + "  ".join(f"{float(value):10.3f}" for value in means))


def entropy(probs: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(probs).entropy()


known_scores = {
    "plain network, entropy": entropy(plain_known),
    "posterior, entropy": known_prediction.total,
    "posterior, mutual information": known_prediction.epistemic,
}
unknown_scores = {
    "plain network, entropy": entropy(plain_unknown),
    "posterior, entropy": unknown_prediction.total,
    "posterior, mutual information": unknown_prediction.epistemic,
}
for name, score in known_scores.items():
    print(
        f"{name:29} AUROC "
        f"{metrics.ood_scores(score, unknown_scores[name]).auroc:.3f}"
    )

axes = plotting.new_axes(2, 2, size=("page", 5.6))
plotting.detection_curves(known_scores, unknown_scores, axes=axes.ravel())
# the upper left part of the ROC curves, where they differ
axes[1, 1].set(xlim=(0, 0.4), ylim=(0.6, 1.01))
axes[1, 0].set_ylabel("share of inputs below")
titles = [*known_scores, "ROC curves, upper left part"]
for ax, title in zip(axes.ravel(), titles, strict=True):
    ax.set_title(title, size=8)
for ax in axes.ravel()[:3]:
    ax.set_xlabel("score (nats)")
axes[1, 1].set(
    xlabel="share of the known taken for unknown",
    ylabel="share of the unknown found",
)
plt.show()

# %%
# *The first three panels show the share of images with a score below a value: a score is better the further apart its
# two curves are. In the last panel, a score is better the closer its curve comes to the upper left corner.*
#
# The area below a whole ROC curve, the AUROC, is the probability that a random unknown image has a larger score than a
# random known one (0.5 is guessing, 1 perfect). On these small digits, the scores of the posterior detect a little
# better than that of the plain one (AUROC 0.985 instead of 0.971, each with a standard error of about 0.005). On larger
# images, the choice of score matters: the mutual information detects digits among garments clearly better than the
# entropy (:doc:`/results/dense_networks`).
#
# Choose a threshold
# ------------------
# Choose the threshold **by known images alone**. This one sends 5 % of them to a person:

threshold = known_prediction.epistemic.quantile(0.95)
caught = float((unknown_prediction.epistemic > threshold).float().mean())
answered = known_prediction.epistemic <= threshold
answered_accuracy = metrics.accuracy(
    known_prediction.probs[answered], y_test[answered]
)
print(
    f"threshold {float(threshold):.3f} nats: "
    f"{caught:.1%} of the unknown images are noticed"
)
print(
    "accuracy on the known images that are answered: "
    f"{answered_accuracy:.1%} instead of {accuracy:.1%}"
)

# %%
# The same score also detects mistakes: the accuracy on the remaining images is higher.
#
# Look at the unknown images that were not detected:

slipped = unknown_prediction.epistemic.argsort()[:6]
axes = plotting.new_axes(2, 6, size=("page", 3))
plotting.vote_histograms(
    unknown[slipped], unknown_prediction.votes[slipped], classes, axes=axes
)
plt.show()

# %%
# *The six unknown images with the smallest epistemic uncertainty. Most of the drawn networks agree, because these
# images resemble a known kind.*
#
# **Common mistake: the KL weight.** If it is below 1, the posterior is narrower than Bayes' rule says. Such cold
# posteriors classify better, but detect less. Measure accuracy, calibration and detection for *one* posterior, instead
# of reporting the best of each from different settings.
#
# **Common mistake: easy unknown images.** Images of pure noise are easy to detect, so a good result proves little. Test
# with unknown images like those that you expect.
#
# Exercises
# ---------
# 1. Leave out one of the known classes in training, and use it as the unknown. Which class is hardest to detect?
# 2. Plot AUROC and accuracy for KL weights 0.05, 0.2 and 1, with ``method="svi"`` and
#    ``kl_weight=``. Which weight would you use?
# 3. Make a ``pb.EnsemblePosterior`` of five ``pb.DeltaGuide`` fits. Does its mutual information detect as well?
# 4. Score images of uniform noise, ``torch.rand_like(x_test)``. Are they detected?
