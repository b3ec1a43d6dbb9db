"""Adapters of a language model, with uncertainty
==============================================

This example adapts a language model to a task by LoRA, with only the adapters random, and compares four methods. It
prints a table of accuracy, NLL, calibration error and CPU time, with standard errors over seeds.

As in ``transformer.py``, the task is to tell from which library a docstring comes. A small Llama with random weights
first learns to predict the next word of all training texts. It then gets adapters (`peft`) and a new head, and learns
the task from few labelled texts. AdamW trains a plain network. Adam and natural gradients each fit a mean-field
posterior of the adapters. With so few texts, an adapter may stay at its prior: the script says in how many fits this
happened. Laplace's method puts a Gaussian around the weights of the plain network. The script needs `transformers` and
`peft`, and downloads nothing. The results depend on the installed versions.
"""

import argparse
import time
import warnings
from functools import partial

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn
from transformer import LENGTH, LIBRARIES, NUM_WORDS, load
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

import pyro_bnn as pb
from pyro_bnn import metrics, plotting

CONFIG = LlamaConfig(
    vocab_size=NUM_WORDS,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=LENGTH,
    num_labels=len(LIBRARIES),
    pad_token_id=0,
    tie_word_embeddings=True,
    use_cache=False,
)
Rows = dict[str, Tensor]
Fit = tuple[pb.BayesianModel, pb.Posterior]


# %%
# Network and methods
# -------------------


def inputs_of(words: Tensor) -> Rows:
    """Return the inputs of the network, as a tokenizer of `transformers` would
    return them; 0 in `words` is padding.
    """
    return {"input_ids": words, "attention_mask": (words != 0).long()}


def train(net: nn.Module, rows: Rows, num_epochs: int) -> None:
    """Train by AdamW with a cosine schedule. The loss is the one that the
    network itself computes from `labels`.
    """
    optimizer = torch.optim.AdamW(
        [p for p in net.parameters() if p.requires_grad], lr=3e-3
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs)
    net.train()
    for _ in range(num_epochs):
        for batch in torch.randperm(len(rows["labels"])).split(64):
            optimizer.zero_grad()
            few = {name: value[batch] for name, value in rows.items()}
            net(**few).loss.backward()
            optimizer.step()
        schedule.step()


def pretrained(words: Tensor, num_epochs: int) -> dict[str, Tensor]:
    """Weights of a language model that has learned to predict the next word."""
    torch.manual_seed(0)
    net = LlamaForCausalLM(CONFIG)
    labels = words.masked_fill(words == 0, -100)
    train(net, {**inputs_of(words), "labels": labels}, num_epochs)
    return net.model.state_dict()


def with_adapters(backbone: dict[str, Tensor]) -> nn.Module:
    """A classifier with new adapters and a new head; all other weights are
    frozen.
    """
    net = LlamaForSequenceClassification(CONFIG)
    net.model.load_state_dict(backbone)
    lora = LoraConfig(
        TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]
    )
    with warnings.catch_warnings():
        # peft uses an old name of transformers
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(net, lora)


def model_of(net: nn.Module, num_data: int) -> pb.BayesianModel:
    """Only the adapters are random; the head is learned."""
    return pb.BayesianModel(
        net,
        prior=pb.NormalPrior(0.2),
        likelihood=pb.CategoricalLikelihood(),
        num_data=num_data,
        where="**.lora_*.**",
    )


def by_adamw(net: nn.Module, x: Rows, y: Tensor, num_epochs: int) -> Fit:
    train(net, {**x, "labels": y}, num_epochs)
    model = model_of(net, len(y))
    return model, pb.GuidePosterior(pb.DeltaGuide(model))


def by_laplace(net: nn.Module, x: Rows, y: Tensor, num_epochs: int) -> Fit:
    model, _ = by_adamw(net, x, y, num_epochs)
    return model, pb.fit_gauss_newton(
        model,
        (x, y),
        structure="full",
        prior_precision="evidence",
        per="network",
    )


