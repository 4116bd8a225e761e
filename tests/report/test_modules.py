"""The table of modules, for steps that were written by hand."""

from __future__ import annotations

from profiles import ACTIVATIONS, BACKWARD, FORWARD, RECOMPUTE, TEMPORARIES, profile_of

from trainfit.report.modules import ModuleRow, Share, longest_modules, module_rows

BEFORE = profile_of(
    [
        (FORWARD, "", [(ACTIVATIONS, 5)]),
        (FORWARD, "layers.0.mlp", [(ACTIVATIONS, 30), (TEMPORARIES, 9)]),
        (FORWARD, "layers.1.mlp", [(ACTIVATIONS, 30)]),
        (FORWARD, "head", [(TEMPORARIES, -9)]),
        (BACKWARD, "head", [(ACTIVATIONS, 1)]),
        (BACKWARD, "layers.1.mlp", [(ACTIVATIONS, -30)]),
        (BACKWARD, "layers.0.mlp", [(ACTIVATIONS, -30)]),
    ]
)
AFTER = profile_of(
    [
        (FORWARD, "", [(ACTIVATIONS, 5)]),
        (FORWARD, "layers.0.mlp", [(TEMPORARIES, 30), (TEMPORARIES, -30)]),
        (FORWARD, "layers.1.mlp", [(ACTIVATIONS, 30)]),
        (FORWARD, "head", []),
        (BACKWARD, "head", []),
        (BACKWARD, "layers.1.mlp", [(ACTIVATIONS, -30)]),
        (RECOMPUTE, "layers.0.mlp", [(TEMPORARIES, 30)]),
        (BACKWARD, "layers.0.mlp", [(TEMPORARIES, -30)]),
    ]
)


def test_equal_modules_are_one_row_with_sums() -> None:
    assert module_rows(BEFORE) == (
        ModuleRow("(outside modules)", 1, 5, None, 10, 0, 0),
        ModuleRow("layers.0-1.mlp", 2, 60, None, 20, 20, 0),
        ModuleRow("head", 1, 0, None, 10, 10, 0),
    )


def test_a_plan_tells_apart_layers_that_do_not_do_the_same() -> None:
    assert module_rows(BEFORE, AFTER) == (
        ModuleRow("(outside modules)", 1, 5, 5, 10, 0, 0),
        ModuleRow("layers.0.mlp", 1, 30, 0, 10, 10, 10),
        ModuleRow("layers.1.mlp", 1, 30, 30, 10, 10, 0),
        ModuleRow("head", 1, 0, 0, 10, 10, 0),
    )


def test_the_layers_of_a_stack_share_their_time() -> None:
    assert longest_modules(AFTER) == (
        Share("layers.*.mlp", 5, 5e-05),
        Share("head", 2, 2e-05),
        Share("(outside modules)", 1, 1e-05),
    )
