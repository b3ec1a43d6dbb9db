"""Batches of all kinds: each kind becomes pairs of tensors in the right order, or is refused with a message."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from pyro_bnn.inference.svi._batches import Batches

X, Y = torch.arange(14.0).view(7, 2), torch.arange(7)
SINGLE = torch.zeros(1, dtype=torch.float32)


def batches(data, batch_size=None, *, paired=True, num_data=None, like=None, device=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return Batches(data, batch_size, device, generator, like, paired=paired, num_data=num_data)


def passes(source, num_epochs=1):
    """Targets of each batch of each epoch."""
    return [[y.tolist() for _, y in source.epoch(number)] for number in range(num_epochs)]


class Stream(IterableDataset):
    """Rows without a length."""

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


class Loader:
    """A loader whose stated length is wrong or missing."""

    def __init__(self, items, length=None):
        self.items, self.length = items, length

    def __len__(self):
        if self.length is None:
            raise NotImplementedError
        return self.length

    def __iter__(self):
        return iter(self.items)


PAIRS = [(X[:3], Y[:3]), (X[3:6], Y[3:6]), (X[6:], Y[6:])]


# --- all rows at once -------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(0, 3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_row_comes_once_an_epoch_with_its_own_target(batch_size, skip, as_tree):
    x = {"a": X, "b": [X[:, 0], (X[:, 1:],)]} if as_tree else X
    source = batches((x, Y), batch_size)
    assert source.num_batches == len(source.tensors[1].split(batch_size))
    for _ in range(2):
        found = list(source.epoch())
        assert len(found) == source.num_batches
        rows = torch.cat([y for _, y in found])
        assert sorted(rows.tolist()) == Y.tolist()
        for x, y in found:
            parts = [x["a"], torch.stack([x["b"][0], x["b"][1][0][:, 0]], 1)] if as_tree else [x]
            assert all(torch.equal(part, X[y]) for part in parts)
    state = source.order_state()
    complete = passes(source)[0]
    source.restore_order(state)
    assert [y.tolist() for _, y in source.epoch(skip=skip)] == complete[skip:]


def test_the_order_is_one_permutation_an_epoch_from_the_generator():
    source = batches((X, Y), 3, seed=5)
    example = source.first()
    assert example[1].tolist() == [0, 1, 2]
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        order = torch.randperm(7, generator=generator)
        assert torch.equal(torch.cat([y for _, y in source.epoch()]), order)


def test_one_batch_of_all_rows_draws_nothing_and_copies_nothing():
    source = batches((X, Y))
    state = source.order_state()
    (batch,) = source.epoch()
    assert batch[0] is X
    assert source.first()[0] is X
    assert list(source.epoch(skip=1)) == []
    assert torch.equal(source.order_state()[0], state[0])


FRAME = pd.DataFrame({"a": X[:, 0].numpy(), "b": X[:, 1].int().numpy()})


@pytest.mark.parametrize(
    "data",
    [
        (X.numpy(), Y.numpy()),
        (X.tolist(), Y.tolist()),
        (FRAME, pd.Series(Y.numpy())),
        [X.numpy(), Y],
        (X.numpy()[::-1], tuple(Y.tolist()[::-1])),
    ],
)
def test_arrays_lists_and_frames_get_the_dtype_of_the_model(data):
    source = batches(data, 3, like=SINGLE)
    x, y = (torch.cat(parts) for parts in zip(*source.epoch(), strict=True))
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
    assert torch.equal(x, X[y].float())


def test_tensors_are_moved_and_keep_their_dtype():
    meta = torch.device("meta")
    for data in ((X, Y), PAIRS):
        x, y = batches(data, device=meta, like=SINGLE).first()
        assert (x.device, y.device) == (meta, meta)
        assert x.dtype == X.dtype


# --- loaders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loader", "num_batches"),
    [
        (PAIRS, 3),
        ([list(pair) for pair in PAIRS], 3),
        ([(x.numpy(), y.numpy()) for x, y in PAIRS], 3),
        ([(x.tolist(), y.tolist()) for x, y in PAIRS], 3),
        (DataLoader(TensorDataset(X, Y), batch_size=3), 3),
        (DataLoader(Stream(), batch_size=3), 3),
        (DataLoader(Stream(), batch_size=2), 4),
        (Loader(PAIRS), 3),
        (Loader(PAIRS, 3), 3),
    ],
)
def test_all_kinds_of_loaders_give_their_batches_in_their_order(loader, num_batches):
    source = batches(loader, num_data=7, like=SINGLE.double())
    assert source.num_batches == num_batches
    for targets in passes(source, 2):
        assert list(itertools.chain(*targets)) == Y.tolist()
    assert [y.tolist() for _, y in source.epoch(skip=2)] == passes(source)[0][2:]
    source.require_passes(9)


def test_a_generator_serves_for_one_epoch_and_its_first_batch_is_not_lost():
    source = batches((pair for pair in PAIRS), num_data=7)
    assert source.num_batches == 3
    assert source.first()[1].tolist() == [0, 1, 2]
    source.require_passes(1)
    with pytest.raises(ValueError, match="`data` must start anew in each of 2 epochs, got a generator or iterator"):
        source.require_passes(2)
    assert passes(source) == [[[0, 1, 2], [3, 4, 5], [6]]]
    with pytest.raises(ValueError, match="the loader gave no batch in epoch 1; pass one that starts anew at each iter"):
        list(source.epoch(1))


def test_the_number_of_batches_without_a_length_is_estimated_and_a_wrong_estimate_loses_none():
    uneven = [(X[:2], Y[:2]), (X[2:], Y[2:])]
    source = batches(Loader(uneven), num_data=7)
    assert source.num_batches == 4
    assert passes(source) == [[[0, 1], [2, 3, 4, 5, 6]]]


def test_the_length_of_an_iterable_data_set_is_an_estimate_too():
    """With several workers torch cannot know the number of batches: each worker may end with a small batch."""

    class Sized(Stream):
        def __len__(self):
            return 30

    source = batches(DataLoader(Sized(), batch_size=3))
    assert source.num_batches == 10
    assert passes(source) == [[[0, 1, 2], [3, 4, 5], [6]]]


def test_several_and_named_inputs_of_a_loader():
    rows = [{"image": x, "age": x[0]} for x in X]
    loader = DataLoader(list(zip(rows, Y, strict=True)), batch_size=4)
    (x, y), _ = batches(loader).epoch()
    assert torch.equal(x["image"], X[:4])
    assert torch.equal(x["age"], X[:4, 0])
    assert torch.equal(y, Y[:4])
    (x, _), _ = batches(DataLoader([((a, a[:1]), b) for a, b in zip(X, Y, strict=True)], batch_size=4)).epoch()
    assert [tuple(part.shape) for part in x] == [(4, 2), (4, 1)]


def shuffled(kind):
    data, generator = TensorDataset(X, Y), torch.Generator().manual_seed(3)
    if kind == "loader":
        return DataLoader(data, batch_size=2, shuffle=True, generator=generator)
    if kind == "sampler":
        return DataLoader(data, batch_size=2, sampler=RandomSampler(data, generator=generator))
    if kind == "batches":  # the data set gives whole batches
        order = BatchSampler(RandomSampler(data, generator=generator), 2, drop_last=False)
        return DataLoader(data, batch_size=None, sampler=order)
    return DataLoader(data, batch_size=2, shuffle=True)


@pytest.mark.parametrize(("kind", "num_generators"), [("loader", 1), ("sampler", 1), ("batches", 1), ("global", 0)])
def test_an_epoch_goes_on_in_the_middle_with_the_batches_that_were_left(kind, num_generators):
    source = batches(shuffled(kind))
    passes(source, 2)
    order, of_torch = source.order_state(), torch.get_rng_state()
    assert len(order) == 1 + num_generators
    complete = passes(source)[0]
    after = passes(source)[0]
    assert after != complete
    for skip in range(5):
        again = batches(shuffled(kind))
        passes(again)  # whatever was drawn before
        again.restore_order(order)
        torch.set_rng_state(of_torch)
        assert [y.tolist() for _, y in again.epoch(skip=skip)] == complete[skip:]
        assert passes(again)[0] == after


def test_skipped_batches_are_fetched_at_once_and_others_when_they_are_needed():
    fetched = []

    def fetch():
        for index, pair in enumerate(PAIRS):
            fetched.append(index)
            yield pair

    class Lazy(Loader):
        def __iter__(self):
            return fetch()

    rest = batches(Lazy(None, 3)).epoch(skip=2)
    assert fetched == [0, 1]
    assert next(rest)[1].tolist() == [6]
    assert fetched == [0, 1, 2]


def test_a_distributed_sampler_gets_a_new_order_in_each_epoch():
    data = TensorDataset(X, Y)
    source = batches(DataLoader(data, batch_size=7, sampler=DistributedSampler(data, 1, 0)))
    first, second = passes(source, 2)
    assert first != second
    assert sorted(first[0]) == sorted(second[0])
    assert passes(source, 2) == [first, second]


def test_arrays_of_a_loader_are_numbers_of_the_model():
    x, y = batches([(np.ones((3, 2)), np.array([0, 1, 2], "i4"))], like=SINGLE).first()
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


# --- models of one's own ----------------------------------------------------------------------------------------------


def test_a_model_of_ones_own_gets_any_tuple_of_arguments():
    source = batches((X, Y, {"a": X}), 3, paired=False)
    for x, y, named in source.epoch():
        assert torch.equal(named["a"], x)
        assert torch.equal(x, X[y])
    loader = [(X, {"a": [X, X.numpy()]}, None, "text", 3)]
    device = torch.device("meta")
    (batch,) = batches(loader, paired=False, device=device).epoch()
    assert batch[0].device == batch[1]["a"][0].device == batch[1]["a"][1].device == device
    assert batch[2:] == (None, "text", 3)
    assert [x.shape[0] for (x,) in batches(DataLoader(X, batch_size=4), paired=False).epoch()] == [4, 3]
    (only,) = batches((X,), paired=False).epoch()
    assert len(only) == 1
