import dataclasses
import json
from typing import get_args

import pytest

from specbench.runs.codec import (
    SCHEMA_VERSION,
    NotJsonError,
    SchemaError,
    StoredRecord,
    decode_line,
    decode_run,
    encode_line,
    encode_run,
    line_type,
)
from tests.runs.stored_examples import BLOCK, EVERY_KIND, MEMORY, REQUEST, block, run
from tests.served_sessions import served_sweep
from tests.settings.flat_settings import changed


def test_every_record_type_has_an_example():
    assert {type(record) for record in EVERY_KIND} == set(get_args(StoredRecord))


@pytest.mark.parametrize("record", EVERY_KIND, ids=lambda record: type(record).__name__)
def test_every_record_is_read_back_equal_from_its_line(record: StoredRecord):
    line = encode_line(record)

    assert decode_line(line) == record
    assert type(decode_line(line)) is type(record)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


def test_the_run_is_read_back_equal():
    assert decode_run(encode_run(run())) == run()


def test_tuples_are_read_back_as_tuples():
    loaded = decode_line(encode_line(BLOCK))

    assert isinstance(loaded.requests, tuple)
    assert isinstance(loaded.requests[0].output_ids, tuple)
    assert isinstance(loaded.requests[0].device.throttle_reasons, tuple)


def test_the_type_of_a_line_is_known_without_decoding_it():
    tags = [line_type(encode_line(record)) for record in EVERY_KIND]

    assert tags == [
        "block",
        "reference",
        "memory",
        "forward",
        "failure",
        "model",
        "trace",
        "session",
        "done",
        "engine",
        "limit",
        "difference",
        "imported",
        "cost",
        "enginecost",
        "forecast",
        "extension",
        "server",
    ]
    assert line_type(encode_line(MEMORY)[:-5]) is None
    assert line_type(b"{}\n") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_nan_is_refused_when_writing(value: float):
    request = dataclasses.replace(REQUEST, ttft_s=value)

    with pytest.raises(ValueError, match="cannot be stored"):
        encode_line(dataclasses.replace(BLOCK, requests=(request,)))
    settings = changed(run().settings, top_p=value)
    with pytest.raises(ValueError, match="top_p"):
        encode_run(dataclasses.replace(run(), settings=settings))


@pytest.mark.parametrize(
    "change",
    [{"weights_bytes": "7"}, {"weights_bytes": None}, {"weights_bytes": 7.5}, {"target": None}],
)
def test_a_value_of_another_type_is_refused_when_writing(change: dict[str, object]):
    with pytest.raises(ValueError, match="cannot be stored"):
        encode_line(dataclasses.replace(MEMORY, **change))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"weights_bytes": "7"}, r"memory\.data\.weights_bytes: Input should be a valid integer"),
        ({"weights_bytes": True}, "weights_bytes"),
        ({"color": "red"}, "color: Unexpected keyword"),
    ],
)
def test_a_line_with_a_wrong_value_or_an_unknown_key_names_it(
    change: dict[str, object], complaint: str
):
    line = json.loads(encode_line(MEMORY))
    line["data"] |= change

    with pytest.raises(ValueError, match=complaint) as caught:
        decode_line(json.dumps(line).encode())
    assert not isinstance(caught.value, NotJsonError)


def test_rounds_whose_columns_differ_in_length_are_refused():
    line = json.loads(encode_line(BLOCK))
    line["data"]["requests"][0]["rounds"]["num_emitted"].append(1)
    with pytest.raises(ValueError, match=r"requests\.0\.rounds"):
        decode_line(json.dumps(line).encode())


@pytest.mark.parametrize("text", [b"", b"{", b'{"type":"mem', b"\0\0\0", b"\xff\xfe"])
def test_text_that_is_not_json_is_distinguished_from_a_wrong_record(text: bytes):
    with pytest.raises(NotJsonError):
        decode_line(text)


@pytest.mark.parametrize("text", [b"[]", b"null", b"{}", b'{"type":"color","data":{}}'])
def test_json_that_is_not_a_record_is_refused(text: bytes):
    with pytest.raises(ValueError, match=r"line|type|color"):
        decode_line(text)


@pytest.mark.parametrize(
    ("version", "remedy"),
    [(SCHEMA_VERSION + 1, "update specbench"), (SCHEMA_VERSION - 1, "measure")],
)
def test_another_schema_is_distinguished_from_damage(version: int, remedy: str):
    document = json.loads(encode_run(run())) | {"schema_version": version, "new": 1}

    with pytest.raises(SchemaError, match=f"{version}, not {SCHEMA_VERSION}; {remedy}"):
        decode_run(json.dumps(document).encode())


@pytest.mark.parametrize(
    "text", [b"null", b"[]", b'{"schema_version": 8}', b'{"schema_ver', b"[" * 100_000]
)
def test_a_damaged_run_document_is_refused(text: bytes):
    with pytest.raises(ValueError, match=r".+"):
        decode_run(text)


def test_a_long_block_is_encoded_without_loss():
    long = block("b", num_rounds=500)

    assert decode_line(encode_line(long)) == long


def test_a_servers_response_is_read_back_equal():
    """A block of a session, with the text and the counts of each request."""
    answered = next(b for b in served_sweep().blocks if b.passes and b.requests[0].counts)
    loaded = decode_line(encode_line(answered))

    assert loaded == answered
    assert loaded.requests[0].counts.num_by_accepted == (4, 4, 4)
    assert loaded.passes[0].rounds is None
