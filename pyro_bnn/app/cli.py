"""The command `pyro-bnn`."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

UsageError: Any = typer.BadParameter.__mro__[1]
"""What Typer raises for a wrong command line; it does not export the class itself."""

app = typer.Typer(
    help="Bayesian neural networks on Pyro: train, evaluate, and see what the network does not know.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Out = Annotated[Path, typer.Option(help="Folder to write to.")]
Data = Annotated[
    Path | None,
    typer.Option(help="Folder that holds MNIST/raw and FashionMNIST/raw.  [default: $PYRO_BNN_DATA, else ./data]"),
]
Download = Annotated[bool, typer.Option("--download", help="Download missing data into the data folder.")]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda, cuda:1, ...")]
Force = Annotated[bool, typer.Option("--force", help="Replace the folder if it exists.")]


Number = TypeVar("Number", int, float)


def _list(kind: type[Number], text: str, name: str) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        expected = "whole numbers" if kind is int else "numbers"
        raise ValueError(f"`{name}` must be {expected} separated by commas, got {text!r}.") from None


def _device(name: str) -> str:
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; choose cpu or cuda.") from None
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"unknown device {name!r}; choose cpu or cuda.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device {name} needs a GPU that torch can use, and there is none here; choose cpu.")
    return name


@app.command()
def demo(
    out: Out = Path("pyro-bnn-demo"),
    seed: Annotated[int, typer.Option(help="Of data order, start and draws.")] = 0,
    force: Force = False,
) -> None:
    """Two demonstrations in under a minute, without any download.

    Scikit-learn's digits with 7, 8 and 9 held out as the unknown, and regression on a noisy sine.
    """
    from .demo import digits_demo, regression_demo

    start = time.perf_counter()
    typer.echo("Training on the digits 0 to 6; 7, 8 and 9 are the unknown ...")
    typer.echo(f"{digits_demo(out, seed=seed, force=force, progress=sys.stderr.isatty())}\n")
    typer.echo("Fitting 92 noisy points of 10 sin(2 pi x) on [-0.5, 0.5] ...")
    for name, value in regression_demo(out, seed=seed).items():
        typer.echo(f"{name.replace('_', ' '):30s} {value:9.2f}")
    pictures = ", ".join(sorted(path.name for path in out.glob("*.png")))
    typer.echo(f"\nDone in {time.perf_counter() - start:.0f} s. Pictures in {out}: {pictures}")


@app.command()
def train(
    dataset: Annotated[str, typer.Argument(help="fashion-mnist, mnist or digits.")],
    out: Out,
    recipe: Annotated[
        str,
        typer.Option(
            help="default, or article: mixture prior, KL weight 1, 20 epochs, after Blundell et al. (2015); or "
            "tutorial, tutorial-mixture: SGD, 10 epochs, after an MXNet tutorial. The run's config.json shows all "
            "settings."
        ),
    ] = "default",
    prior: Annotated[
        str | None,
        typer.Option(
            help="normal:SCALE, mixture:MIXING,SCALE1,SCALE2, laplace:SCALE or fan-in:GAIN; or by parameter name, "
            "GLOB=PRIOR;GLOB=PRIOR."
        ),
    ] = None,
    guide: Annotated[str | None, typer.Option(help="mean-field or auto-normal.")] = None,
    init: Annotated[str | None, typer.Option(help="uniform, normal, network:SCALE or network:FRACTION*prior.")] = None,
    inputs: Annotated[str | None, typer.Option(help="Pixels: raw (in [0, 1]), standardized or scaled:FACTOR.")] = None,
    hidden: Annotated[str | None, typer.Option(help="Units of each hidden layer, such as 400,400.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the training set.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images per step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam, or sgd (without momentum).")] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Learning rate; that of sgd is for the loss of a batch: its summed NLL plus KL / number of batches."
        ),
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="constant or cosine.")] = None,
    num_particles: Annotated[int | None, typer.Option(help="Weight draws per step.")] = None,
    kl_weight: Annotated[
        str | None,
        typer.Option(
            help="Relative to the ELBO: 1 is the ELBO, below 1 a cold posterior; or blundell, per-weight, "
            "warmup:EPOCHS[,WEIGHT]."
        ),
    ] = None,
    hold_out: Annotated[
        str | None, typer.Option(help='Classes kept out as the unknown, such as 7,8,9, or "" for none.')
    ] = None,
    validation: Annotated[
        int | None, typer.Option(help="Training images set aside; evaluate then uses them, not the test set.")
    ] = None,
    accuracy: Annotated[
        bool | None,
        typer.Option(
            "--accuracy/--no-accuracy",
            help="Record the accuracy at mean weights, of training and test images, after each epoch, which takes "
            "time.  [default: the tutorial recipes do, the others do not]",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the run repeatable.")] = None,
    data: Data = None,
    download: Download = False,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Train a Bayesian network on images and write configuration, history and posterior to a folder.

    What is not given comes from the recipe. The default recipes are cold posteriors: their KL weight is below 1.
    """
    from . import recipes, runs

    if (dataset, recipe) not in runs.RECIPES:
        datasets, names = (sorted({key[i] for key in runs.RECIPES}) for i in (0, 1))
        raise ValueError(
            f"no recipe {recipe!r} for data set {dataset!r}; choose a data set from {', '.join(datasets)} and a "
            f"recipe from {', '.join(names)}."
        )
    given: dict[str, Any] = {
        "prior": prior,
        "guide": guide,
        "init": init,
        "inputs": inputs,
        "hidden": None if hidden is None else _list(int, hidden, "--hidden"),
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "lr": lr,
        "schedule": schedule,
        "num_particles": num_particles,
        "kl_weight": kl_weight,
        "hold_out": None if hold_out is None else _list(int, hold_out, "--hold-out"),
        "validation": validation,
        "accuracy": accuracy,
        "seed": seed,
    }
    config = replace(runs.RECIPES[dataset, recipe], **{k: v for k, v in given.items() if v is not None})
    device = _device(device)
    images, _ = runs.load_data(config, root=data, download=download)
    held_out = f" (classes {', '.join(map(str, config.hold_out))} are held out)" if config.hold_out else ""
    start = time.perf_counter()
    _, posterior = runs.train(config, images, out, device=device, force=force, progress=sys.stderr.isatty())
    last = posterior.history.epochs[-1]
    typer.echo(f"Trained on {len(images.x_train)} images of {len(images.classes)} classes{held_out}.")
    typer.echo(f"{posterior.status} {time.perf_counter() - start:.0f} s.")
    typer.echo(
        f"Last epoch, per image: NLL {-last.expected_log_likelihood / len(images.x_train):.4f} nats, "
        f"KL {last.kl / len(images.x_train):.4f} nats. Saved in {out}; next: pyro-bnn evaluate {out}"
    )
    curve = runs.load_accuracy(out)
    if curve is not None:
        from .. import plotting

        published = recipes.PUBLISHED_ACCURACY.get((dataset, recipe))
        pair = None if published is None else (published.train, published.test)
        plotting.save(plotting.accuracy_curves(curve.train, curve.test, published=pair), out / "accuracy.png")
        test = f" (test: the {config.validation} set aside for validation)" if config.validation else ""
        typer.echo(f"\n{curve.table(published)}\naccuracy.csv, accuracy.json and accuracy.png in {out}{test}.")


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder that `train` wrote.")],
    ood: Annotated[
        str | None,
        typer.Option(help="Data set of unknown images.  [default: held-out classes; else (fashion-)mnist's sibling]"),
    ] = None,
    num_samples: Annotated[int, typer.Option(help="Weight draws.")] = 100,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    data: Data = None,
    download: Download = False,
    device: Device = "cpu",
) -> None:
    """Measure a trained network: accuracy, calibration, detection of the unknown; and draw its pictures.

    Results are printed and written into the run's folder.
    """
    from ..data import load_images
    from . import runs
    from .evaluation import evaluate as report_on

    if num_samples < 2:
        raise ValueError(f"--num-samples must be at least 2 to speak of uncertainty, got {num_samples}.")
    config = runs.load_config(run)
    device = _device(device)
    images, unknown = runs.load_data(config, root=data, download=download)
    sibling = {"fashion-mnist": "mnist", "mnist": "fashion-mnist"}
    if ood is None and not config.hold_out:
        ood = sibling.get(config.dataset)
    if ood is not None:
        unknown = load_images(ood, root=data, download=download).x_test
        if unknown.shape[1:] != images.x_test.shape[1:]:
            raise ValueError(
                f"{ood} images are {tuple(unknown.shape[1:])} but the run's {tuple(images.x_test.shape[1:])}."
            )
    model, posterior = runs.load_run(run, images, device=device)
    if config.validation:
        typer.echo(f"(test images: the {config.validation} that were set aside for validation)")
    typer.echo(str(report_on(model, posterior, images, unknown, run, num_samples=num_samples, seed=seed)))
    typer.echo(f"\nMetrics and pictures in {run}.")


