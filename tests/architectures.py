"""Architectures that users have, in one table: every test of networks runs over all of them."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from torch import nn
from torch.nn.utils import parametrizations

import pyro_bnn as pb

from .architecture_nets import (
    Using,
    after_convolution,
    around,
    asking_for_parameters,
    attention,
    backbone,
    before_head,
    cells,
    cross_attention,
    decoder,
    encoder_layer,
    half_a_resnet18,
    head,
    images,
    keeping_its_output,
    language_model,
    last_state,
    masked,
    masked_encoder,
    masked_weights,
    module_dict,
    module_list,
    nested,
    numbers,
    one_layer_twice,
    own_parameters,
    parameter_dict,
    parameter_list,
    pooled,
    quietly,
    resnet18,
    self_attention,
    sentences,
    sequences,
    tied,
    tokens,
    transformer,
    vectors,
    vision_transformer,
    with_constants,
    with_weight_norm_inside,
)


@dataclass(frozen=True)
class Architecture:
    """A network and its inputs.

    Args:
        make: Function that makes the network.
        inputs: Function that makes six rows of inputs.
        where: Which parameters are random.
        is_training: Whether it is fitted in train mode.
        is_random: Whether it draws numbers in train mode, as dropout does.
        kept: Sites of which no weight may be removed.
        is_long: Whether its tests run at night.
        refusal: Part of the message with which NUTS refuses it; empty if it does not.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], object]
    where: str | tuple[str, ...] = "**"
    is_training: bool = True
    is_random: bool = False
    kept: str = ""
    is_long: bool = False
    refusal: str = ""


