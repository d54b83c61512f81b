"""The JSON Schema of settings files, for programs that do not import this one.

`data/schemas/settings.schema.json` holds what `settings_schema` returns; ``python -m cost_model.settings_schema`` prints it and a test compares.
`cost_model.settings` checks the same on load, and what a schema cannot say: that a placement is one that a kernel can have, and that
fingerprint and settings do not contradict each other.
"""

from __future__ import annotations

import json
from typing import Any

from cost_model.head import HEAD_KINDS, MAX_RANK, MAX_VOCAB_SIZE, RANK_MULTIPLE
from cost_model.placement import MAX_WARPS
from cost_model.settings import ENVIRONMENT_FIELDS, RESIDENT, SETTINGS_FORM, SETTINGS_SCHEMA_VERSION, SOURCES, STREAMING, VERDICTS
from cost_model.workload import L2_STATES, MAX_BATCH, MODES, PRECISIONS, ROUNDINGS


def settings_schema() -> dict[str, Any]:
    """Return the schema, in JSON Schema 2020-12, of the version of settings that this code reads."""
    placement = _table({"warps": _whole(1, MAX_WARPS)} | {f"{tier}_tiles": _whole(0) for tier in ("register", "shared", "streamed", "staging", "tensor")})
    properties = {
        "form": {"const": SETTINGS_FORM}, "schema_version": {"const": SETTINGS_SCHEMA_VERSION}, "verdict": {"enum": list(VERDICTS)},
        "mode": {"enum": list(MODES)}, "precision": _or_null({"enum": list(PRECISIONS)}), "placement": _or_null({"$ref": "#/$defs/placement"}),
        "engine_path": _or_null({"type": "string"}), "batch": _whole(1, MAX_BATCH), "steps": _whole(1),
        "temperature": {"type": "number", "minimum": 0}, "rounding": {"enum": list(ROUNDINGS)}, "l2_state": {"enum": list(L2_STATES)},
        "reasons": {"type": "array", "items": {"type": "string"}}, "source": {"enum": list(SOURCES)}, "extra_memory_bytes": _whole(0),
        "fingerprint": {"$ref": "#/$defs/fingerprint"},
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": SETTINGS_FORM, **_table(properties), "allOf": [*_modes(), _rounding()],
        "$defs": {"placement": placement, "fingerprint": _fingerprint()},
    }


def _fingerprint() -> dict[str, Any]:
    """What the settings are valid for."""
    size = _whole(1, MAX_VOCAB_SIZE)
    properties = {
        "gpu_id": {"type": "string"}, "sm_count": _whole(1), "head_kind": {"enum": list(HEAD_KINDS)}, "vocab_size": size,
        "target_vocab_size": size, "padded_vocab_size": size, "rank": _whole(RANK_MULTIPLE, MAX_RANK) | {"multipleOf": RANK_MULTIPLE},
        **{name: _or_null(_whole(1)) for name in ("hidden_size", "gru_size", "candidate_pool")},
        "precision": _or_null({"enum": list(PRECISIONS)}), "placement": _or_null({"$ref": "#/$defs/placement"}),
    }  # fmt: skip
    known = {name: _or_null({"type": "string"}) for name in ENVIRONMENT_FIELDS}
    return _table(properties | known, optional=tuple(known))


def _modes() -> list[dict[str, Any]]:
    """A verdict to deploy has the mode that it names, with a precision and a placement; every other verdict has stepwise, with neither."""
    found = []
    for verdicts, mode in (([RESIDENT], "resident"), ([STREAMING], "streaming"), ([each for each in VERDICTS if each not in (RESIDENT, STREAMING)], "stepwise")):
        given = {"type": "null"} if mode == "stepwise" else {"not": {"type": "null"}}
        then = {"properties": {"mode": {"const": mode}, "precision": given, "placement": given}}
        found.append({"if": {"properties": {"verdict": {"enum": verdicts}}}, "then": then})
    return found


def _rounding() -> dict[str, Any]:
    """A sampled walk draws from rounded logits."""
    sampled = {"properties": {"temperature": {"exclusiveMinimum": 0}}}
    return {"if": sampled, "then": {"properties": {"rounding": {"enum": [word for word in ROUNDINGS if word != "none"]}}}}


def _table(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [name for name in properties if name not in optional], "additionalProperties": False}


def _whole(low: int, high: int | None = None) -> dict[str, Any]:
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


if __name__ == "__main__":
    print(json.dumps(settings_schema(), indent=2))
