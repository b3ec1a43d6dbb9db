"""Export predictions as an ONNX file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..._core import checks as _checks
from ..._core.extras import optional
from ..._core.files import write_atomically
from ..._core.inputs import Inputs, as_inputs, named_leaves, num_rows, take
from ..._core.signatures import explained
from ...inference.posterior import Posterior
from ...modelling.model import BayesianModel, require_bayesian
from ...results.prediction import predict
from ._module import PredictiveModule, answers, checks_kept, exported, largest_difference, tolerance

OLDEST_TORCH = (2, 6)  # oldest torch whose ONNX exporter accepts an exported program, and writes a single file
MOST_BYTES = 2**31 - 2**20  # largest size of a module's tensors in bytes, since protobuf allows at most 2 GiB


@explained('export_onnx(model, posterior, x, "model.onnx")')
def export_onnx(
    model: BayesianModel,
    posterior: Posterior | Callable[..., object],
    x: Inputs,
    path: str | Path,
    *,
    num_samples: int | None = None,
    seed: int | None = None,
) -> None:
    """Write the predictions of a posterior to one ONNX file, which runs without torch and without this package.

    The file is a graph with K draws of the weights and any number of rows. Its results are those of ``predict(model,
    posterior, x, num_samples=num_samples, seed=seed)``. To check this before the file is written, onnxruntime runs the
    graph on x, on the first row, and on two copies of x. In classification, probabilities and uncertainties may differ
    from `predict` by at most 1e-5. In regression, means and standard deviations may differ by at most 1e-5 times the
    largest of them.

    The input is named ``x``. Several inputs are named by their keys in a dictionary, or ``x_0``, ``x_1``, ... in a
    tuple. The outputs are those of :class:`~pyro_bnn.interop.PredictiveModule`: ``mean`` or ``probs``, then
    ``aleatoric`` and ``epistemic``. The metadata of the file contain the number of draws and the seed.

    Args:
        model: The model, on the CPU.
        posterior: Result of a fit, or any Pyro guide.
        x: Example inputs, shape (N, ...), as for `predict`: two or more typical rows.
        path: The file.
        num_samples: Number of draws of the weights, K, at least 2; by default as in :func:`~pyro_bnn.predict`. The file
            has K numbers for each weight, but none for removed weights (see :mod:`pyro_bnn.pruning`).
        seed: Seed of the draws; with ``None``, a seed is drawn.

    Raises:
        ImportError: If `onnx`, `onnxscript` or `onnxruntime` is not installed.
        ValueError: If the model, network or likelihood cannot be exported, if torch is too old, if the file would
            exceed 2 GiB, if onnxruntime cannot run the graph, or if the results of onnxruntime differ from those of
            `predict`.
        OSError: If the file cannot be written. An earlier file at `path` then stays unchanged.

    Example:
        >>> import tempfile
        >>> import onnxruntime
        >>> import torch
        >>> import pyro_bnn as pb
        >>> net = torch.nn.Linear(4, 1)
        >>> prior, noise = pb.NormalPrior(), pb.GaussianLikelihood(0.1)
        >>> model = pb.BayesianModel(net, prior=prior, likelihood=noise, num_data=6)
        >>> x, guide = torch.randn(6, 4), pb.MeanFieldGuide(model)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/line.onnx"
        ...     pb.export_onnx(model, guide, x, path, num_samples=20, seed=0)
        ...     session = onnxruntime.InferenceSession(path)
        >>> mean, aleatoric, epistemic = session.run(None, {"x": x.numpy()})
        >>> mean.shape
        (6, 1)
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        optional(package, package, "onnx")
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
        raise ValueError(
            f"the export to ONNX needs torch {'.'.join(map(str, OLDEST_TORCH))} or later, got {torch.__version__}; "
            "update torch, or use `torch.export` with a `PredictiveModule`."
        )
    require_bayesian(model)
    path = _checks.file_to_write("path", path)  # known before the work
    if model.device.type != "cpu":
        raise ValueError(f"`model` must be on the CPU, got {model.device}; call `model.cpu()`.")
    module = PredictiveModule(model, posterior, x, num_samples=num_samples, seed=seed)
    x = as_inputs("x", x, model.like)
    num_bytes = sum(value.nbytes for value in module.state_dict().values())
    if num_bytes > MOST_BYTES:
        raise ValueError(
            f"an ONNX file can have 2 GiB at most, but {module.num_samples} draws take {num_bytes / 2**30:.3g} GiB; "
            "lower `num_samples`, or make only the last layer random."
        )
    content = file_content(module, x)
    _require_agreement(content, module, posterior, model, x)
    write_atomically(path, lambda file: file.write(content))


