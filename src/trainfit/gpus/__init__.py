"""What is known about GPUs, as data: the catalogue of datasheet numbers and the memory that kernels take unseen."""
