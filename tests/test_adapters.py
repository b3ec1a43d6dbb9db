"""Adapters of `peft` in networks of `transformers`: dictionaries in and out, and only the adapters random."""

import functools

import pytest
import torch
from torch import nn

import pyro_bnn as pb

from .fits import ADAM
from .tolerances import IDENTITY

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft asks transformers
ADAPTERS = "**.lora_*.**"
SIZES = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
NUM_ROWS = 12


@pytest.fixture(autouse=True, scope="module")
def libraries():
    """Imports that take seconds, and that move Python's random state: neither in each process nor inside a test."""
    import peft  # noqa: F401
    import transformers  # noqa: F401


def bert(kind="BertForSequenceClassification", **settings):
    import transformers

    options = {"max_position_embeddings": 8, "num_labels": 3, "initializer_range": 0.5, **settings}
    return getattr(transformers, kind)(transformers.BertConfig(**SIZES, **options)), ["query", "value"]


def llama(kind="LlamaForSequenceClassification", **settings):
    import transformers

    options = {"max_position_embeddings": 8, "num_labels": 3, "pad_token_id": 0, "initializer_range": 0.5, **settings}
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, **options)
    return getattr(transformers, kind)(config), ["q_proj", "v_proj"]


def adapted(make=bert, seed=0, rank=2, dropout=0.0, task="SEQ_CLS", **settings):
    """A network with adapters that differ from zero."""
    import peft

    torch.manual_seed(seed)
    net, modules = make(**settings)
    net = peft.get_peft_model(net, peft.LoraConfig(task, r=rank, target_modules=modules, lora_dropout=dropout))
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    return net


def rows():
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 20, (NUM_ROWS, 6), generator=generator)
    mask = (torch.arange(6) < torch.randint(3, 7, (NUM_ROWS, 1), generator=generator)).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, torch.arange(NUM_ROWS) % 3


X, Y = rows()


def model_of(net, **kwargs):
    options = {"where": ADAPTERS, "prior": pb.NormalPrior(0.5), "num_data": NUM_ROWS, **kwargs}
    return pb.BayesianModel(net, likelihood=pb.CategoricalLikelihood(), **options)


