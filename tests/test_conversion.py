"""Inputs and targets of all types: each becomes the right tensor, or is refused with a message."""

import decimal
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn
from torch.utils.data import DataLoader

from pyro_bnn._core import inputs as _inputs

SINGLE = torch.zeros(1, dtype=torch.float32)
FRAME = pd.DataFrame({"age": [31.5, 4.0, 7.25], "rooms": [3, 1, 2], "new": [True, False, True]})


# --- what is taken ----------------------------------------------------------------------------------------------------

KINDS = st.sampled_from(["f2", "f4", "f8", "g", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "?"])


@given(
    kind=KINDS,
    order=st.sampled_from("<>"),
    shape=arrays.array_shapes(min_dims=1, max_dims=3, max_side=4),
    flips=st.lists(st.integers(0, 2), max_size=2),
    writable=st.booleans(),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_every_array_of_numbers_keeps_its_numbers(kind, order, shape, flips, writable, data):
    """Arrays of any byte order, memory layout and flags."""
    values = data.draw(arrays.arrays(np.int8, shape, elements=st.integers(0, 1 if kind == "?" else 100)))
    array = values.astype(np.dtype(kind).newbyteorder(order))
    for axis in flips:
        array = np.flip(array, axis % array.ndim)
    array = array.T
    array.flags.writeable = writable
    expected = array.astype(np.float64).tolist()
    tensor = _inputs.as_inputs("x", array, SINGLE)
    wanted = {"f": torch.float32, "b": torch.bool}.get(array.dtype.kind, torch.int64)
    assert tensor.dtype == wanted
    assert tensor.double().tolist() == expected
    assert torch.equal(tensor, _inputs.as_targets("y", array, SINGLE))


def test_floats_get_the_dtype_of_the_model_and_without_a_model_the_default_one():
    x = np.random.default_rng(0).normal(size=(3, 2))
    assert _inputs.as_inputs("x", x, SINGLE).dtype == torch.float32
    assert _inputs.as_inputs("x", x.astype(np.float32), SINGLE.double()).dtype == torch.float64
    assert _inputs.as_inputs("x", x, SINGLE.bfloat16()).dtype == torch.bfloat16
    assert _inputs.as_inputs("x", x.astype(np.float32)).dtype == torch.get_default_dtype()


def test_odd_layouts_of_memory():
    record = np.zeros(3, dtype=[("flag", "u1"), ("value", "<f4")])
    record["value"] = [1, 2, 3]
    assert _inputs.as_inputs("x", record["value"], SINGLE).tolist() == [1, 2, 3]  # strides of 5 bytes
    assert _inputs.as_inputs("x", np.broadcast_to(np.float64(2), (2, 2)), SINGLE).tolist() == [[2, 2], [2, 2]]
    assert _inputs.as_inputs("x", np.ma.masked_array([1.0, 2.0]), SINGLE).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "expected", "dtype"),
    [
        ([1.0, 2.0], [1.0, 2.0], torch.float32),
        ([1, 2], [1, 2], torch.int64),
        ([True, False], [True, False], torch.bool),
        ([1, 2.5], [1.0, 2.5], torch.float32),
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]], torch.int64),
        ([(1.0, 2.0), (3.0, 4.0)], [[1.0, 2.0], [3.0, 4.0]], torch.float32),
        ([np.float32(1.0), np.int64(2)], [1.0, 2.0], torch.float32),
        ([], [], torch.float32),
    ],
)
def test_a_list_of_numbers_is_one_array(value, expected, dtype):
    for tensor in (_inputs.as_inputs("x", value, SINGLE), _inputs.as_targets("y", value, SINGLE)):
        assert tensor.tolist() == expected
        assert tensor.dtype == dtype


def test_a_tuple_of_numbers_is_an_array_of_targets():
    assert _inputs.as_targets("y", (1, 2, 0), SINGLE).tolist() == [1, 2, 0]


def test_data_frames_column_by_column():
    expected = [[31.5, 3, 1], [4.0, 1, 0], [7.25, 2, 1]]
    assert _inputs.as_inputs("x", FRAME, SINGLE).tolist() == expected
    assert _inputs.as_inputs("x", FRAME, SINGLE).dtype == torch.float32
    nullable = FRAME.convert_dtypes()
    assert nullable["rooms"].dtype == "Int64"
    assert _inputs.as_inputs("x", nullable, SINGLE).tolist() == expected
    twice = pd.concat([FRAME, FRAME], axis=1)  # names that are there twice
    assert _inputs.as_inputs("x", twice, SINGLE).shape == (3, 6)
    assert _inputs.as_targets("y", FRAME["rooms"], SINGLE).dtype == torch.int64
    assert _inputs.as_targets("y", FRAME["age"], SINGLE).dtype == torch.float32
    assert _inputs.as_targets("y", nullable["new"], SINGLE).dtype == torch.bool
    assert _inputs.as_targets("y", FRAME[["age"]], SINGLE).shape == (3, 1)
    assert _inputs.as_targets("y", pd.Index([2, 0, 1]), SINGLE).tolist() == [2, 0, 1]
    assert _inputs.as_targets("y", pd.Series([1, 0, 1], dtype="category"), SINGLE).tolist() == [1, 0, 1]
    assert _inputs.as_inputs("x", FRAME[::-1], SINGLE).tolist() == expected[::-1]