ARCHITECTURES = {
    "`nn.Linear`": Architecture(lambda: before_head(nn.Linear(4, 5), 5), vectors),
    "`nn.Bilinear`": Architecture(
        lambda: Using(lambda net, a, b: net.head(net.layer(a, b)), layer=nn.Bilinear(3, 2, 4), head=head(4)),
        lambda: numbers((3,), (2,)),
    ),
    "`nn.Conv1d`": Architecture(lambda: before_head(nn.Conv1d(2, 3, 2), 9), lambda: numbers((2, 4))),
    "`nn.Conv2d`": Architecture(lambda: before_head(nn.Conv2d(1, 3, 2, padding=1), 48), images),
    "`nn.Conv3d`": Architecture(lambda: before_head(nn.Conv3d(1, 2, 2), 2), lambda: numbers((1, 2, 2, 2))),
    "`nn.ConvTranspose1d`": Architecture(lambda: before_head(nn.ConvTranspose1d(2, 3, 2), 9), lambda: numbers((2, 2))),
    "`nn.ConvTranspose2d`": Architecture(lambda: before_head(nn.ConvTranspose2d(1, 2, 2), 32), images),
    "`nn.ConvTranspose3d`": Architecture(
        lambda: before_head(nn.ConvTranspose3d(1, 2, 2), 54), lambda: numbers((1, 2, 2, 2))
    ),
    "`nn.PReLU`": Architecture(lambda: around(nn.PReLU(4)), vectors),
    "`nn.Dropout`": Architecture(lambda: around(nn.Dropout(0.3)), vectors, is_random=True),
    "`nets.MCDropout`": Architecture(
        lambda: around(pb.nets.MCDropout(0.3)), vectors, is_random=True, refusal="is random"
    ),
    "`nn.BatchNorm1d`": Architecture(lambda: around(nn.BatchNorm1d(4)), vectors),
    "`nn.BatchNorm1d`, eval mode": Architecture(lambda: around(nn.BatchNorm1d(4)), vectors, is_training=False),
    "`nn.BatchNorm2d`": Architecture(lambda: after_convolution(nn.BatchNorm2d(4)), images),
    "`nn.InstanceNorm2d`": Architecture(lambda: after_convolution(nn.InstanceNorm2d(4, affine=True)), images),
    "`nn.LayerNorm`": Architecture(lambda: around(nn.LayerNorm(4)), vectors),
    "`nn.RMSNorm`": Architecture(lambda: around(nn.RMSNorm(4)), vectors),
    "`nn.GroupNorm`": Architecture(lambda: after_convolution(nn.GroupNorm(2, 4)), images),
    "`nn.Embedding`": Architecture(lambda: before_head(nn.Embedding(5, 2), 6), tokens),
    "`nn.Embedding(padding_idx=0)`": Architecture(lambda: before_head(nn.Embedding(5, 2, padding_idx=0), 6), tokens),
    "`nn.EmbeddingBag(padding_idx=0)`": Architecture(
        lambda: before_head(nn.EmbeddingBag(5, 4, padding_idx=0), 4), tokens
    ),
    "`nn.RNN`": Architecture(lambda: last_state(nn.RNN(2, 3, batch_first=True), 3), sequences),
    "`nn.LSTM`": Architecture(lambda: last_state(nn.LSTM(2, 3, proj_size=2, batch_first=True), 2), sequences),
    "`nn.LSTM(num_layers=2, bidirectional=True)`": Architecture(
        lambda: last_state(nn.LSTM(2, 3, num_layers=2, bidirectional=True, batch_first=True), 6), sequences
    ),
    "`nn.GRU(num_layers=2, dropout=0.3)`": Architecture(
        lambda: last_state(nn.GRU(2, 3, num_layers=2, dropout=0.3, batch_first=True), 3), sequences, is_random=True
    ),
    "`nn.LSTMCell`": Architecture(lambda: Using(cells, cell=nn.LSTMCell(2, 3), head=head(3)), sequences),
    "`nn.MultiheadAttention`": Architecture(lambda: attention(self_attention), sentences),
    "`nn.MultiheadAttention`, eval mode": Architecture(lambda: attention(self_attention), sentences, is_training=False),
    "`nn.MultiheadAttention(kdim=2, add_bias_kv=True)`": Architecture(
        lambda: attention(cross_attention, kdim=2, vdim=2, add_bias_kv=True), lambda: numbers((3, 4), (2, 2))
    ),
    "`nn.TransformerEncoderLayer`": Architecture(lambda: pooled(encoder_layer()), sentences),
    "`nn.TransformerEncoderLayer`, eval mode": Architecture(
        lambda: pooled(encoder_layer()), sentences, is_training=False
    ),
    "`nn.TransformerEncoder`": Architecture(
        lambda: pooled(nn.TransformerEncoder(encoder_layer(0.1), 2)), sentences, is_random=True
    ),
    "`nn.TransformerEncoder`, eval mode": Architecture(
        lambda: pooled(nn.TransformerEncoder(encoder_layer(0.1), 2)), sentences, is_training=False
    ),
    "`nn.TransformerEncoder` with a padding mask, eval mode": Architecture(masked_encoder, masked, is_training=False),
    "`nn.TransformerDecoder`": Architecture(decoder, lambda: numbers((3, 4), (2, 4))),
    "`nn.Transformer`": Architecture(transformer, lambda: numbers((3, 4), (2, 4))),
    "tied linear layers": Architecture(tied, vectors),
    "embedding tied to the last layer": Architecture(language_model, tokens),
    "one layer used twice": Architecture(one_layer_twice, vectors),
    "nested `nn.Sequential`": Architecture(nested, vectors),
    "`nn.ModuleList`": Architecture(module_list, vectors),
    "`nn.ModuleDict`": Architecture(module_dict, vectors),
    "parameters of a module's own": Architecture(own_parameters, vectors),
    "`nn.ParameterList`": Architecture(parameter_list, vectors),
    "`nn.ParameterDict`": Architecture(parameter_dict, vectors),
    "`next(self.parameters())` in `forward`": Architecture(asking_for_parameters, sequences),
    "output kept as an attribute": Architecture(keeping_its_output, vectors),
    "whole-number or empty parameters": Architecture(with_constants, vectors),
    "`parametrizations.weight_norm`": Architecture(
        lambda: around(parametrizations.weight_norm(nn.Linear(4, 4))), vectors, kept="original1"
    ),
    "`parametrizations.weight_norm` of an LSTM": Architecture(with_weight_norm_inside, sequences, kept="original1"),
    "`torch.nn.utils.weight_norm`": Architecture(
        lambda: quietly(nn.utils.weight_norm, nn.Linear(4, 4)), vectors, kept="weight_v"
    ),
    "`parametrizations.spectral_norm`": Architecture(
        lambda: around(parametrizations.spectral_norm(nn.Linear(4, 4))), vectors
    ),
    "`torch.nn.utils.spectral_norm`": Architecture(lambda: quietly(nn.utils.spectral_norm, nn.Linear(4, 4)), vectors),
    "`parametrizations.orthogonal`": Architecture(
        lambda: around(parametrizations.orthogonal(nn.Linear(4, 4))), vectors
    ),
    "`torch.nn.utils.prune`": Architecture(masked_weights, vectors),
    "several inputs, in a dictionary": Architecture(
        lambda: Using(lambda net, left, right: net.a(left) + net.b(right), a=head(3), b=head(2)),
        lambda: dict(zip(("left", "right"), numbers((3,), (2,)), strict=True)),
    ),
    'random last layer, `where="net.3.*"`': Architecture(backbone, vectors, where="net.3.*"),
    "part of torchvision's `resnet18`": Architecture(
        half_a_resnet18,
        lambda: numbers((3, 8, 8)),
        where=("net.conv1.weight", "net.bn1.*", "net.layer1.*.bn1.*", "net.fc.*"),
    ),
    "torchvision's `resnet18`": Architecture(resnet18, lambda: numbers((3, 8, 8)), is_long=True),
    "torchvision's `VisionTransformer`": Architecture(vision_transformer, lambda: numbers((3, 4, 4))),
}

NAMES = [pytest.param(name, marks=pytest.mark.nightly) if a.is_long else name for name, a in ARCHITECTURES.items()]
"""All names; tests of long ones run at night."""

FEW = (
    *("`nn.Linear`", "`nn.Conv2d`", "`nn.Dropout`", "`nn.BatchNorm1d`", "`nn.LayerNorm`", "`nn.LSTM`"),
    *("`nn.Embedding(padding_idx=0)`", "`nn.MultiheadAttention`", "`nn.TransformerEncoder` with a padding mask*"),
    *("`nn.ModuleList`", "`parametrizations.spectral_norm`", "`torch.nn.utils.prune`", "several inputs*"),
)
"""Architectures that differ in how a fit or a file treats them; the values of all are tested each time."""
