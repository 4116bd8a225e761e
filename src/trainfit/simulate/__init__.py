"""Stage `simulate`: what a traced step does on the target GPU, without one. Imports the records and no torch."""

from trainfit.simulate.allocator import AllocatorMode, CachingAllocator
from trainfit.simulate.blocks import simulate_blocks
from trainfit.simulate.memory import HiddenMemory, simulate_memory
from trainfit.simulate.time import simulate_time

__all__ = ["AllocatorMode", "CachingAllocator", "HiddenMemory", "simulate_blocks", "simulate_memory", "simulate_time"]