def by_svi(
    net: nn.Module, x: Rows, y: Tensor, num_epochs: int, *, is_natural: bool
) -> Fit:
    model = model_of(net, len(y))
    optimizer = adam = partial(torch.optim.Adam, lr=3e-3)
    scale_map = pb.scale_maps.Softplus()
    if is_natural:
        optimizer = pb.optim.natural_gradient(
            0.1, hessian_decay=0.99, others=adam
        )
        scale_map = pb.scale_maps.Precision()
    init = pb.NetworkInit(prior_fraction=0.3)
    cosine = partial(
        torch.optim.lr_scheduler.CosineAnnealingLR, T_max=num_epochs
    )
    return model, pb.fit_svi(
        model,
        (x, y),
        pb.MeanFieldGuide(model, init=init, scale_map=scale_map),
        optimizer=pb.optim.scheduled(optimizer, cosine),
        num_epochs=num_epochs,
        batch_size=64,
        kl_weight=0.3,
        seed=0,
    )


METHODS = {  # and how many times as many epochs as AdamW it gets
    "AdamW": (by_adamw, 1),
    "mean field, Adam": (partial(by_svi, is_natural=False), 3),
    "natural gradients": (partial(by_svi, is_natural=True), 3),
    "AdamW and Laplace": (by_laplace, 1),
}
SCORES = (
    metrics.accuracy,
    metrics.negative_log_likelihood,
    metrics.expected_calibration_error,
)


# %%
# Run
# ---


def draw(tables: dict[str, Tensor]) -> None:
    """Plot NLL and ECE of each method: means and standard errors over seeds."""
    axes = plotting.new_axes(1, 2, size=("page", 2.1))[0]
    for ax, column, name in zip(
        axes, (1, 2), ("NLL in nats", "ECE"), strict=True
    ):
        for row, table in enumerate(tables.values()):
            values = table[:, column]
            error = values.std() / len(values) ** 0.5
            ax.errorbar(values.mean(), -row, xerr=error, fmt="o", color="C0")
        ax.set(xlabel=f"{name} (smaller is better)", yticks=[])
        ax.margins(y=0.15)
    axes[0].set_yticks([-row for row in range(len(tables))], tables)
    plotting.save(axes, "adapters.png")


def few_of_each(y: Tensor, num_texts: int) -> Tensor:
    """Random texts, the same number from each library."""
    of_each = [torch.nonzero(y == label)[:, 0] for label in y.unique()]
    return torch.cat(
        [rows[torch.randperm(len(rows))[:num_texts]] for rows in of_each]
    )


@plotting.style()
def main(
    texts: int, labelled: int, pretraining: int, epochs: int, seeds: int
) -> None:
    x, y, x_test, y_test, _ = load(texts)
    backbone = pretrained(x, pretraining)
    tables, notes = {}, []
    print(f"{'':20} {'accuracy':15} {'NLL':15} {'ECE':15} CPU s")
    for name, (method, factor) in METHODS.items():
        found, num_at_prior = [], 0
        for seed in range(seeds):
            torch.manual_seed(seed)
            few = few_of_each(y, labelled)
            start = time.process_time()
            with warnings.catch_warnings():  # of fits that are counted below
                warnings.simplefilter("ignore", pb.PosteriorWarning)
                model, posterior = method(
                    with_adapters(backbone),
                    inputs_of(x[few]),
                    y[few],
                    factor * epochs,
                )
            spent = time.process_time() - start
            num_at_prior += "prior-dominated" in str(posterior.status).lower()
            probs = pb.predict(
                model, posterior, inputs_of(x_test), num_samples=16, seed=0
            ).probs
            found.append([*(score(probs, y_test) for score in SCORES), spent])
        tables[name] = table = torch.tensor(found)
        means, errors = table.mean(0), table.std(0) / seeds**0.5
        cells = [
            f"{mean:.3f} ± {error:.3f}  "
            for mean, error in zip(means[:3], errors[:3], strict=True)
        ]
        print(f"{name:20} {' '.join(cells)} {means[3]:5.1f}")
        if num_at_prior:
            notes.append(f"{name}: {num_at_prior} of {seeds} fits")
    if notes:
        print("an adapter stayed at its prior (few texts):", *notes)
    draw(tables)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--texts", type=int, default=800, help="most texts from a library")
    add("--labelled", type=int, default=50, help="texts from a library")
    add("--pretraining", type=int, default=8, help="epochs on all texts")
    add("--epochs", type=int, default=20, help="of AdamW")
    add("--seeds", type=int, default=3, help="to average over, at least 2")
    main(**vars(parser.parse_args()))

# %%
# *Natural gradients have the best NLL and the best calibration of the four
# methods, although an adapter stayed at its prior in each of their fits. Means
# and standard errors over three seeds; the axes do not begin at 0.*
