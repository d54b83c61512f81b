"""What recorded runs of walks and of rounds share: a plan that tells a run from others, and its parts on disk until they are a record.

A part is written whole as soon as it is measured, so an equal plan goes on where the last one stopped. When all parts are there they are
merged into the record, in order of process and number, and removed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import uuid4

from cost_model.errors import BadInput
from cost_model.measurement import (
    frame_rows,
    read_round,
    read_walk,
    record_path,
    require_new,
    write_round,
    write_walk,
)

PLAN_FILE = "plan.json"
READERS = {"walk": read_walk, "round": read_round}
WRITERS = {"walk": write_walk, "round": write_round}


class Plan:
    """Base of a run's plan: a frozen dataclass with at least cases, processes, gpu_id, provenance and engine_root.

    Attributes:
        VERSION: of its file; CASE: class of its cases, with ``as_dict`` and ``from_dict``.
        FORMAT: of its record, ``walk`` or ``round``; PART: what a part of a process is called.
    """

    VERSION: ClassVar[int]
    CASE: ClassVar[type]
    FORMAT: ClassVar[str]
    PART: ClassVar[str]

    @property
    def parts(self) -> int:
        """Parts of each process."""
        raise NotImplementedError

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digest of all fields but the command and where the engine lies: an equal plan takes up the parts."""
        values = {**self.as_dict(), "engine_root": None}
        values["provenance"] = {name: value for name, value in values["provenance"].items() if name != "command"}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
        return {**values, **lists, "version": self.VERSION, "cases": [case.as_dict() for case in self.cases]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of :meth:`as_dict`; BadInput for another version."""
        values = dict(values)
        if (version := values.pop("version", None)) != cls.VERSION:
            raise BadInput(f"the plan has version {version}; this code reads {cls.VERSION}")
        tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **tuples, "cases": tuple(map(cls.CASE.from_dict, values["cases"]))})


class RunFolder:
    """The parts of one run on disk: ``.<case>-<fingerprint>.parts`` beside the record that will be.

    Attributes:
        plan: what is done; folder: of the parts; record: the file that will be; run_id: of all its rows.
    """

    def __init__(self, plan: Plan, folder: Path, record: Path, run_id: str) -> None:
        self.plan, self.folder, self.record, self.run_id = plan, folder, record, run_id

    @classmethod
    def open(cls, plan: Plan, out: Path, case_name: str) -> RunFolder:
        """Take up the folder of an equal plan, or begin one; RecordError where the record is there already."""
        record = record_path(out, plan.gpu_id, datetime.now(timezone.utc), case_name)
        folder = record.parent / f".{case_name}-{plan.fingerprint[:12]}.parts"
        file = folder / PLAN_FILE
        run = cls.load(file, type(plan)) if file.is_file() else cls(plan, folder, record, uuid4().hex)
        run.plan = replace(run.plan, engine_root=plan.engine_root)  # the folder may have come from another machine
        require_new(run.record)
        folder.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps({"plan": run.plan.as_dict(), "record": run.record.name, "run_id": run.run_id}, indent=1))
        partial.replace(file)
        return run

    @classmethod
    def load(cls, file: Path, kind: type[Plan]) -> RunFolder:
        """Read the plan file of a begun run."""
        values = json.loads(file.read_text())
        return cls(kind.from_dict(values["plan"]), file.parent, file.parent.parent / values["record"], values["run_id"])

    def part(self, process_index: int, number: int) -> Path:
        """File of one part; its name begins with a point, so that readers of the whole folder pass it over."""
        return self.folder / f".process-{process_index}-{self.plan.PART}-{number}.parquet"

    def write_part(self, process_index: int, number: int, rows: list[dict[str, Any]]) -> None:
        """Write a part whole, so that being there is being finished."""
        WRITERS[self.plan.FORMAT](self.part(process_index, number), rows)

    def finished(self, process_index: int) -> list[int]:
        """Parts of a process that are there."""
        return [number for number in range(self.plan.parts) if self.part(process_index, number).is_file()]

    def missing(self, process_index: int) -> list[int]:
        """Parts of a process that are still to be measured."""
        return [number for number in range(self.plan.parts) if not self.part(process_index, number).is_file()]

    def merge(self) -> Path:
        """Write the record from all parts, in order of process and number, and remove the parts."""
        places = [(process_index, number) for process_index in range(self.plan.processes) for number in range(self.plan.parts)]
        read = READERS[self.plan.FORMAT]
        WRITERS[self.plan.FORMAT](self.record, [row for place in places for row in frame_rows(read(self.part(*place)))])
        shutil.rmtree(self.folder)
        return self.record

    def how_to_go_on(self) -> str:
        """Message of an interruption."""
        count = sum(len(self.finished(index)) for index in range(self.plan.processes))
        whole = self.plan.parts * self.plan.processes
        return f"stopped with {count} of {whole} parts finished, kept in {self.folder}; give the same command again to go on"
