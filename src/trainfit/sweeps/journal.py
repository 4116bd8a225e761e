"""The file of results: a JSON object per line, appended as they come, from which a sweep that was killed goes on.

Invariant: whatever ends with a newline is a whole result. A last line without one was being written when the sweep was
killed, and is dropped. Every line says which sweep it is of, so that results of different ones are never mixed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainfit.errors import UsageError
from trainfit.sweeps.results import SweepResult

Identity = Mapping[str, str]
"""What results depend on beside the configuration: the target, what the budget binds, versions."""


def read_results(path: Path, identity: Identity) -> list[SweepResult]:
    """The results that the file has of this sweep; none if there is no file. A half-written last line is cut off."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", hint="name another file") from error
    whole = content[: content.rfind(b"\n") + 1]
    results = [_parse(line, identity, f"{path}:{number}") for number, line in enumerate(whole.splitlines(), 1)]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return results


def append_results(path: Path, identity: Identity, results: Iterable[SweepResult]) -> Iterator[SweepResult]:
    """The same results; each is in the file when it comes out."""
    try:
        opened = path.open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name another file") from error
    with opened as file:
        for result in results:
            file.write(json.dumps({"sweep": dict(identity)} | result.to_json_dict()) + "\n")
            file.flush()
            yield result


def _parse(line: bytes, identity: Identity, where: str) -> SweepResult:
    try:
        fields: dict[str, Any] = json.loads(line)
        found: dict[str, str] = fields.pop("sweep")
        result = SweepResult.from_json_dict(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{where} is no result of a sweep", hint="name another file, or delete this one") from error
    for name, value in identity.items():
        if found.get(name) != value:
            raise UsageError(
                f"{where} is of another sweep: its {name} is {found.get(name)}, not {value}",
                hint="name another file, or delete this one",
            )
    return result
