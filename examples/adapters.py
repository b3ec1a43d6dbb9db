"""Adapters of a language model, with uncertainty
==============================================

A language model is adapted to a task by LoRA; only the adapters are random.

The task is that of ``transformer.py``: from which library is a docstring? A small Llama with random weights first
learns to predict the next word of 4800 texts, without their labels. It then gets adapters (`peft`) and a new head, and
learns the task from few labelled texts, in four ways: a point by AdamW; mean-field posteriors of the adapters by Adam
and by natural gradients; and Laplace's method around the point of AdamW. The script prints a table, means over seeds
with their standard errors; each seed has its own labelled texts and its own start. It needs `transformers` and `peft`,
and downloads nothing. The texts and the results depend on the installed versions.
"""

import argparse
import functools
import sys
import time
from pathlib import Path

import torch
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

import pyro_bnn as pb
from pyro_bnn import metrics

sys.path.insert(0, str(Path(__file__).parent))
from transformer import LENGTH, LIBRARIES, NUM_WORDS, load

SCORES = {
    "accuracy": metrics.accuracy,
    "NLL": metrics.negative_log_likelihood,
    "ECE": metrics.expected_calibration_error,
}
ADAPTERS = "**.lora_*.**"


def inputs_of(words: Tensor) -> dict[str, Tensor]:
    """What a tokenizer of `transformers` would return; padding is 0."""
    return {"input_ids": words, "attention_mask": (words != 0).long()}


def train(net: nn.Module, rows: dict[str, Tensor], num_epochs: int, lr: float, weight_decay: float = 0.01) -> None:
    """Minimise the loss that the network itself computes from `labels`, by AdamW with a cosine schedule."""
    learned = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=lr, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, num_epochs)
    net.train()
    for _ in range(num_epochs):
        for batch in torch.randperm(len(rows["labels"])).split(64):
            optimizer.zero_grad()
            net(**{name: value[batch] for name, value in rows.items()}).loss.backward()
            optimizer.step()
        schedule.step()


def pretrained(words: Tensor, num_epochs: int) -> dict[str, Tensor]:
    """Weights of a language model that has learned to predict the next word."""
    torch.manual_seed(0)
    net = LlamaForCausalLM(config())
    train(net, {**inputs_of(words), "labels": words.masked_fill(words == 0, -100)}, num_epochs, lr=3e-3)
    return net.model.state_dict()


def config() -> LlamaConfig:
    return LlamaConfig(
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


def with_adapters(backbone: dict[str, Tensor]) -> nn.Module:
    net = LlamaForSequenceClassification(config())
    net.model.load_state_dict(backbone)
    return get_peft_model(net, LoraConfig(TaskType.SEQ_CLS, r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))


def model_of(net: nn.Module, num_data: int) -> pb.BayesianModel:
    """Only the adapters are random; the head is learned, and the backbone, which `peft` has frozen, stays."""
    return pb.BayesianModel(
        net, where=ADAPTERS, prior=pb.NormalPrior(0.2), likelihood=pb.CategoricalLikelihood(), num_data=num_data
    )


def by_adamw(net: nn.Module, x: dict[str, Tensor], y: Tensor, options: argparse.Namespace) -> pb.GuidePosterior:
    train(net, {**x, "labels": y}, options.point_epochs, lr=options.lr)
    model = model_of(net, len(y))
    return model, pb.GuidePosterior(pb.auto_delta(model))


def by_laplace(net: nn.Module, x: dict[str, Tensor], y: Tensor, options: argparse.Namespace) -> pb.Posterior:
    model, _ = by_adamw(net, x, y, options)
    return model, pb.fit_gauss_newton(model, (x, y), structure="kronecker", prior_precision="evidence", per="network")


def by_svi(net: nn.Module, x: dict[str, Tensor], y: Tensor, options: argparse.Namespace, natural: bool) -> pb.Posterior:
    model = model_of(net, len(y))
    adam = functools.partial(torch.optim.Adam, lr=options.lr)
    optimizer = pb.natural_gradient(options.natural_lr, hessian_decay=0.99, others=adam) if natural else adam
    scale_map = pb.scale_maps.Precision() if natural else pb.scale_maps.Softplus()
    cosine = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=options.epochs)
    return model, pb.fit_svi(
        model,
        pb.MeanFieldGuide(model, init=pb.NetworkInit(prior_fraction=0.3), scale_map=scale_map),
        (x, y),
        optimizer=pb.scheduled(optimizer, cosine),
        num_epochs=options.epochs,
        batch_size=64,
        kl_weight=options.kl_weight,
        seed=0,
    )


METHODS = {
    "AdamW": by_adamw,
    "mean field, Adam": functools.partial(by_svi, natural=False),
    "mean field, natural": functools.partial(by_svi, natural=True),
    "Laplace, Kronecker": by_laplace,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--texts", type=int, default=800, help="largest number of texts from each library to pretrain on"
    )
    parser.add_argument("--labelled", type=int, default=50, help="number of labelled texts from each library")
    parser.add_argument("--pretraining", type=int, default=8, help="epochs of next-word prediction")
    parser.add_argument("--point-epochs", type=int, default=20, help="epochs of AdamW")
    parser.add_argument("--epochs", type=int, default=60, help="epochs of the mean-field fits")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--natural-lr", type=float, default=0.1)
    parser.add_argument("--kl-weight", type=float, default=0.3)
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--validation", action="store_true", help="test on training files set aside instead")
    options = parser.parse_args()
    x, y, x_test, y_test, _ = load(options.texts, options.validation)
    backbone = pretrained(x, options.pretraining)
    found = {name: [] for name in options.methods}
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        chosen = torch.cat([rows[torch.randperm(len(rows))[: options.labelled]] for rows in of_each(y)])
        for name, method in found.items():
            torch.manual_seed(seed)
            start = time.process_time()
            model, posterior = METHODS[name](with_adapters(backbone), inputs_of(x[chosen]), y[chosen], options)
            spent = time.process_time() - start
            prediction = pb.predict(
                model, posterior, inputs_of(x_test), num_samples=options.draws if name != "AdamW" else 2, seed=0
            )
            method.append([score(prediction.probs, y_test) for score in SCORES.values()] + [spent])
            print(name, seed, method[-1], time.process_time() - start, getattr(posterior, "status", ""), flush=True)


def of_each(y: Tensor) -> list[Tensor]:
    return [torch.nonzero(y == label)[:, 0] for label in range(len(LIBRARIES))]


if __name__ == "__main__":
    main()
