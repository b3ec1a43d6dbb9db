"""Networks of three outputs and few weights, built in the ways in which users build networks; six rows of inputs."""

import warnings

import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.prune import l1_unstructured

ROWS = 6
CLASSES = 3

# --- inputs -----------------------------------------------------------------------------------------------------------


def numbers(*shapes):
    """One tensor of numbers, or one for each shape."""
    parts = tuple(torch.randn(ROWS, *shape) for shape in shapes)
    return parts[0] if len(parts) == 1 else parts


def vectors():
    return numbers((4,))


def images():
    return numbers((1, 3, 3))


def sequences():
    return numbers((4, 2))


def sentences():
    """Three vectors of four numbers."""
    return numbers((3, 4))


def tokens():
    return torch.randint(5, (ROWS, 3))


def masked():
    """Sentences, and which of their words are padding."""
    return sentences(), torch.tensor([[False, False, False], [False, False, True]]).repeat(ROWS // 2, 1)


# --- networks ---------------------------------------------------------------------------------------------------------


class Using(nn.Module):
    """A network of named parts, whose forward pass is a function of the network and its inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs, **named):
        return self.run(self, *inputs, **named)


def head(width):
    return nn.Linear(width, CLASSES)


def before_head(layer, width):
    """A layer, and a linear layer on all of its outputs."""
    return nn.Sequential(layer, nn.Tanh(), nn.Flatten(), head(width))


def around(layer):
    """A layer between two linear layers."""
    return nn.Sequential(nn.Linear(4, 4), layer, nn.Tanh(), head(4))


def after_convolution(layer):
    return nn.Sequential(nn.Conv2d(1, 4, 2), layer, nn.Tanh(), nn.Flatten(), head(16))


def last_state(layer, width):
    return Using(lambda net, x: net.head(net.layer(x)[0][:, -1]), layer=layer, head=head(width))


def cells(net, x):
    state = None
    for step in x.unbind(1):
        state = net.cell(step, state)
    return net.head(state[0])


def self_attention(net, x):
    return net.head(net.layer(x, x, x)[0].mean(1))


def cross_attention(net, x, memory):
    return net.head(net.layer(x, memory, memory)[0].mean(1))


def attention(run, **options):
    return Using(run, layer=nn.MultiheadAttention(4, 2, batch_first=True, **options), head=head(4))


SMALL = {"dim_feedforward": 6, "activation": "gelu", "batch_first": True}
"""Options of small transformers; a unit that is off in a draw would not say which."""


def encoder_layer(dropout=0.0):
    return nn.TransformerEncoderLayer(4, 2, dropout=dropout, **SMALL)


def pooled(layer):
    """A layer for sentences, and a linear layer on the mean over words; further inputs go to the first layer."""
    return Using(lambda net, *x: net.head(net.layer(*x).mean(1)), layer=layer, head=head(4))


def with_mask(net, x, mask):
    return net.head(net.layer(x, src_key_padding_mask=mask)[:, 0])


def masked_encoder():
    return Using(with_mask, layer=nn.TransformerEncoder(encoder_layer(), 2), head=head(4))


def decoder():
    layer = nn.TransformerDecoderLayer(4, 2, dropout=0.0, **SMALL)
    return pooled(nn.TransformerDecoder(layer, 1))


def transformer():
    return pooled(nn.Transformer(4, 2, 1, 1, dropout=0.0, **SMALL))


def vision_transformer():
    from torchvision.models import VisionTransformer

    net = VisionTransformer(4, 2, num_layers=1, num_heads=2, hidden_dim=4, mlp_dim=6, num_classes=CLASSES)
    nn.init.normal_(net.heads.head.weight)  # torchvision starts at zeros
    return net


def resnet18():
    from torchvision.models import resnet18

    return resnet18(num_classes=CLASSES)


def half_a_resnet18():
    """A ResNet-18 without the wide stages, whose ten million weights take long even to initialise."""
    with torch.device("meta"):
        net = resnet18()
    net.layer3, net.layer4, net.fc = nn.Identity(), nn.Identity(), head(128)
    net.to_empty(device="cpu")
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.BatchNorm2d, nn.Linear)):
            layer.reset_parameters()
    return net


def tied():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), head(4))


def language_model():
    table, last = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    last.weight = table.weight
    return Using(lambda net, x: net.last(torch.tanh(net.table(x)).sum(1))[:, :CLASSES], table=table, last=last)


def one_layer_twice():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), head(4))


def module_list():
    def run(net, x):
        for layer in net.layers:
            x = torch.tanh(layer(x))
        return net.head(x)

    return Using(run, layers=nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 4)]), head=head(4))


def module_dict():
    def run(net, x):
        return net.head(torch.cat([part(x) for part in net.parts.values()], -1))

    return Using(run, parts=nn.ModuleDict({"left": nn.Linear(4, 3), "right": nn.Linear(4, 2)}), head=head(5))


def nested():
    return nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 4))), nn.Tanh(), head(4))


def own_parameters():
    return Using(
        lambda net, x: torch.tanh(x * net.gain) @ net.table + net.shift,
        gain=nn.Parameter(torch.randn(())),
        table=nn.Parameter(torch.randn(4, CLASSES)),
        shift=nn.Parameter(torch.zeros(CLASSES)),
    )


def parameter_list():
    tables = nn.ParameterList([torch.randn(4, 4), torch.randn(4, CLASSES)])
    return Using(lambda net, x: torch.tanh(x @ net.tables[0]) @ net.tables[1], tables=tables)


def parameter_dict():
    tables = nn.ParameterDict({"first": torch.randn(4, 4), "last": torch.randn(4, CLASSES)})
    return Using(lambda net, x: torch.tanh(x @ net.tables["first"]) @ net.tables["last"], tables=tables)


def asking_for_parameters():
    """Makes its initial state as in many tutorials."""

    def run(net, x):
        state = next(net.parameters()).new_zeros(1, len(x), 3)
        return net.head(net.layer(x, state)[0][:, -1])

    return Using(run, layer=nn.GRU(2, 3, batch_first=True), head=head(3))


def keeping_its_output():
    """Keeps a tensor that it computed, for later use."""

    def run(net, x):
        net.kept = [net.layer(x)]
        return net.head(net.kept[0].tanh())

    return Using(run, layer=nn.Linear(4, 4), head=head(4))


def with_constants():
    """Has parameters that no fit can change."""

    def run(net, x):
        return net.head(x) * net.factor

    return Using(
        run,
        head=head(4),
        factor=nn.Parameter(torch.tensor(2), requires_grad=False),
        empty=nn.Parameter(torch.zeros(0, 3)),
    )


def quietly(make, layer):
    """The old functions of `torch.nn.utils` warn that there are new ones."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return around(make(layer))


def masked_weights():
    net = around(nn.Linear(4, 4))
    l1_unstructured(net[1], "weight", amount=0.5)
    return net


def with_weight_norm_inside():
    layer = parametrizations.weight_norm(nn.LSTM(2, 3, batch_first=True), "weight_hh_l0")
    return last_state(layer, 3)


def backbone():
    return nn.Sequential(nn.Linear(4, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), head(5))
