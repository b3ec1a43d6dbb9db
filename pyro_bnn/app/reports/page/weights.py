"""What the posterior of the weights learned, layer by layer."""

import torch

from .... import plotting, pruning
from ....guides import Diagnosis, MeanFieldGuide
from .html import figure, figures, panel, paragraph, table
from .numbers import count, percent
from .section import Section, Verdict
from .subject import Subject

__all__ = ["weights_section"]


def weights_section(subject: Subject) -> Section | None:
    """The diagnosis of the posterior, site by site, and the distribution of signal-to-noise ratios."""
    posterior = subject.posterior
    try:
        found = posterior.diagnose(subject.model)
    except ValueError as error:  # no Gaussian marginals, or no weights
        return Section("Weights", paragraph(f"There is no diagnosis: {error}"))
    body = [
        paragraph(
            f"{count(found.num_weights)} weights learned {found.kl:,.0f} nats altogether. A weight at the prior "
            "learned next to nothing; a collapsed one is a single number, without uncertainty. |mean| / sd is the "
            "signal-to-noise ratio: weights far below 1 can be removed."
        ),
        _sites(found),
    ]
    if found.left_out:
        rows = list(found.left_out.items())
        body.append(table(("latent variable", "why"), rows, caption="Left out of the diagnosis", is_words=True))
    if isinstance(posterior.guide, MeanFieldGuide):
        body.append(_signal_to_noise(posterior.guide))
    return Section("Weights", "".join(body), _verdicts(found))


def _verdicts(found: Diagnosis) -> tuple[Verdict, ...]:
    if found.warnings:
        return tuple(Verdict("problem", f"The posterior is in trouble. {_sentence(text)}") for text in found.warnings)
    return (
        Verdict(
            "good",
            f"The posterior did not collapse to a point ({percent(found.share_collapsed)} of the weights did) and left "
            f"the prior ({percent(found.share_at_prior)} of the weights are still there).",
        ),
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _sites(found: Diagnosis) -> str:
    header = ("site", "weights", "KL (nats)", "KL per weight", "at prior", "collapsed", "median sd", "|mean| / sd")
    rows = [
        (
            row.site,
            count(row.num_weights),
            f"{row.kl:,.1f}",
            f"{row.kl_per_weight:.3g}",
            percent(row.share_at_prior),
            percent(row.share_collapsed),
            f"{row.median_scale:.3g}",
            f"{row.median_signal_to_noise:.3g}",
        )
        for row in found.sites
    ]
    shares = (percent(found.share_at_prior), percent(found.share_collapsed))
    rows.append(
        ("all", count(found.num_weights), f"{found.kl:,.1f}", f"{found.kl / found.num_weights:.3g}", *shares, "", "")
    )
    return table(header, rows, caption="Diagnosis of the posterior, site by site")


def _signal_to_noise(guide: MeanFieldGuide) -> str:
    ratios = pruning.signal_to_noise(guide)
    every = torch.cat([ratio.detach().flatten().cpu() for ratio in ratios.values()])
    removed = sum(int((~guide.kept(site)).sum()) for site in ratios)
    levels = pruning.decibel(every[every > 0])
    words = (
        paragraph(
            f"Pruning has removed {count(removed)} of {count(len(every))} weights ({percent(removed / len(every))}) "
            "after the training."
        )
        if removed
        else ""
    )
    if not len(levels):
        return words
    middle, below = float(levels.median()), float((every < 1).double().mean())
    alts = (
        f"Density of the signal-to-noise ratios of {count(len(levels))} weights, median {middle:.1f} dB.",
        f"Share of weights below each signal-to-noise ratio, by layer: {percent(below)} of all are below 0 dB.",
    )
    drawn = plotting.signal_to_noise(ratios, [panel() for _ in alts])
    return words + figures(*(figure(ax, alt=alt) for ax, alt in zip(drawn, alts, strict=True)))
