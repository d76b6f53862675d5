"""`python -m tests.schemas` writes docs/schemas/: JSON Schemas of every file and message, made from the records."""

import json
from pathlib import Path
from typing import Any

import msgspec

from abprof.extras.bisect import Bisection
from abprof.extras.bot import Notice
from abprof.extras.selfcheck import Selfcheck
from abprof.records import SCHEMA, Block, Finding, Run
from abprof.records import messages as wire

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_REF = "#/$defs/{name}"


def schemas() -> dict[str, dict[str, Any]]:
    """File name -> JSON Schema."""
    run = _whole(f"abprof run.json, schema {SCHEMA}", Run)
    run["$defs"]["Run"]["properties"]["schema"] = {"const": SCHEMA}
    return {
        "run.schema.json": run,
        "rounds.schema.json": _line(f"abprof rounds.jsonl, one line, schema {SCHEMA}", Block),
        "evidence.schema.json": _line(f"abprof evidence.jsonl, one line, schema {SCHEMA}", Finding),
        "selfcheck.schema.json": _whole("abprof selfcheck.json", Selfcheck),
        "notice.schema.json": _whole("abprof notice, schema 3", Notice),
        "bisect.schema.json": _whole("abprof bisect.json, schema 3", Bisection),
        "wire.schema.json": _wire(),
    }


def main(folder: Path) -> None:
    """Write each schema into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, schema in schemas().items():
        (folder / name).write_text(text(schema))


def text(schema: dict[str, Any]) -> str:
    """Return the schema in docs/schemas/."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _line(title: str, record: Any) -> dict[str, Any]:
    """The schema of a line that ends with its checksum."""
    schema = _whole(title, record)
    definition = schema["$defs"][record.__name__]
    definition["properties"]["sum"] = {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": _SUM}
    definition["required"].append("sum")
    return schema


def _whole(title: str, record: Any) -> dict[str, Any]:
    """Return the schema of a file with one record, or with one of several."""
    schema: dict[str, Any] = {"$schema": DIALECT, "title": title, **msgspec.json.schema(record)}
    _strict(schema)
    return schema


def _wire() -> dict[str, Any]:
    kinds = [kind for pair in wire.VERBS.values() for kind in pair] + [wire.Fault]
    references, defs = msgspec.json.schema_components(kinds, ref_template=_REF)
    pointer = dict(zip(kinds, references, strict=True))
    requests = [
        _object(id={"type": "integer"}, do={"const": verb}, args=pointer[args])
        for verb, (args, _) in wire.VERBS.items()
    ]
    replies = [pointer[kind] for kind in dict.fromkeys(reply for _, reply in wire.VERBS.values())]
    answers = [
        _object(id={"type": "integer"}, reply={"anyOf": replies}),
        _object(id={"type": "integer"}, fault=pointer[wire.Fault]),
    ]
    schema = {
        "$schema": DIALECT,
        "title": "abprof worker wire, one line either way",
        "anyOf": requests + answers,
        "$defs": defs,
    }
    _strict(schema)
    return schema


_SUM = "BLAKE2b-64 of the line's bytes before this key, closed with a brace"


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _strict(schema: dict[str, Any]) -> None:
    # msgspec's schemas lack `additionalProperties` for dataclasses; the wire refuses unknown keys.
    for definition in schema["$defs"].values():
        if definition.get("type") == "object":
            definition.setdefault("additionalProperties", False)


if __name__ == "__main__":
    main(Path(__file__).resolve().parents[1] / "docs" / "schemas")
