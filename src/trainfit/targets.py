"""From what the user names on the command line to a `Step`.

A target is a preset (`llama3-8b`), a function that returns a Step (`train.py:make_step`, `package.module:make_step`),
or a transformers config (`hf:path/config.json`). Whatever is wrong with it becomes an error that says what and where.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from trainfit import presets
from trainfit.errors import BadTarget, TrainfitError, UsageError, did_you_mean
from trainfit.step import Step

T = TypeVar("T")

_FORMS = "a target is a preset, file.py:function, package.module:function or hf:path/config.json"


def resolve(target: str, *, batch: int | None = None, seq: int | None = None) -> Step:
    """The Step that `target` names; a function gets `batch` and `seq` if it has parameters of these names."""
    if target.startswith("hf:"):
        return _from_config(Path(target.removeprefix("hf:")), batch, seq)
    if ":" not in target:
        if target.endswith(".py") or "/" in target:
            raise BadTarget(f"{target} names no function", hint=f"write {target}:FUNCTION; {_FORMS}")
        return presets.build(target, batch=batch, seq=seq)
    place, _, function_name = target.rpartition(":")
    module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    function = _find_function(module, place, function_name)
    sizes = {name: size for name, size in (("batch", batch), ("seq", seq)) if size is not None}
    for name in sizes:
        if name not in inspect.signature(function).parameters:
            raise UsageError(
                f"{target} makes its own batch: it has no parameter called {name!r} for --{name}",
                hint=f"leave --{name} out and change it in the function, or give the function that parameter",
            )
    return _call(functools.partial(function, **sizes), target)


def _from_config(path: Path, batch: int | None, seq: int | None) -> Step:
    try:
        importlib.import_module("transformers")
    except ImportError as error:
        raise BadTarget("hf: targets need transformers", hint="pip install 'trainfit[hf]'") from error
    from trainfit.presets import huggingface

    return huggingface.build(path, batch, seq)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise BadTarget(f"there is no file {path}", hint="the path is taken from the current folder")
    loader = SourceFileLoader(f"trainfit_target_{path.stem}", str(path))
    module = ModuleType(loader.name)
    module.__file__ = str(path)
    # As when Python runs a script: the file's neighbours can be imported, then and later.
    _put_on_path(path.resolve().parent)
    sys.modules[loader.name] = module
    _run(lambda: loader.exec_module(module), f"importing {path}")
    return module


def _load_module(name: str) -> ModuleType:
    _put_on_path(Path.cwd())
    try:
        return _run(lambda: importlib.import_module(name), f"importing {name}")
    except BadTarget as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            raise BadTarget(f"there is no module {name}", hint=_FORMS) from cause
        raise


def _put_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _find_function(module: ModuleType, place: str, name: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        hint = did_you_mean(name, names) or "define it there, to return a trainfit.Step"
        raise BadTarget(f"{place} has no function {name!r}", hint=hint.strip())
    if not callable(function):
        raise BadTarget(
            f"{name!r} in {place} is a {type(function).__name__}, not a function",
            hint="name a function without arguments that returns a trainfit.Step",
        )
    return function


def _call(function: Callable[[], Any], target: str) -> Step:
    step = _run(function, f"calling {target}")
    if not isinstance(step, Step):
        raise BadTarget(
            f"{target} returned a {type(step).__name__}, not a trainfit.Step",
            hint="end the function with return trainfit.Step(model=..., batch=...)",
        )
    return step


def _run(action: Callable[[], T], doing: str) -> T:
    """Run the user's code; what it raises becomes an error of ours that names it."""
    try:
        return action()
    except TrainfitError:
        raise
    except (Exception, SystemExit) as error:
        raise BadTarget(
            f"{doing} raised {type(error).__name__}: {error}", hint="run with -v for the traceback"
        ) from error
