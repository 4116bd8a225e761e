"""Imports of the command line: no garbage collection while they run, and the collector is afterwards as it was."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from trainfit.cli.loading import loading


@pytest.mark.parametrize("was_on", [True, False])
def test_nothing_is_collected_while_loading_and_the_collector_is_then_as_it_was(was_on: bool) -> None:
    before, num_frozen = gc.isenabled(), gc.get_freeze_count()
    (gc.enable if was_on else gc.disable)()
    try:
        with loading():
            assert not gc.isenabled()
        assert gc.isenabled() is was_on
        assert gc.get_freeze_count() > num_frozen
    finally:
        (gc.enable if before else gc.disable)()


def test_the_command_exits_as_main_says() -> None:
    for argv, code in ((["gpus"], 0), (["estimate", "gpt2", "--budget", "80"], 2)):
        command = [sys.executable, "-m", "trainfit", *argv]
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == code
