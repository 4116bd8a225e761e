"""The command line: what is printed where, with which exit code; every bad input of the first release among them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import trainfit
from trainfit.cli import build_parser, main
from trainfit.gpus.catalogue import GPUS, find_gpu

TRAIN = """
import torch
from torch import nn

import trainfit

print("hello from train.py")


def step(model=None, **changes):
    fields = {"model": model or nn.Linear(4, 4), "batch": (torch.ones(2, 4),), "loss": torch.sum}
    return trainfit.Step(**(fields | changes))


def good():
    return step()


def large():
    with torch.device("meta"):
        return step(nn.Linear(2**17, 2**17, bias=False), batch=(torch.ones(1, 2**17),))


def gives_nothing():
    pass


def vector_loss():
    return step(loss=lambda output: output)


def no_loss():
    return step(loss=None)


def detached_loss():
    return step(loss=lambda output: output.detach().sum())


def no_parameters():
    return step(nn.Identity())


def frozen():
    return step(nn.Linear(4, 4).requires_grad_(False))


def empty_optimizer():
    return step(optimizer=lambda parameters: torch.optim.SGD([], lr=0.1))


def no_optimizer():
    return step(optimizer=lambda parameters: 3)


def list_batch():
    return step(batch=[torch.ones(2, 4)])


def wrong_width():
    return step(batch=(torch.ones(2, 5),))


def wrong_keyword():
    return step(batch={"nonsense": torch.ones(2, 4)})


class OnCpu(nn.Linear):
    def forward(self, x):
        return super().forward(x) + torch.ones(2, 4, device="cpu")


def on_cpu():
    return step(OnCpu(4, 4))


class Raises(nn.Linear):
    def forward(self, x):
        raise KeyError("lost\\nand a second line")


def raises():
    return step(Raises(4, 4))


class Masks(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y[y > 0]


def masks():
    return step(Masks(4, 4))


def not_a_model():
    return step(lambda: "model")


class Interrupts(nn.Linear):
    def forward(self, x):
        raise KeyboardInterrupt


def interrupts():
    return step(Interrupts(4, 4))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


# ---- Good input ----------------------------------------------------------------------------------------------------


def test_estimate_prints_the_same_table_as_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt2", "--batch", "2", "--seq", "64", "--gpu", "a100-80gb"]) == 0
    printed = capsys.readouterr()
    step = trainfit.presets.build("gpt2", batch=2, seq=64)
    assert printed.out == f"{trainfit.estimate(step, 'a100-80gb')}\n"
    assert printed.err == ""  # no progress: this is no terminal
    assert printed.out.startswith("fits a100-80gb: ")


def test_json_is_all_that_is_on_stdout_whatever_the_target_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "train.py:good", "--gpu", "h100-80gb", "--allocator", "expandable", "--json"]) == 0
    printed = capsys.readouterr()
    record = json.loads(printed.out)
    assert record["gpu"] == "h100-80gb"
    assert record["allocator"] == "expandable"
    assert record["num_parameters"] == 20
    assert record["fits"] is True
    assert sum(record["breakdown_bytes"].values()) == record["peak_allocated_bytes"]
    assert set(record) == set(
        "gpu torch allocator fits budget_bytes peak_allocated_bytes peak_reserved_bytes peak_at breakdown_bytes "
        "num_parameters trace_seconds not_modelled step_time_ms step_time_range_ms phase_time_ms gpu_busy_ms "
        "gpu_busy_range_ms host_ms parallelism communication_ms exposed_communication_ms communication_source "
        "launch_bound launch_bound_sure mfu time_source roofline_share samples_per_second tokens_per_second top_ops "
        "top_modules".split()
    )
    assert printed.err == "hello from train.py\n"


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_what_does_not_fit_exits_with_3(capsys: pytest.CaptureFixture[str], as_json: list[str]) -> None:
    # 64 GiB of weights alone, on a GPU of 22 GiB.
    assert main(["estimate", "train.py:large", "--gpu", "l4", *as_json]) == 3
    out = capsys.readouterr().out
    if as_json:
        assert json.loads(out)["fits"] is False
    else:
        assert out.startswith("does not fit l4: ")


@pytest.mark.parametrize(("budget", "code"), [("72GiB", 0), ("1MB", 3), ("90%", 0)])
def test_the_budget_decides(capsys: pytest.CaptureFixture[str], budget: str, code: int) -> None:
    assert main(["estimate", "train.py:good", "--budget", budget]) == code
    capsys.readouterr()


