"""One row per sample, method and metric: their columns, and the files they are kept in."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from xattn.errors import ArgumentError
from xattn.explanation import write_atomically

_WORD = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        ("method", _WORD),
        ("protocol", _WORD),
        ("metric", _WORD),
        ("value", pa.float64()),
        ("undefined", pa.bool_()),
        ("constant", pa.bool_()),
        ("sample", pa.string()),
        ("sample_index", pa.int64()),
        ("label", pa.int64()),
        ("prediction", pa.int64()),
        ("correct", pa.bool_()),
        ("target", pa.int64()),
        ("fractions", pa.list_(pa.float64())),
        ("curve", pa.list_(pa.float64())),
        ("seed", pa.int64()),
        ("configuration", _WORD),
        ("model", _WORD),
        ("model_hash", _WORD),
        ("dataset", _WORD),
        ("versions", _WORD),
        ("seconds", pa.float64()),
        ("seconds_protocol", pa.float64()),
        ("peak_memory_mb", pa.float64()),
    ]
)
"""Columns of the rows. `configuration` is the hash of all that the value depends on; `seconds` is the time the method
took per sample, `seconds_protocol` the time of the protocol per sample; the memory is the process's peak so far, on
CUDA that of the device."""

MEASURED = ("seconds", "seconds_protocol", "peak_memory_mb")
"""Columns that differ from run to run."""

_KEY = b"xattn"


@dataclass(frozen=True)
class Part:
    """The rows of one method and protocol on one chunk.

    Attributes:
        rows: Values by column, all of `SCHEMA`.
        skipped: Name to reason of samples that could not be used.
        refused: Why the method does not apply to the model, "" if it does.
        maps: Index to map of the first samples, as lists, for a report's examples.
    """

    rows: Sequence[Mapping[str, Any]] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""
    maps: Mapping[int, Any] = field(default_factory=dict)


def write_part(path: Path, part: Part) -> None:
    """Write a part so that it is either there as a whole or not at all.

    Raises:
        ArgumentError: If it cannot be written, for example because the disk is full.
    """
    facts = json.dumps({"skipped": dict(part.skipped), "refused": part.refused, "maps": dict(part.maps)})
    table = pa.Table.from_pylist(list(part.rows), schema=SCHEMA.with_metadata({_KEY: facts.encode()}))
    try:
        write_atomically(path, lambda file: pq.write_table(table, file, compression="zstd"))
    except OSError as error:
        raise ArgumentError(
            f"out: cannot write {str(path)!r} ({error.strerror or error}); what was finished is kept, and the same "
            "call goes on from there"
        ) from None


def is_written(path: Path) -> bool:
    """Whether a part is there and whole; one that a failing disk has cut short counts as missing."""
    try:
        return _KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowInvalid):
        return False


def read_part(path: Path) -> tuple[pa.Table, Part]:
    """The rows as a table, and the part without them."""
    table = pq.read_table(path, partitioning=None)
    facts = json.loads(table.schema.metadata[_KEY])
    facts["maps"] = {int(index): values for index, values in facts.get("maps", {}).items()}
    return table.replace_schema_metadata(None), Part(**facts)
