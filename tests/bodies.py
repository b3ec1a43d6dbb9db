"""Networks of a body and a random head, for which it is hard to tell which modules must run in every draw."""

import torch
from torch import nn

NUM_DRAWS = 4
"""Draws of a prediction for which runs are counted."""


class Counted(nn.Module):
    """Runs a module, and counts how often."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        CALLS.append(1)
        return self.inner(*args)


CALLS = []
"""One entry for each run of a :class:`Counted`; kept outside of the modules, which must not change."""


class Through(nn.Module):
    """A body, and a function from its features and a head to the output."""

    def __init__(self, function, body=None, head=None):
        super().__init__()
        self.body = nn.Linear(4, 6) if body is None else body
        self.head, self.function = nn.Linear(6, 3) if head is None else head, function

    def forward(self, x):
        return self.function(self, x)


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Attending(nn.Module):
    """Attention of two positions, whose operation torch marks as random even without dropout."""

    def __init__(self, dropout):
        super().__init__()
        self.dropout, self.layer = dropout, nn.Linear(4, 6)

    def forward(self, x):
        h = self.layer(x).view(-1, 1, 2, 3)
        return nn.functional.scaled_dot_product_attention(h, h, h, dropout_p=self.dropout).flatten(1)


class Counting(nn.Module):
    """Its result depends on how often it was called."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return x * self.count


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(1)
        return x * len(self.seen)


class Borrowing(nn.Module):
    """Has no parameter of its own, and uses one of another module."""

    def __init__(self, layer):
        super().__init__()
        self.layers = [layer]  # in a list, modules are not registered

    def forward(self, x):
        return x @ self.layers[0].weight.mT


class Dictionary(nn.Module):
    def forward(self, x):
        return {"features": [x, (x.square(),)], "size": 3}


class Own(dict):
    """A container whose items the library cannot find."""


class Opaque(nn.Module):
    def forward(self, x):
        return Own(features=x.square())


class Sampled(nn.Module):
    """Runs a random layer first, then a fixed one, on integers that have no gradient."""

    def __init__(self):
        super().__init__()
        self.head, self.table, self.body = nn.Linear(4, 6), nn.Embedding(6, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.table(self.head(x).argmax(-1)) + self.body(x)


def borrowing():
    net = Through(lambda self, x: self.head(self.body(x)))
    net.body = nn.Sequential(nn.Linear(4, 6), Borrowing(net.head), nn.Linear(3, 6))
    return net


def several_calls(self, x):
    return self.head(self.body(x) + self.body(2 * x).relu())


def changed_in_place(self, x):
    features = self.body(x)
    features += 1
    return self.head(features.relu_())


def changed_under_another_name(self, x):
    features = self.body[0](x)
    same = self.body[1](features)
    same += 1
    return self.head(features)


def changed_view(self, x):
    features = self.body(x)
    features[:, :2] = 0
    return self.head(features) + features.sum()


def used_before_and_after(self, x):
    features = self.body[0](x)
    before = features.sum(-1, keepdim=True)
    after = self.body[1](features)
    return self.head(features + after) + before


def one_of_two_ways(self, x):
    """The branch, and so the first call, depends on the drawn weights."""
    if float(self.head.weight.sum()) > 0:
        return self.head(self.body(x))
    return self.head(self.body(-x) + self.body(x))


def conv_net():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 3, 2, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(3, 3),
    )


def transformer():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Unflatten(1, (1, 4)), encoder, nn.Flatten(), nn.Linear(4, 3))


def tied():
    body = nn.Linear(4, 4)
    net = nn.Sequential(body, nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 3))
    net[2].weight = body.weight
    return net


def hooked():
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    net[0].register_forward_hook(lambda *_: _[2] * torch.rand(()))
    return net


def with_body(*layers):
    return lambda: nn.Sequential(nn.Linear(4, 6), *layers, nn.Linear(6, 3))


def through(function, *body):
    return lambda: Through(function, nn.Sequential(nn.Linear(4, 6), *body) if body else None)


# name -> (network of four inputs and three outputs, where, number of runs of the first layer of its body: a call that
# turns out not to be repeatable costs one more; None if it runs in every draw)
NETWORKS = {
    "sequence": (with_body(nn.Tanh()), "net.2.**", 1),
    "convolutions": (conv_net, "net.6.**", 1),
    "transformer": (transformer, "net.3.**", 1),
    "attention": (lambda: Through(lambda s, x: s.head(s.body(x)), Attending(0.0)), "net.head.**", 1),
    "attention with dropout": (lambda: Through(lambda s, x: s.head(s.body(x)), Attending(0.5)), "net.head.**", None),
    "tied": (tied, "net.3.**", 1),
    "tied and random": (tied, "net.2.**", None),
    "random in the middle": (lambda: nn.Sequential(*with_body()(), nn.Linear(3, 3)), "net.1.**", 1),
    "random first": (with_body(), "net.0.**", None),
    "several calls": (through(several_calls), "net.head.**", 2),
    "changed in place": (through(changed_in_place), "net.head.**", 1),
    "changed view": (through(changed_view), "net.head.**", 1),
    "under another name": (through(changed_under_another_name, nn.Identity()), "net.head.**", None),
    "before and after": (through(used_before_and_after, nn.ReLU(inplace=True)), "net.head.**", 2),
    "one of two ways": (through(one_of_two_ways), "net.head.**", None),
    "integers": (Sampled, "net.head.**", 1),
    "noise": (with_body(Noisy()), "net.2.**", 2),
    "noise of a part": (lambda: nn.Sequential(nn.Sequential(*with_body(Noisy())()), nn.Linear(3, 3)), "net.1.**", 3),
    "counter": (with_body(Counting()), "net.2.**", 2),
    "counter first": (lambda: nn.Sequential(Counting(), nn.Linear(4, 6), nn.Linear(6, 3)), "net.2.**", None),
    "list": (with_body(Remembering()), "net.2.**", 2),
    "borrowed weight": (borrowing, "net.head.**", 3),
    "hook": (hooked, "net.1.**", None),
    "several results": (through(lambda s, x: s.head(s.body(x)["features"][1][0]), Dictionary()), "net.head.**", 1),
    "opaque result": (through(lambda s, x: s.head(s.body(x)["features"]), Opaque()), "net.head.**", 3),
    "recurrent": (
        lambda: Through(lambda s, x: s.head(s.body(x[:, None])[0][:, -1]), nn.LSTM(4, 6, 2, batch_first=True)),
        "net.head.**",
        1,
    ),
}


def counting_body(net):
    """The network, with its first layer counted."""
    owner, name = (net, "0") if isinstance(net, nn.Sequential) else (net, "body")
    if isinstance(getattr(owner, name), nn.Sequential):
        owner, name = getattr(owner, name), "0"
    setattr(owner, name, Counted(getattr(owner, name)))
    return net