def test_gpus_lists_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(GPUS)]] == [gpu.name for gpu in GPUS]
    assert "h200              9.0  132  139.8 GiB    989    989    494     67  1979  4800     900" in lines


def test_gpus_as_json_are_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpus", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["gpus"]
    assert [row["name"] for row in rows] == [gpu.name for gpu in GPUS]
    h200 = next(row for row in rows if row["name"] == "h200")
    assert (h200["num_sms"], h200["memory_bytes"], h200["bf16_tflops"]) == (132, find_gpu("h200").memory_bytes, 989.0)


def test_an_option_of_other_commands_is_not_said_to_be_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["gpus", "--budget", "3GiB"])
    assert stopped.value.code == 2
    assert "hint: other commands take --budget; trainfit" in capsys.readouterr().err


def test_no_command_shows_four_commands_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    commands = [re.split(r"   +", line.strip())[0] for line in out.splitlines() if line.startswith("  trainfit ")]
    assert len(commands) == 4
    verbs = [shlex.split(command)[1] for command in commands]
    assert verbs == ["estimate", "plan", "estimate", "doctor"]
    for command in commands:
        assert "run" in build_parser().parse_args(shlex.split(command)[1:])
    assert out.endswith("trainfit --help lists every command.\n")


def test_help_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for text in ("usage: trainfit", "estimate", "gpus", "doctor", "trainfit estimate llama3-8b", "exit codes"):
        assert text in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"trainfit {trainfit.__version__}\n"


# ---- Bad input -----------------------------------------------------------------------------------------------------

BAD = {
    "unknown gpu": (["gpt2", "--gpu", "h100"], 2, "no GPU is called 'h100'", "h100-80gb"),
    "unknown preset": (["llama3-8"], 2, "no preset is called 'llama3-8'", "did you mean llama3-8b"),
    "size without unit": (["gpt2", "--budget", "80"], 2, "the size '80' has no unit", "72GiB"),
    "no such file": (["trian.py:good"], 2, "there is no file trian.py", "current folder"),
    "no such function": (["train.py:god"], 2, "train.py has no function 'god'", "did you mean good?"),
    "no such profile": (
        ["gpt2", "--profile", "my.json"],
        2,
        "the profile my.json cannot be read",
        "trainfit calibrate",
    ),
    "no such config": (["hf:config.json"], 2, "there is no file config.json", "hf:PATH"),
    "not a step": (["train.py:gives_nothing"], 2, "returned a NoneType, not a trainfit.Step", "return trainfit.Step"),
    "batch of a function": (["train.py:good", "--batch", "2"], 2, "makes its own batch", "in the function"),
    "seq of images": (["resnet50", "--seq", "2"], 2, "resnet50 has images as input", "leave --seq out"),
    "loss is a vector": (["train.py:vector_loss"], 2, "a tensor of shape (2, 4), not a scalar", "Step(loss=...)"),
    "no loss": (["train.py:no_loss"], 2, "a tensor of shape (2, 4), not a scalar", "Step(loss=...)"),
    "loss without gradient": (["train.py:detached_loss"], 2, "a scalar that needs no gradient", "Step(loss=...)"),
    "no parameters": (["train.py:no_parameters"], 2, "Identity has no parameter that requires a gradient", "unfreeze"),
    "all frozen": (["train.py:frozen"], 2, "Linear has no parameter that requires a gradient", "unfreeze"),
    "empty optimizer": (["train.py:empty_optimizer"], 1, "optimizer got an empty parameter list", ""),
    "no optimizer": (["train.py:no_optimizer"], 2, "Step.optimizer returned a int", "an optimizer class"),
    "batch is a list": (["train.py:list_batch"], 2, "Step.batch is a list", "a dict of keyword arguments or a tuple"),
    "batch of the wrong shape": (["train.py:wrong_width"], 1, "forward failed on the ghost GPU: RuntimeError", ""),
    "batch of the wrong name": (["train.py:wrong_keyword"], 1, "unexpected keyword argument 'nonsense'", ""),
    "tensor on the wrong device": (["train.py:on_cpu"], 1, "same device", ""),
    "model raises": (["train.py:raises"], 1, "forward failed on the ghost GPU: KeyError: ", "-v shows the traceback"),
    "shape depends on data": (["train.py:masks"], 1, "train.py:", "assume_size"),
    "model is none": (["train.py:not_a_model"], 2, "Step.model built a str, not an nn.Module", "callable"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_a_hint_and_an_exit_code(capsys: pytest.CaptureFixture[str], case: str) -> None:
    arguments, code, message, hint = BAD[case]
    assert main(["estimate", *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    error_line, hint_line = [line for line in printed.err.splitlines() if line != "hello from train.py"]
    assert error_line.startswith("error: ")
    assert message in error_line
    assert hint_line.startswith("hint: ")
    assert hint in hint_line


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["estimate"], "the following arguments are required: TARGET", "trainfit estimate --help shows"),
        (["estimate", "gpt2", "--batch", "0"], "'0' is not a positive whole number", "trainfit estimate --help shows"),
        (
            ["estimate", "gpt2", "--seq", "1.5"],
            "'1.5' is not a positive whole number",
            "trainfit estimate --help shows",
        ),
        (["estimate", "gpt2", "--allocator", "clasic"], "invalid choice: 'clasic'", "did you mean classic? "),
        (["estimate", "gpt2", "--batches", "2"], "unrecognized arguments: --batches", "did you mean --batch? "),
        (["estimat", "gpt2"], "invalid choice: 'estimat'", "did you mean estimate? "),
    ],
)
def test_bad_usage_is_one_line_a_hint_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    error_line, hint_line = capsys.readouterr().err.splitlines()
    assert error_line.startswith("error: ")
    assert message in error_line
    assert hint_line.startswith(f"hint: {hint}")


def test_verbose_adds_the_traceback_of_the_user_s_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "train.py:raises", "-v"]) == 1
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert 'raise KeyError("lost' in err
    assert err.splitlines()[-2].startswith("error: ")