def test_other_arrays_by_their_protocol():
    class Array:
        def __array__(self, dtype=None, copy=None):
            return np.array([[1.0, 2.0]])

    assert _inputs.as_inputs("x", Array(), SINGLE).tolist() == [[1, 2]]


def test_several_inputs_keep_their_structure():
    x = {"a": np.ones((3, 2)), "b": (FRAME, [[1.0], [2.0], [3.0]]), "c": [torch.zeros(3), np.arange(3)]}
    converted = _inputs.as_inputs("x", x, SINGLE)
    assert _inputs.shapes(converted) == {"a": (3, 2), "b": ((3, 3), (3, 1)), "c": ((3,), (3,))}
    names = [name for name, _ in _inputs.named_leaves("x", converted)]
    assert names == ["x['a']", "x['b'][0]", "x['b'][1]", "x['c'][0]", "x['c'][1]"]
    assert [leaf.dtype for leaf in _inputs.leaves(converted)][-2:] == [torch.float64, torch.int64]
    assert _inputs.num_rows(converted) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32, torch.uint8, torch.bool])
def test_tensors_are_never_changed(dtype):
    x = torch.zeros(3, 2).to(dtype)
    assert _inputs.as_inputs("x", x, SINGLE) is x
    assert _inputs.as_targets("y", x, SINGLE) is x
    assert _inputs.as_inputs("x", (x, [1.0] * 3), SINGLE)[0] is x


def test_no_warning_and_no_shared_memory_for_what_must_not_be_written():
    array = np.ones((2, 2), dtype=np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _inputs.as_inputs("x", array, SINGLE).add_(1)
    assert array.tolist() == [[1, 1], [1, 1]]


# --- what is refused --------------------------------------------------------------------------------------------------


def masked():
    return np.ma.masked_array([1.0, 2.0], mask=[True, False])


def without_warnings(make):
    """The function, without torch's warnings that such tensors are experimental or deprecated."""

    def quiet():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()

    return quiet


@without_warnings
def nested():
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)


def packed():
    return nn.utils.rnn.pack_sequence([torch.zeros(3), torch.zeros(2)])


@without_warnings
def quantized():
    return torch.quantize_per_tensor(SINGLE, 0.1, 0, torch.quint8)


