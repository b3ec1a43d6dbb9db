"""Objects that are not data or not batches are refused with a remedy."""

import itertools

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from .test_batches import FRAME, PAIRS, Loader, Stream, X, Y, batches, passes, shuffled

SPARSE = torch.eye(7).to_sparse()

REFUSED = {
    "tensor": (X, r"must be a pair \(x, y\) of tensors or arrays, or a loader .*, got Tensor; pass \(x, y\)"),
    "array": (X.numpy(), r"got ndarray; pass \(x, y\)"),
    "frame": (FRAME, r"got DataFrame; pass \(x, y\)"),
    "path": ("train.csv", r"got str; pass \(x, y\)"),
    "number": (3, r"got int; pass \(x, y\)"),
    "none": (None, r"got NoneType; pass \(x, y\)"),
    "dictionary": ({"x": X, "y": Y}, r"a pair \(x, y\) of .*, got a dictionary with the keys \['x', 'y'\]; pass"),
    "data-set": (
        TensorDataset(X, Y),
        r"got the data set TensorDataset; pass `DataLoader\(data, batch_size=..., shuffle=True\)`",
    ),
    "stream": (Stream(), r"got the data set Stream; pass `DataLoader\(data, batch_size=...\)`, with"),
    "empty-tuple": ((), r"`data` must be a tuple of tensors, got an empty one"),
    "empty-list": ([], r"`data` must be a tuple of tensors, got an empty one"),
    "x-alone": ((X,), r"`data` must be a pair \(x, y\), got 1 part\b; pass several inputs as \(\(x_1, x_2\), y\)"),
    "three": ((X, X, Y), r"`data` must be a pair \(x, y\), got 3 parts"),
    "tuple-of-batches": (tuple(PAIRS), r"got 3 parts; .*and batches as a list or a loader of pairs"),
    "two-batches": ((PAIRS[0], PAIRS[0]), r"`y` must be one tensor or array, or a list of numbers, but `y\[0\]` is of"),
    "no-rows": ((X[:0], Y[:0]), r"`data` has no rows; pass at least one"),
    "rows": ((X[:5], Y), r"`x` and `y` must have the same number of rows, got shapes \(5, 2\) and \(7,\)"),
    "rows-of-inputs": (((X, X[:5]), Y), r"same number of rows, got 7 in `x\[0\]` and 5 in `x\[1\]`"),
    "rows-of-named": (({"a": X, "b": Y}, Y[:3]), r"got shapes \{'a': \(7, 2\), 'b': \(7,\)\} and \(3,\)"),
    "text": ((FRAME.assign(city="a"), Y), r"column 'city' of `x` must hold numbers"),
    "no-targets": ((X, None), r"`y` must be a tensor, an array, .* got NoneType"),
    "sparse": ((SPARSE, Y), r"`x` must be a dense tensor, got torch.sparse_coo"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_data_is_refused_in_a_sentence(name):
    data, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        batches(data, num_data=7)


def test_a_batch_size_is_for_tensors():
    with pytest.raises(ValueError, match="`batch_size` must be left out with a loader"):
        batches(PAIRS, 3)
    with pytest.raises(ValueError, match="`batch_size` must be a whole number of at least 1, got 0"):
        batches((X, Y), 0)


@pytest.mark.parametrize("loader", [DataLoader(Stream()), (pair for pair in PAIRS), Loader(PAIRS)])
def test_without_a_length_the_number_of_data_must_be_known(loader):
    with pytest.raises(ValueError, match=r"must be a DataLoader or a tuple of tensors, got .* without a length"):
        batches(loader)


@pytest.mark.parametrize("loader", [DataLoader(TensorDataset(X[:0], Y[:0])), iter([]), Loader([])])
def test_an_empty_loader_is_told_at_once(loader):
    with pytest.raises(ValueError, match="the loader is empty; pass one with at least one batch"):
        batches(loader, num_data=7)


BAD_BATCHES = {
    "dictionary": ({"image": X, "label": Y}, r"got a dictionary with the keys \['image', 'label'\]; .*`collate_fn`"),
    "no-targets": (
        X,
        r"a batch must be a pair \(x, y\), got one tensor, without targets; let the loader",
    ),
    "one-part": ((X,), r"a batch must be a pair \(x, y\), got 1 part;"),
    "three-parts": ((X, X, Y), r"got 3 parts; let the loader give \(x, y\), with several inputs as \(\(x_1, x_2\)"),
    "text": ("abc", r"a batch must be a pair \(x, y\), got str"),
    "number": (3.0, r"a batch must be a pair \(x, y\), got float"),
    "none": (None, r"a batch must be a pair \(x, y\), got NoneType"),
    "empty": ((X[:0], Y[:0]), r"a batch must have at least one row, got none; leave out empty batches"),
    "rows": ((X[:5], Y), r"`x` and `y` must have the same number of rows, got shapes \(5, 2\) and \(7,\)"),
    "texts": ((["a", "b"], [0, 1]), r"`x` must be a list of numbers, but `x\[0\]` is 'a'"),
    "targets": ((X, (Y, Y)), r"`y` must be one tensor"),
    "inputs": (((X, X), Y), r"must have the same inputs, got \['x\[0\]', 'x\[1\]', 'y'\] after \['x', 'y'\]"),
    "names": (({"a": X}, Y), r"must have the same inputs, got \[\"x\['a'\]\", 'y'\] after"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
@pytest.mark.parametrize("length", [2, None])
def test_a_bad_batch_is_named_with_its_place(name, length):
    batch, message = BAD_BATCHES[name]
    source = batches(Loader([(X, Y), batch], length), num_data=14).epoch(4)
    next(source)
    with pytest.raises(ValueError, match=f"batch 1 of epoch 4: .*{message}"):
        next(source)


def test_a_bad_first_batch_is_named_when_it_is_looked_at():
    with pytest.raises(ValueError, match=r"batch 0: a batch must be a pair \(x, y\), got 1 part"):
        batches([(X,)]).first()


@pytest.mark.parametrize(("batch", "got"), [({"x": X}, "a dictionary"), (None, "NoneType"), ((), r"0 parts")])
def test_a_batch_for_a_model_of_ones_own_is_a_tuple(batch, got):
    with pytest.raises(ValueError, match=f"batch 0: a batch must be a tuple of the model's arguments, got {got}"):
        batches([batch, (X,)], paired=False).first()


def test_a_loader_that_lies_about_its_length():
    with pytest.raises(
        ValueError, match=r"has length 5 but gave 3 batch\(es\) in epoch 0; correct or remove its length"
    ):
        passes(batches(Loader(PAIRS, 5)))
    with pytest.raises(ValueError, match="has length 2 but gave more batches in epoch 0; correct or remove its length"):
        passes(batches(Loader(PAIRS, 2)))


def test_an_endless_loader_is_stopped():
    class Endless(Loader):
        def __iter__(self):
            return itertools.cycle(self.items)

    for data in (Endless(PAIRS), itertools.cycle(PAIRS)):
        with pytest.raises(ValueError, match="has no length and gave 17 rows in epoch 0, but `num_data` is 7"):
            passes(batches(data, num_data=7))
    twice = [*PAIRS, *PAIRS]  # a whole second pass is not endless
    assert len(passes(batches(Loader(twice), num_data=7))[0]) == 6


def test_to_go_on_with_other_data_is_refused():
    with pytest.raises(ValueError, match=r"gave 3 batch\(es\) in epoch 2, but the fit must continue at batch 5"):
        batches(PAIRS).epoch(2, skip=5)
    with pytest.raises(ValueError, match=r"state of 1 generator of the loader, but this loader has 0; resume with"):
        batches(PAIRS).restore_order(batches(shuffled("loader")).order_state())