def test_an_interruption_exits_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "train.py:interrupts"]) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_our_own_failure_says_that_it_is_a_bug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr("trainfit._estimate.simulate_memory", broken)
    assert main(["estimate", "train.py:good"]) == 1
    err = capsys.readouterr().err
    assert "error: trainfit itself failed: RuntimeError: lost\nhint: this is a bug" in err


def test_a_reader_that_stops_reading_is_no_bug() -> None:
    program = "import sys; from trainfit.cli import main; sys.exit(main(['gpus']))"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait() == 1
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


# ---- Terminals -----------------------------------------------------------------------------------------------------


def on_a_terminal(arguments: list[str], **environment: str) -> str:
    """What the command writes when stdout and stderr are a terminal."""
    import pty

    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainfit", *arguments],
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(follower)
    chunks: list[bytes] = []
    try:
        while chunk := os.read(leader, 65536):
            chunks.append(chunk)
    except OSError:  # Linux says so when the other end closes
        pass
    os.close(leader)
    assert process.wait() == 0
    return b"".join(chunks).decode()


def test_a_terminal_gets_colour_and_progress() -> None:
    text = on_a_terminal(["estimate", "train.py:good"])
    assert "train.py:good on a ghost h200: tracing the optimizer" in text
    assert "\x1b[1;32mfits" in text


def test_no_color_is_honoured() -> None:
    text = on_a_terminal(["estimate", "train.py:good"], NO_COLOR="1")
    assert "\x1b[1;32m" not in text
    assert "fits" in text


def test_several_gpus_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    target = f"{tmp_path}/train.py:good"
    assert main(["estimate", target, "--fsdp", "4", "--gpus-per-node", "2", "--inter-node-gbps", "1", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)
    assert estimate["parallelism"] == "FSDP2 over 4 GPUs"
    # Gathered and reduced once: 64 bytes of weights and 16 of biases, in three steps, one of them across nodes, by LL.
    assert estimate["communication_ms"] == pytest.approx(2 * (6.6 + 2 * 0.6 + 2.7) / 1e3, rel=0.1)
    assert estimate["exposed_communication_ms"] >= 0
    assert main(["estimate", target, "--ddp", "2"]) == 0
    assert "DDP over 2 GPUs; all figures are of one of them" in capsys.readouterr().out
    assert main(["estimate", target, "--intra-node-gbps", "100"]) == 2
    assert "pass --fsdp N or --ddp N" in capsys.readouterr().err
