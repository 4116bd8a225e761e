"""What each storage was for, told after the fact from who held it and how long it lived."""

from __future__ import annotations

from trainfit.records import Category, Storage
from trainfit.trace.program import Program
from trainfit.trace.recorder import Recorder


def categorize(recorder: Recorder, program: Program) -> tuple[Storage, ...]:
    """One `Storage` per storage number; call it while the program still holds the model and the optimizer."""
    parameters = {recorder.storage_of(p) for p in program.model.parameters()}
    optimizer_state = {
        recorder.storage_of(value)
        for state in program.optimizer.state.values()
        for value in state.values()
        if getattr(value, "is_cuda", False)
    }
    live = recorder.live_storages()
    section_of = {
        event.storage: section.name for section in recorder.sections for event in section.events if event.is_alloc
    }

    def category(number: int) -> Category:
        if number in parameters or number in recorder.resized:  # FSDP resizes the parameters that it gathers
            return Category.PARAMETERS
        if number in program.gradient_storages:
            return Category.GRADIENTS
        if number in optimizer_state:
            return Category.OPTIMIZER
        if number in live or section_of.get(number) == "build":
            return Category.OTHER
        return Category.ACTIVATIONS if number in program.forward_survivors else Category.TEMPORARIES

    return tuple(Storage(nbytes, category(number)) for number, nbytes in enumerate(recorder.storage_bytes))
