"""From the folder of a run to the subject of a report."""

from pathlib import Path

from ... import images, runs, sources
from .image_run import image_subject
from .own_run import own_subject
from .subject import Subject

__all__ = ["subject_of"]


def subject_of(
    run: Path,
    ood: str | None = None,
    *,
    num_samples: int,
    seed: int,
    data: Path | None = None,
    download: bool = False,
    device: str = "cpu",
) -> Subject:
    """Measure a run.

    Args:
        run: Its folder.
        ood: Data set of the unknown images; None for that of the run.
        num_samples: Number of weight draws in each prediction.
        seed: Seed of these draws.
        data: Folder of the images, or file of the rows, if it is not where it was.
        download: Whether to fetch missing images.
        device: Where to compute.

    Raises:
        FileNotFoundError: If there is no such run, or its data are not there.
        ValueError: If the data are not those of the run, or an option does not fit it.
    """
    config = runs.load_config(run)
    if config.kind != "images":
        if ood is not None or download:
            raise ValueError("--ood and --download are for image sets; leave them out.")
        rows = sources.load(config, root=data, facts=runs.read_facts(run))
        model, posterior = runs.load_run(run, rows, device=device)
        return own_subject(run, config, model, posterior, rows, num_samples=num_samples, seed=seed)
    known, held_out = images.load_data(config, root=data, download=download)
    unknown = images.load_unknown(ood, config, known, root=data, download=download)
    name = ood or images.SIBLINGS.get(config.dataset, "")
    if unknown is None:
        name, unknown = f"the held-out classes {', '.join(map(str, config.hold_out))}", held_out
    images.check_unseen("test", known.x_test, known.x_train)
    images.check_unseen("unknown", unknown, known.x_train)
    model, posterior = runs.load_run(run, known, device=device)
    return image_subject(
        run,
        config,
        model,
        posterior,
        known,
        unknown if len(unknown) else None,
        unknown_name=name,
        num_samples=num_samples,
        seed=seed,
    )
