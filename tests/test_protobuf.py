"""Protocol buffers: what is written is read again, and read alike by Google's library."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clearhead.protobuf import as_bytes, read_fields, write_field

numbers = st.integers(1, 2**29 - 1)


@given(st.lists(st.tuples(numbers, st.integers(0, 2**64 - 1) | st.binary())))
def test_fields_are_read_as_they_were_written(fields):
    data = b"".join(write_field(number, value) for number, value in fields)
    assert list(read_fields(data)) == fields


@given(st.floats(width=32, allow_nan=False), st.integers(-(2**63), -1))
def test_floats_have_their_bytes_and_negative_numbers_their_complement(value, negative):
    data = write_field(1, value) + write_field(2, value, double=True) + write_field(3, negative)
    (_, single), (_, double), (_, number) = read_fields(data)
    assert struct.unpack("<f", single) == struct.unpack("<d", double) == (value,)
    assert number == negative + 2**64


@pytest.mark.parametrize("value", [1e39, -1e39])
def test_a_float_too_large_for_four_bytes_is_infinite(value):
    (_, data), = read_fields(write_field(1, value))  # fmt: skip
    assert struct.unpack("<f", data)[0] == value * float("inf")


def test_google_s_library_reads_our_fields():
    struct_pb2 = pytest.importorskip("google.protobuf.struct_pb2")
    value = struct_pb2.Value()
    value.ParseFromString(write_field(2, 0.25, double=True))
    assert value.number_value == 0.25
    value.ParseFromString(write_field(3, "größer".encode()))
    assert value.string_value == "größer"
    value.ParseFromString(write_field(4, 1))
    assert value.bool_value


@given(st.binary(max_size=20))
def test_damaged_bytes_are_read_or_raise_an_index_error(data):
    try:
        for _, value in read_fields(data):
            assert isinstance(value, int | bytes)
    except IndexError:
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x0a\x05ab", "a field ends 3 bytes after the file"),
        (b"\x0b", "byte 1: a field of the unknown wire type 3"),
        (b"\x08\xff", "out of range"),
    ],
)
def test_a_truncated_message_raises(data, message):
    with pytest.raises(IndexError, match=message):
        list(read_fields(data))


def test_a_number_is_not_bytes():
    with pytest.raises(IndexError, match="a field holds the number 3: expected text or bytes"):
        as_bytes(3)
