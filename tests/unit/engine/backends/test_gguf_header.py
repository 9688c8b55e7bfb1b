"""Headers of GGUF files: whole ones are read, all others refused, and none costs more than reading it."""

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.base.errors import ModelError
from kvist.engine.backends.gguf_header import BLOCK_SIZES, ArrayField, read_header
from tiny_gguf import HIDDEN, LAYERS, tiny_gemma3, tiny_llama


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama().write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_header_says_what_the_file_holds(whole: Path) -> None:
    header = read_header(whole)
    model = tiny_llama()
    assert header.architecture == "llama"
    assert header.of_model("block_count") == LAYERS
    assert header.of_model("no_such_key") is None
    assert header.fields["tokenizer.ggml.pre"] == "smollm"
    assert header.fields["tokenizer.ggml.add_bos_token"] is False
    assert header.array_length("tokenizer.ggml.tokens") == len(model.tokenizer["ggml.tokens"])
    assert header.array_length("general.name") == header.array_length("absent") == 0
    assert header.parameters == sum(values.size for values in model.tensors.values())
    assert header.tensors["token_embd.weight"].shape[0] == HIDDEN


def test_an_array_is_as_long_as_it_says() -> None:
    assert len(ArrayField(length=3)) == 3


@pytest.mark.parametrize("model", [tiny_llama(), tiny_gemma3()], ids=["llama", "gemma3"])
def test_the_tensors_lie_where_another_reader_finds_them(model, tmp_path: Path) -> None:
    path = model.write(tmp_path / "tiny.gguf")
    theirs = {each.name: (each.data_offset, each.n_bytes) for each in gguf.GGUFReader(path).tensors}
    assert {each.name: (each.start, each.size) for each in read_header(path).tensors.values()} == theirs


def test_the_table_of_block_sizes_is_the_format_s() -> None:
    assert {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()} == BLOCK_SIZES


def test_a_file_cut_anywhere_is_refused_by_name(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    header_end = min(each.start for each in read_header(whole).tensors.values())
    cuts = {*range(64), *range(64, header_end, 97), *range(header_end, len(data), 4999), len(data) - 1}
    for cut in cuts:
        path = written(tmp_path / f"cut{cut}.gguf", data[:cut])
        with pytest.raises(ModelError, match=path.name):
            read_header(path)


def test_bytes_after_the_last_tensor_do_no_harm(whole: Path, tmp_path: Path) -> None:
    assert read_header(written(tmp_path / "more.gguf", whole.read_bytes() + b"more")) == read_header(whole)


@pytest.mark.parametrize("data", [b"", b"G", b"GGUF", b"\x00" * 200, b"<!DOCTYPE html>" * 50, b"PK\x03\x04" * 50])
def test_what_is_no_gguf_is_refused(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a whole GGUF"):
        read_header(written(tmp_path / "other.gguf", data))


def test_other_versions_and_byte_orders_are_refused(whole: Path, tmp_path: Path) -> None:
    for version in (0, 1, 4, 0x03000000):
        data = b"GGUF" + struct.pack("<I", version) + whole.read_bytes()[8:]
        with pytest.raises(ModelError, match=f"version {version}"):
            read_header(written(tmp_path / "version.gguf", data))


def test_counts_that_can_not_be_are_refused_before_they_cost_anything(tmp_path: Path) -> None:
    for tensors, fields in ((2**63, 0), (0, 2**63), (2**40, 2**40)):
        data = struct.pack("<4sIQQ", b"GGUF", 3, tensors, fields) + b"\x00" * 1000
        with pytest.raises(ModelError, match="can not fit"):
            read_header(written(tmp_path / "huge.gguf", data))


def field_bytes(key: bytes, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ([field_bytes(b"a", 8, struct.pack("<Q", 2**62))], "text of"),
        ([field_bytes(b"a", 9, struct.pack("<IQ", 8, 2**62))], "array of"),
        ([field_bytes(b"a", 9, struct.pack("<IQ", 9, 1))], "items of type 9"),
        ([field_bytes(b"a", 9, struct.pack("<IQ", 4, 2**62))], "within its header"),
        ([field_bytes(b"a", 77, b"")], "type of 'a' is 77"),
        ([field_bytes(b"\xff\xfe", 7, b"\x00")], "not UTF-8"),
        ([field_bytes(b"a", 7, b"\x00"), field_bytes(b"a", 7, b"\x01")], "twice"),
        ([field_bytes(b"general.architecture", 7, b"\x01")], "general.architecture"),
    ],
)
def test_metadata_that_lies_is_refused(fields: list[bytes], complaint: str, tmp_path: Path) -> None:
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(fields)) + b"".join(fields) + b"\x00" * 64
    with pytest.raises(ModelError, match=complaint):
        read_header(written(tmp_path / "lies.gguf", data))