REFUSED = {
    "number": (3.0, r"`x` must be a tensor, an array, .* got the number 3.0"),
    "numpy-number": (np.float64(3.0), r"`x` must be a tensor, an array, .* got the number 3.0"),
    "none": (None, r"`x` must be a tensor, an array, .* got NoneType"),
    "text": ("train.csv", r"`x` must be a tensor, an array, .* got str"),
    "set": ({1.0, 2.0}, r"got set"),
    "function": (len, r"got builtin_function_or_method"),
    "class": (np.ndarray, r"got type"),
    "loader": (DataLoader([1, 2]), r"got DataLoader"),
    "texts": (["a", "b"], r"`x` must be a list of numbers, but `x\[0\]` is 'a'"),
    "missing": ([[1.0, None], [2.0, 3.0]], r"`x\[0\]` must be a list of numbers, but `x\[0\]\[1\]` is None"),
    "mixed": ([1.0, torch.zeros(2)], r"but `x\[1\]` is of type Tensor"),
    "ragged": ([[1.0, 2.0], [3.0]], r"`x` must have rows of the same length, got a ragged list; pad"),
    "decimal": ([decimal.Decimal(1)], r"`x` must hold numbers, got dtype object; convert it, such as by `.astype"),
    "huge-integers": ([2**70], r"`x` must hold numbers, got dtype object"),
    "objects": (np.array([1.0, None]), r"`x` must hold numbers, got dtype object; convert"),
    "strings": (np.array(["a", "b"]), r"`x` must hold numbers, got dtype <U1; encode texts as whole numbers"),
    "bytes": (np.array([b"a"]), r"got dtype \|S1; encode texts"),
    "dates": (np.array(["2020-01-01"], "M8[D]"), r"got dtype datetime64\[D\]; convert dates to numbers"),
    "durations": (np.array([3], "m8[s]"), r"got dtype timedelta64\[s\]; convert durations"),
    "records": (np.zeros(2, [("a", "f8")]), r"pass each field as a column"),
    "complex-array": (np.array([1j]), r"`x` must hold numbers, got dtype complex128; pass real and imaginary"),
    "complex-list": ([1j, 2.0], r"got dtype complex128"),
    "unsigned": (np.array([2**64 - 1], np.uint64), r"whole numbers below 2\*\*63, got 18446744073709551615"),
    "out-of-range": (np.array([1.0, -1e300, np.nan]), r"in the range of torch.float32, got 1e\+300; rescale"),
    "array-0d": (np.array(3.0), r"`x` must have at least one row, got shape \(\)"),
    "masked": (masked, r"`x` must have no masked values"),
    "scipy": (scipy.sparse.eye(3, format="csr"), r"`x` must be dense, .*csr.*; call `x.toarray\(\)`"),
    "frame-text": (FRAME.assign(city=["a", "b", "c"]), r"column 'city' of `x` must hold numbers, got dtype .*; "),
    "frame-category": (
        FRAME.assign(city=pd.Categorical(["a", "b", "a"])),
        r"column 'city' of `x` must hold .*category",
    ),
    "frame-date": (FRAME.assign(day=pd.Timestamp("2020-01-01")), r"column 'day' of `x` .* convert dates"),
    "frame-zone": (FRAME.assign(day=pd.Timestamp("2020-01-01", tz="UTC")), r"column 'day' of `x` must hold numbers"),
    "frame-missing": (FRAME.assign(age=[1.0, np.nan, np.nan]), r"column 'age' of `x` has 2 missing values of 3"),
    "frame-na": (FRAME.assign(rooms=pd.array([1, None, 2], "Int64")), r"column 'rooms' of `x` has 1 missing value"),
    "frame-empty": (FRAME[[]], r"`x` must have at least one column"),
    "series-na": (pd.Series([1, None], dtype="Int64"), r"`x` has 1 missing value of 2; fill them"),
    "series-text": (pd.Series(["a"]), r"`x` must hold numbers"),
    "pandas-array": (pd.array([1, None], "Int64"), r"`x` has 1 missing value"),
    "sparse": (lambda: torch.eye(3).to_sparse(), r"must be a dense tensor, got torch.sparse_coo; .*to_dense\(\)"),
    "sparse-rows": (
        without_warnings(lambda: torch.eye(3).to_sparse_csr()),
        r"got torch.sparse_csr; call `x.to_dense",
    ),
    "nested": (nested, r"`x` must not be nested; call `torch.nested.to_padded_tensor`"),
    "packed": (packed, r"got a PackedSequence; call `pad_packed_sequence`"),
    "meta": (lambda: torch.zeros(3, device="meta"), r"`x` must have values, got a tensor on the meta device"),
    "quantized": (quantized, r"`x` must not be quantized, got torch.quint8; call `x.dequantize\(\)`"),
    "complex": (lambda: torch.zeros(3, dtype=torch.complex64), r"`x` must be real, got torch.complex64"),
    "tensor-0d": (lambda: torch.tensor(3.0), r"`x` must have at least one row, got shape \(\); call `x.reshape"),
}
"""name -> (value, or a function without arguments that makes it; sentence)"""

STRUCTURES = {
    "tuple-of-numbers": ((1.0, 2.0), r"`x` must not be a tuple of numbers, as a tuple means several inputs; pass"),
    "tuple-with-number": ((np.ones(2), 3), r"`x\[1\]` must be a tensor, .* got the number 3"),
    "tuple-with-none": ((np.ones(2), None), r"`x\[1\]` must be a tensor, .* got NoneType"),
    "empty-tuple": ((), r"`x` must hold at least one tensor, got an empty tuple"),
    "empty-dictionary": ({}, r"`x` must hold at least one tensor, got an empty dictionary"),
    "keys": ({0: np.ones(2)}, r"the keys of `x` must be names of arguments of the network, got 0"),
    "deep": ({"a": (np.ones(2), FRAME.assign(city="a"))}, r"column 'city' of `x\['a'\]\[1\]` must hold numbers"),
    "deep-tensor": ({"a": [torch.tensor(1.0)]}, r"`x\['a'\]\[0\]` must have at least one row"),
}


def made(value):
    is_maker = callable(value) and value not in (len, np.ndarray)
    return value() if is_maker else value


@pytest.mark.parametrize("name", [*REFUSED, *STRUCTURES])
def test_what_is_no_input_is_refused_in_a_sentence(name):
    value, message = (REFUSED | STRUCTURES)[name]
    with pytest.raises(ValueError, match=message):
        _inputs.as_inputs("x", made(value), SINGLE)