@app.command()
def compare(
    out: Out = Path("pyro-bnn-compare"),
    num_draws: Annotated[
        int, typer.Option(help="Draws of each of NUTS' four chains, after as many of warm-up.", min=40)
    ] = 500,
    num_steps: Annotated[int, typer.Option(help="Optimisation steps of each fit.", min=1)] = 3000,
    compile: Annotated[bool, typer.Option("--compile", help="Compile the sampler: needs a C++ compiler.")] = False,
    seed: Annotated[int, typer.Option(help="Of data, starts, fits and draws.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the files of an earlier comparison.")] = False,
) -> None:
    """Hold seven approximate methods against NUTS, on a noisy sine with a gap in its data.

    Prints how far each is from the exact posterior where there are data, in the gap and outside, and writes table and
    picture. Takes some minutes.
    """
    import warnings

    from ..mcmc import ConvergenceWarning
    from .study import RegressionStudy

    if out.exists() and not (force and out.is_dir()):
        raise FileExistsError(f"{out} exists; choose another --out, or pass --force to overwrite a folder's files.")
    out.mkdir(parents=True, exist_ok=True)
    study = RegressionStudy(
        seed=seed, num_steps=num_steps, num_draws=num_draws, compile=compile, progress=sys.stderr.isatty()
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what it says is printed as the status
        result = study.run(typer.echo)
    typer.echo(f"\n{result}")
    study.save(result, out)
    typer.echo(f"\ncomparison.csv, comparison.json and comparison.png in {out}.")


@app.command()
def prune(
    run: Annotated[Path, typer.Argument(help="Folder that `train` wrote.")],
    fractions: Annotated[
        str, typer.Option(help="Shares of the weights to remove, lowest signal-to-noise ratio first.")
    ] = "0,.1,.25,.5,.75,.95,.98,.99,1",
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Remove the share of each layer, not of all layers together.")
    ] = False,
    keep: Annotated[
        float | None,
        typer.Option(help="Also write the run with this share of its weights left, to --out.", min=0, max=1),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the pruned run of --keep.")] = None,
    num_samples: Annotated[int, typer.Option(help="Weight draws of each ensemble.", min=1)] = 100,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    data: Data = None,
    download: Download = False,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Which weights a trained network needs: scores, file size and speed by the share of them removed.

    The ratio |mean| / sd of each weight decides. Table and pictures are written into the run's folder.
    """
    from . import inspection, runs

    if (keep is None) != (out is None):
        raise ValueError("--keep and --out go together: the share of weights left, and the folder for that run.")
    shares = _list(float, fractions, "--fractions")
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"`--fractions` must be numbers from 0 to 1, got {fractions!r}.")
    config = runs.load_config(run)
    device = _device(device)
    images, _ = runs.load_data(config, root=data, download=download)
    model, posterior = runs.load_run(run, images, device=device)
    if keep is not None and out is not None:
        status = inspection.save_pruned_run(
            run, out, model, posterior, fraction=1 - keep, per_layer=per_layer, force=force
        )
        typer.echo(f"{status} Saved in {out}; next: pyro-bnn evaluate {out}\n")
    options: dict[str, Any] = {"num_samples": num_samples, "per_layer": per_layer, "seed": seed}
    report, gains = inspection.prune_run(model, posterior, images, run, fractions=shares, **options)
    typer.echo(f"{report}\n\n{gains}\n\npruning.csv, pruning.json, pruning.png and snr.png in {run}.")


@app.command()
def weights(
    run: Annotated[Path, typer.Argument(help="Folder that `train` wrote.")],
    site: Annotated[
        str | None,
        typer.Option(
            help="Site of the weight shown, such as net.1.weight; a wrong one lists them.  [default: the first]"
        ),
    ] = None,
    index: Annotated[
        str,
        typer.Option(help="Which weight of the site, such as 3,100.  [default: the one furthest from zero, in its sd]"),
    ] = "",
    data: Data = None,
    download: Download = False,
) -> None:
    """The posterior of a trained network's weights: of one of them, and of every layer's.

    Pictures are written into the run's folder.
    """
    from . import inspection, runs

    place = _list(int, index, "--index")
    images, _ = runs.load_data(runs.load_config(run), root=data, download=download)
    model, posterior = runs.load_run(run, images)
    rows = inspection.weights_of_run(model, posterior, run, site=site, index=place)
    typer.echo("\n".join([inspection.SiteSummary.header(), *map(str, rows)]))
    typer.echo(f"\nweight.png and weights.png in {run}.")


def main() -> None:
    """Run the command; a mistake of the user's gives one line and exit code 2."""
    from ..svi import NonFiniteError

    try:
        code = app(standalone_mode=False)
    except UsageError as error:
        _fail(f"{error.format_message().rstrip('.')}. Try --help.")
    except (ValueError, OSError, NonFiniteError) as error:
        _fail(str(error))
    sys.exit(code)


def _fail(message: str) -> None:
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(2)