def entry_bytes(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + dimensions + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        ([entry_bytes(b"t", (2**40, 2**40), 0, 0)], "ends at byte"),
        ([entry_bytes(b"t", (4,), 0, 2**63)], "ends at byte"),
        ([entry_bytes(b"t", (33,), 8, 0)], "does not divide"),
        ([entry_bytes(b"t", (0,), 0, 0)], "does not divide"),
        ([entry_bytes(b"t", (4,), 999, 0)], "type 999"),
        ([entry_bytes(b"t", (), 0, 0)], "0 dimensions"),
        ([entry_bytes(b"t", (1,) * 5, 0, 0)], "5 dimensions"),
        ([entry_bytes(b"t", (1,), 0, 0)] * 2, "1 have names of their own"),
        ([], "0 tensors"),
    ],
)
def test_tensors_that_can_not_be_are_refused(entries: list[bytes], complaint: str, tmp_path: Path) -> None:
    architecture = field_bytes(b"general.architecture", 8, struct.pack("<Q", 5) + b"llama")
    data = struct.pack("<4sIQQ", b"GGUF", 3, len(entries), 1) + architecture + b"".join(entries) + b"\x00" * 64
    with pytest.raises(ModelError, match=complaint):
        read_header(written(tmp_path / "tensors.gguf", data))


def test_an_alignment_that_is_none_is_refused(tmp_path: Path) -> None:
    for alignment in (0, 3, 2**31):
        fields = field_bytes(b"general.architecture", 8, struct.pack("<Q", 5) + b"llama")
        fields += field_bytes(b"general.alignment", 4, struct.pack("<I", alignment))
        data = struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + fields + b"\x00" * 64
        with pytest.raises(ModelError, match="power of two"):
            read_header(written(tmp_path / "alignment.gguf", data))


def test_what_can_not_be_opened_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.gguf", tmp_path):
        with pytest.raises(ModelError, match=path.name):
            read_header(path)


@settings(max_examples=300, deadline=None)
@given(at=st.integers(0, 12_000), byte=st.integers(0, 255))
def test_a_changed_byte_is_noticed_or_harmless(whole: Path, tmp_path_factory, at: int, byte: int) -> None:
    data = bytearray(whole.read_bytes())
    data[at] = byte
    path = written(tmp_path_factory.getbasetemp() / "changed.gguf", bytes(data))
    with suppress(ModelError):
        assert all(each.start + each.size <= len(data) for each in read_header(path).tensors.values())


def test_the_parts_of_the_header_are_where_it_says(whole: Path) -> None:
    header, data = read_header(whole), whole.read_bytes()
    assert list(header.spans) == list(header.fields)
    for key, (start, end) in header.spans.items():
        assert data[start + 8 : end].startswith(key.encode())
    ends = [24, *(end for _, end in header.spans.values()), header.table[1]]
    assert ends[:-1] == [*(start for start, _ in header.spans.values()), header.table[0]]
    assert header.data_start == min(each.start for each in header.tensors.values())
    assert header.data_start % header.alignment == 0