@pytest.mark.parametrize("name", [name for name in REFUSED if name not in ("texts", "missing", "mixed", "packed")])
def test_what_is_no_target_is_refused_in_the_same_sentence(name):
    value, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        _inputs.as_targets("x", made(value), SINGLE)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": np.ones(2)}, r"`y` must be one tensor, got a dictionary with the keys \['a'\]; choose one"),
        ([torch.tensor(1), torch.tensor(0)], r"but `y\[0\]` is of type Tensor; join tensors with `torch.stack`"),
        ((np.ones(2), np.ones(2)), r"but `y\[0\]` is of type ndarray"),
        (["cat", "dog"], r"but `y\[0\]` is 'cat'; .* encode texts as whole numbers"),
        ([1.0, None], r"but `y\[1\]` is None"),
        (packed, r"but `y\[0\]` is of type Tensor"),
    ],
)
def test_targets_are_one_tensor(value, message):
    with pytest.raises(ValueError, match=message):
        _inputs.as_targets("y", made(value), SINGLE)


# --- trees ------------------------------------------------------------------------------------------------------------

LEAVES = st.integers(1, 3).map(lambda columns: torch.arange(5.0 * columns).view(5, columns))
TREES = st.recursive(
    LEAVES,
    lambda trees: (
        st.lists(trees, min_size=1, max_size=3)
        | st.lists(trees, min_size=1, max_size=3).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), trees, min_size=1)
    ),
    max_leaves=6,
)


@given(TREES)
@settings(max_examples=50, deadline=None)
def test_rows_of_inputs_are_rows_of_all_their_tensors(x):
    assert _inputs.num_rows(x) == 5
    rows = torch.tensor([4, 0, 4])
    taken, cut = _inputs.take(x, rows), _inputs.take(x, slice(1, 3))
    assert _inputs.num_rows(taken) == 3
    assert _inputs.num_rows(cut) == 2
    for leaf, some, part in zip(_inputs.leaves(x), _inputs.leaves(taken), _inputs.leaves(cut), strict=True):
        assert torch.equal(some, leaf[rows])
        assert part.data_ptr() == leaf[1:3].data_ptr()
    names = [name for name, _ in _inputs.named_leaves("x", x)]
    assert [name for name, _ in _inputs.named_leaves("x", taken)] == names
    assert all(torch.equal(eval(name, {"x": x}), leaf) for name, leaf in _inputs.named_leaves("x", x))
    moved = _inputs.to_device(x, torch.device("meta"))
    assert {leaf.device.type for leaf in _inputs.leaves(moved)} == {"meta"}
    assert _inputs.to_device(x, None) is x


def test_numbers_of_rows_that_differ_are_named():
    with pytest.raises(ValueError, match=r"got 5 in `x\['a'\]` and 6 in `x\['b'\]\[1\]`; give each of them one row"):
        _inputs.num_rows({"a": torch.zeros(5), "b": (torch.zeros(5, 2), torch.zeros(6, 5))})
    with pytest.raises(ValueError, match=r"`data\[1\]` must have at least one row, got shape \(\)"):
        _inputs.num_rows((torch.zeros(5), torch.tensor(1.0)), "data")
    with pytest.raises(ValueError, match=r"`x` must hold at least one tensor, got an empty dict"):
        _inputs.num_rows({})


class Pair(nn.Module):
    def forward(self, a, b=None, *, scale=1.0):
        return (a if b is None else a - b) * scale


def test_a_network_gets_one_several_or_named_inputs():
    a, b = torch.ones(3), torch.zeros(3)
    net = Pair()
    assert _inputs.call(net, a).sum() == 3
    assert _inputs.call(net, (b, a)).sum() == -3
    assert _inputs.call(net, [b, a]).sum() == -3
    assert _inputs.call(net, {"b": b, "a": a}).sum() == 3


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ((torch.ones(3),) * 3, r"Pair is called with 3 inputs but has `forward\(a, b=None, \*, scale=1.0\)`: too"),
        ({"c": torch.ones(3)}, r"called with the inputs \['c'\] but .*; pass a tensor for one input, a tuple"),
    ],
)
def test_a_call_that_does_not_fit_the_network_is_told(x, message):
    with pytest.raises(ValueError, match=message):
        _inputs.call(Pair(), x)


def test_mistakes_inside_of_a_network_are_not_covered_up():
    class Wrong(nn.Module):
        def forward(self, a):
            return len(a.shape, 2)

    with pytest.raises(TypeError, match="exactly one argument"):
        _inputs.call(Wrong(), torch.ones(3))
