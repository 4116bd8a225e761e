"""The argument parser whose errors look like all others: what is wrong, and a hint; and the screen for no command."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from typing import NoReturn

from trainfit import __version__
from trainfit.errors import did_you_mean

WELCOME = f"""\
trainfit {__version__}: will this training step fit that GPU, and if not, what should it recompute?

  trainfit estimate llama3-8b --batch 2 --gpu h200                  does it fit? memory and time, no GPU needed
  trainfit plan llama3-8b --batch 2 --gpu h200 --report plan.html   make it fit, with a page to look at
  trainfit estimate train.py:make_step --gpu h200                   the same for a function that returns your Step
  trainfit doctor                                                   what works on this machine

trainfit --help lists every command.
"""


class Parser(argparse.ArgumentParser):
    """Usage errors as `error: ...` and `hint: ...`, exit code 2."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message}\nhint: {self._near(message)}{self.prog} --help shows what there is", file=sys.stderr)
        raise SystemExit(2)

    def _near(self, message: str) -> str:
        """What was meant, if an argument is nearly one of those there are."""
        wrong = re.search(r"invalid choice: '([^']*)'|unrecognized arguments: (\S+)", message)
        if wrong is None:
            return ""
        word = wrong[1] or wrong[2]
        alike = {name for name in _names(self) if name.startswith("-") == word.startswith("-")}
        return f"other commands take {word}; " if word in alike else did_you_mean(word, sorted(alike))


def _names(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Everything that can be named on the command line: options, choices, commands, and the same of each command."""
    for action in parser._actions:
        yield from action.option_strings
        for choice in action.choices or ():
            yield str(choice)
            if isinstance(action.choices, Mapping):
                yield from _names(action.choices[choice])