class Wrapped(nn.Module):
    """What users had to write: a network with two tensors in and one out."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids, mask):
        return self.net(input_ids=ids, attention_mask=mask).logits


def fitted(model, x, method):
    data = (x, Y)
    if method == "laplace":
        return pb.fit_laplace(model, data)
    if method in ("full", "diagonal", "kronecker"):
        return pb.fit_gauss_newton(model, data, structure=method)
    natural = method == "natural"
    guide = pb.MeanFieldGuide(model, **({"scale_map": pb.scale_maps.Precision()} if natural else {}))
    optimizer = pb.optim.natural_gradient(0.1, others=ADAM) if natural else ADAM
    return pb.fit_svi(model, data, guide, optimizer=optimizer, num_epochs=3, batch_size=5, seed=0)


@pytest.mark.daily("svi-llama", "natural-bert", "kronecker-bert")
@pytest.mark.parametrize("make", [bert, llama])
@pytest.mark.parametrize("method", ["svi", "natural", "full", "diagonal", "kronecker"])
def test_dictionaries_in_and_out_need_no_wrapper(make, method):
    net = adapted(make)
    plain, wrapped = model_of(net), model_of(Wrapped(net))
    one, other = fitted(plain, X, method), fitted(wrapped, tuple(X.values()), method)
    assert one.status.ok is not False
    for a, b in zip(one.sample(3, seed=0).values(), other.sample(3, seed=0).values(), strict=True):
        torch.testing.assert_close(a, b, **IDENTITY)
    found = pb.predict(plain, one, X, y=Y, num_samples=4, seed=0)
    expected = pb.predict(wrapped, other, tuple(X.values()), y=Y, num_samples=4, seed=0)
    torch.testing.assert_close(found.probs, expected.probs, **IDENTITY)
    assert found.nll == pytest.approx(expected.nll)


@pytest.mark.parametrize("make", [bert, llama])
def test_draws_are_put_into_the_adapters_and_only_they_are_random(make):
    net = adapted(make).eval()
    model = model_of(net)
    assert all(".lora_" in name for name in model.site_names)
    values = {name: torch.randn_like(model.initial_value(name)) for name in model.site_names}
    found = model.output_given(values, X)
    for name, value in values.items():
        net.get_parameter(name.removeprefix("net.")).data = value
    torch.testing.assert_close(found, net(**X).logits, **IDENTITY)


def test_the_head_is_learned_and_the_rest_stays():
    net = adapted()
    model = model_of(net)
    before = {name: value.clone() for name, value in model.network.named_parameters()}
    fitted(model, X, "natural")
    changed = {name for name, value in model.network.named_parameters() if not torch.equal(value, before[name])}
    head = "base_model.model.classifier.modules_to_save.default"
    assert changed == {f"{head}.weight", f"{head}.bias"}
    both = model_of(net, where=[ADAPTERS, "**.modules_to_save.**"])
    assert {*both.site_names} - {*model.site_names} == {f"net.{head}.weight", f"net.{head}.bias"}


@pytest.mark.parametrize("is_training", [True, False])
def test_dropout_is_on_in_a_fit_in_train_mode_only_and_never_in_predictions(is_training):
    nets = [adapted(dropout=p, hidden_dropout_prob=p).train(is_training) for p in (0.0, 0.5)]
    models = [model_of(net) for net in nets]
    outputs = [pb.predict(model, pb.MeanFieldGuide(model), X, num_samples=3, seed=0).probs for model in models]
    assert torch.equal(*outputs)
    elbos = [fitted(model, X, "svi").history.elbo for model in models]
    assert (elbos[0] == elbos[1]) == (not is_training)


@pytest.mark.nightly
def test_laplace_is_the_same_through_fused_attention():
    """Fused attention has no second derivatives. With a rank above 1 the Hessian is zero along rotations.

    The second search starts at the first mode, since rounding may lead searches from elsewhere to different modes.
    """
    nets = [adapted(rank=1, attn_implementation=kind).requires_grad_(False) for kind in ("sdpa", "eager")]
    first = fitted(model_of(nets[0]), X, "laplace")
    mode = pb.StoredPosterior(
        {name: value[None] for name, value in first.median().items()}, method="mode", status=first.status
    )
    second = pb.fit_laplace(model_of(nets[1]), (X, Y), init=mode)
    assert first.log_evidence == pytest.approx(second.log_evidence, rel=1e-6)


def test_what_a_tokenizer_returns_is_a_dictionary():
    from transformers import BatchEncoding

    model = model_of(adapted())
    guide = pb.MeanFieldGuide(model)
    given = (X, BatchEncoding({name: value.tolist() for name, value in X.items()}), BatchEncoding(X))
    first, *others = [pb.predict(model, guide, x, num_samples=3, seed=0).probs for x in given]
    assert all(torch.equal(first, other) for other in others)


def test_single_precision_stays():
    model = model_of(adapted().float())
    posterior = fitted(model, X, "svi")
    assert {value.dtype for value in posterior.median().values()} == {torch.float32}
    assert pb.predict(model, posterior, X, num_samples=3).probs.dtype == torch.float32


def test_a_network_without_logits_and_a_glob_that_stops_at_a_module_are_explained():
    model = model_of(bert("BertModel")[0], where="**.query.*")
    with pytest.raises(ValueError, match=r"got BaseModelOutput\w+; wrap it in .* whose output has `logits`"):
        pb.predict(model, pb.MeanFieldGuide(model), X, num_samples=2)
    with pytest.raises(ValueError, match=r"write '\*\*\.lora_\*\.\*\*'"):
        model_of(adapted(), where="**.lora_*")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["svi", "kronecker"])
def test_a_file_of_adapters_alone_is_small_and_needs_the_same_network(tmp_path, method):
    model = model_of(adapted())
    posterior = fitted(model, X, method)
    drawn = posterior.sample(3, seed=0)
    for name, with_frozen in (("whole", True), ("small", False)):
        pb.save_posterior(posterior, tmp_path / name, model, with_frozen=with_frozen)
    num_frozen = sum(p.numel() for p in model.network.parameters() if not p.requires_grad)
    saved = (tmp_path / "whole").stat().st_size - (tmp_path / "small").stat().st_size
    assert saved > 0.5 * 8 * num_frozen  # names and checksums replace the numbers

    same = model_of(adapted())
    loaded = pb.load_posterior(tmp_path / "small", same)
    assert all(torch.equal(value, drawn[name]) for name, value in loaded.sample(3, seed=0).items())
    expected = pb.predict(model, posterior, X, num_samples=3, seed=0).probs
    assert torch.equal(pb.predict(same, loaded, X, num_samples=3, seed=0).probs, expected)

    other = model_of(adapted(seed=1))
    before = {name: value.clone() for name, value in other.state_dict().items()}
    with pytest.raises(ValueError, match=r"without the frozen parameter `net\..*; build the model from the same"):
        pb.load_posterior(tmp_path / "small", other)
    assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())
    loaded = pb.load_posterior(tmp_path / "whole", other)
    assert torch.equal(pb.predict(other, loaded, X, num_samples=3, seed=0).probs, expected)


def test_a_file_with_tied_frozen_weights(tmp_path):
    def made():
        net = adapted(functools.partial(llama, "LlamaForCausalLM", tie_word_embeddings=True), task="CAUSAL_LM")
        return model_of(net)

    model = made()
    guide = pb.MeanFieldGuide(model)
    names = dict(model.network.named_parameters(remove_duplicate=False))
    tied = [name for name in names if name.endswith(("embed_tokens.weight", "lm_head.weight"))]
    assert names[tied[0]] is names[tied[1]]
    pb.save_posterior(guide, tmp_path / "file", model, with_frozen=False)
    loaded = pb.load_posterior(tmp_path / "file", made())
    expected = pb.GuidePosterior(guide).sample(2, seed=0)
    assert all(torch.equal(value, expected[name]) for name, value in loaded.sample(2, seed=0).items())
