"""Messages of workers and shards. Code under test runs in their processes and can write anything to the pipe."""

import json
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import strategies as st

from abprof.fleet.messages import News, read_news
from abprof.records import Touched
from abprof.records import messages as wire
from abprof.records.base import UNREADABLE, untrusted
from abprof.system import checksummed
from abprof.system.processes import Worker, WorkerDied, WorkerFault
from tests.fuzz.mutations import DEEP, bytes_of, encoded, hunt, many, values_of

REPLIES = [reply for _, reply in wire.VERBS.values()] + [wire.Fault]
VALUES: dict[Any, Any] = {int: 3, float: 1.5, str: "ok", bool: True, Any: [1, {"a": "b"}], type(None): None}


def example(kind: Any) -> Any:
    """A plain value that fits the hint."""
    if kind in VALUES:
        return VALUES[kind]
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return inner[0]
    if isinstance(kind, UnionType):
        return example(inner[0])
    if origin is list or inner[1:] == (...,):
        return every(inner[0]) * 2
    if origin is dict:
        return {f"name{number}": value for number, value in enumerate(every(inner[1]))}
    if origin is tuple:
        return [example(one) for one in inner]
    return {name: example(hint) for name, hint in get_type_hints(kind).items()}


def every(hint: Any) -> list[Any]:
    """A value of each kind that the hint allows."""
    return [example(kind) for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]


@many
@pytest.mark.parametrize("kind", REPLIES, ids=lambda kind: kind.__name__)
def test_any_reply_is_a_record_or_an_unreadable_answer(kind: type, examples: int) -> None:
    """The errors that a worker's parent makes an outcome of (abprof/system/processes/worker.py), and no other; and what is read can be
    written into a run's folder."""

    def read(message: bytes) -> None:
        try:
            made = msgspec.convert(untrusted(message), kind)
        except (*UNREADABLE, OverflowError):
            return
        wire.dump(wire.pack(made))
        for name, hint in get_type_hints(kind).items():
            value = getattr(made, name)
            if hint is float:
                assert -1e400 < float(value) < 1e400

    loose = example(kind)
    hunt(values_of(loose).map(encoded) | bytes_of(encoded(loose)) if loose else bytes_of(b"{}"), read, examples)


ECHO = """
import sys, os
source, out = int(sys.argv[sys.argv.index("--in") + 1]), int(sys.argv[sys.argv.index("--out") + 1])
os.read(source, 1 << 20)
data = open(sys.argv[1], "rb").read()
while data:
    data = data[os.write(out, data) :]
"""


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * DEEP, b'{"id":' * DEEP, b"9" * 5000, b"\xff\xfe", b"", b"null", b"[]", b'{"id":1}', b'{"id":1,"reply":null}',
        b'{"id":1,"fault":7}', b'{"id":1,"fault":{"status":"fine","reason":"x"}}', b'{"id":true,"reply":{}}',
        b'{"id":1,"reply":{"value":1' + b"0" * 400 + b',"wall":1,"start":1,"end":2}}',
        b'{"id":1,"reply":{"value":1e999,"wall":1,"start":1,"end":2}}',
        b'{"id":1,"reply":{"value":1,"wall":1,"start":1' + b"0" * 40 + b',"end":2}}',
    ],
    ids=lambda answer: repr(answer[:40]),
)  # fmt: skip
def test_an_answer_of_anything_is_a_dead_worker(tmp_path: Path, answer: bytes) -> None:
    (tmp_path / "answer").write_bytes(answer + b"\n")
    (tmp_path / "echo.py").write_text(ECHO)
    argv = [sys.executable, "-I", str(tmp_path / "echo.py"), str(tmp_path / "answer")]
    worker = Worker(argv, env={}, cwd=tmp_path, log=tmp_path / "log")
    try:
        with pytest.raises(WorkerDied, match="unreadable answer"):
            worker.call(wire.Turn("base", 1, "cpu_clock"), 30.0)
    except WorkerFault as fault:
        pytest.fail(f"taken for {fault.status}")
    finally:
        worker.kill()


NEWS = [
    checksummed.line(News(warning="hello"))[:-1],
    checksummed.line(News(touched=Touched(path="/a", how="changed", moment="in epoch 2")))[:-1],
]


@many
def test_any_news_are_news_or_no_news(examples: int) -> None:
    def read(line: bytes) -> None:
        try:
            made = read_news(line)
        except ValueError:
            return
        assert isinstance(made, News)

    resealed = st.sampled_from(NEWS).flatmap(
        lambda line: values_of({k: v for k, v in json.loads(line).items() if k != "sum"}).map(
            lambda d: checksummed.seal(encoded(d))[:-1]
        )
    )
    hunt(st.sampled_from(NEWS).flatmap(bytes_of) | resealed, read, examples)
