"""The report's section on chains: what was compared and chosen, and how each chain moved."""

from ...runs import is_chains
from .drawing import drawn, panel
from .section import Section, Verdict, plural
from .subject import Subject

__all__ = ["chains_section"]


def chains_section(subject: Subject) -> Section | None:
    """How the network was chosen, and the log-density along each chain; None for a variational run."""
    posterior = subject.posterior
    if not is_chains(posterior):
        return None
    status, density = posterior.status, posterior.statistics.log_density
    ax = panel()
    if density is not None:
        ax.plot(density.T.cpu().numpy(), linewidth=0.6, linestyle="-")
        ax.set(xlabel="draw", ylabel="log-density (nats)")
    rule = "Problem: more than 1 % of the draws diverged. R-hat within the chains says how well modes were explored."
    few = f"At most 1 % of the draws of {plural(posterior.num_chains, 'chain')} diverged."
    verdict = (
        Verdict("good", "fit", "", few, rule)
        if status
        else Verdict("problem", "fit", "the chains are in trouble", status.message, rule)
    )
    values = {
        "status": str(status),
        "num_chains": posterior.num_chains,
        "num_draws": posterior.num_stored // posterior.num_chains,
        "seconds": posterior.seconds or 0.0,
        "pictures": [] if density is None else [drawn(ax)],
    }
    return Section("Chains", "chains.html", values, (verdict,))