def file_content(module: PredictiveModule, x: Inputs) -> bytes:
    with torch.no_grad():
        names = [*module(take(x, slice(0, 1)))]
    try:
        with checks_kept():
            program: Any = torch.onnx.export(exported(module, x), dynamo=True, verbose=False)
    except Exception as error:  # torch has many errors for what it cannot trace or translate
        cause: BaseException = error
        while cause.__cause__ is not None:  # the first error names the operation
            cause = cause.__cause__
        raise ValueError(
            f"torch {torch.__version__} cannot export this model ({str(cause).strip().splitlines()[0][:200]}); serve "
            "it with `predict`, or replace the layer or likelihood that torch cannot export."
        ) from error
    _tidy(program.model.graph, input_names(x), names)
    found = program.model_proto
    for key, value in (("num_samples", module.num_samples), ("seed", module.seed)):
        found.metadata_props.add(key=key, value=str(value))
    content: bytes = found.SerializeToString()
    return content


def _tidy(graph: Any, inputs: list[str], outputs: list[str]) -> None:
    """Give names to the inputs, the outputs and the axis of rows, and remove metadata about source code."""
    rows = graph.inputs[0].shape[0]
    for value in (*graph.inputs, *graph.outputs, *(value for node in graph.all_nodes() for value in node.outputs)):
        if value.shape is not None:
            value.shape = type(value.shape)(["rows" if axis == rows else axis for axis in value.shape])
    for number, node in enumerate(graph.all_nodes()):
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()
            value.name = f"{value.name}_{number}" if value.name in (*inputs, *outputs) else value.name
    for value, name in zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True):
        value.name = name


def input_names(x: Inputs) -> list[str]:
    """Return the names of the inputs in the file."""
    prefix = "" if isinstance(x, Mapping) else "x"
    return [re.sub(r"\W+", "_", name).strip("_") for name, _ in named_leaves(prefix, x)]


def _require_agreement(
    content: bytes,
    module: PredictiveModule,
    posterior: Posterior | Callable[..., object],
    model: BayesianModel,
    x: Inputs,
) -> None:
    """Raise unless onnxruntime agrees with `predict` for x, for its first row, and for two copies of x."""
    runtime = optional("onnxruntime", "onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    count = num_rows(x)
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        for rows in (torch.arange(count), torch.arange(1), torch.arange(2 * count) % count):
            given = take(x, rows)
            feed = {
                name: leaf.numpy() for name, (_, leaf) in zip(input_names(x), named_leaves("x", given), strict=True)
            }
            found = dict(zip(names, map(torch.from_numpy, session.run(None, feed)), strict=True))
            prediction = predict(model, posterior, given, num_samples=module.num_samples, seed=module.seed)
            difference = largest_difference(found, answers(prediction))
            if not difference <= tolerance(model.dtype):
                raise ValueError(
                    f"the results of onnxruntime must be those of `predict`, but differ by {difference:.2g} for "
                    f"{len(rows)} rows; export a `PredictiveModule` with `torch.export` instead."
                )
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(
            f"onnxruntime cannot run this network in {model.dtype} ({str(error).splitlines()[0][:200]}); use "
            "`model.float()`, or export a `PredictiveModule` with `torch.export`."
        ) from error
