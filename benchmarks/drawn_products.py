"""Products of matrices whose calls draw_calls.py draws: layers, gradients of weights, batches, odd sizes.

In and out: as drawn_pieces.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from drawn_pieces import HALVES, Chance, Drawn, Piece, between


def weights_gradient(chance: Chance) -> Drawn:
    """Of a layer: few columns, and as deep as there are tokens."""
    dtype = chance.choice(HALVES)
    inputs, outputs = (between(chance, 128, 4096, 64) for _ in range(2))
    tokens = between(chance, 2048, 65536, 128)
    made = torch.empty(tokens, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
    return Piece(F.linear, *made), ("mm.",)


def products(chance: Chance) -> Drawn:
    """Of float32, or of halves whose rows begin at odd addresses."""
    dtype = chance.choice((torch.float32, torch.float32, *HALVES))
    step = chance.choice((1, 2, 4, 8, 64)) if dtype == torch.float32 else chance.choice((1, 1, 2, 4))
    inputs, outputs = (between(chance, 16, 4096, step) for _ in range(2))
    tokens = between(chance, 256, max(512, min(65536, 2**28 // max(inputs, outputs))), chance.choice((1, 8, 64)))
    biases = [torch.empty(outputs, dtype=dtype)] if chance.random() < 0.5 else []
    made = torch.empty(tokens, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
    return Piece(F.linear, *made, *biases), ("mm.", "addmm.")


def linear(chance: Chance) -> Drawn:
    """Layers of halves as nets have them, float16 as often as bfloat16."""
    dtype = chance.choice((torch.bfloat16, torch.float16))
    inputs = between(chance, 64, 8192, chance.choice((8, 32, 64, 128)))
    outputs = min(65536, round(inputs * chance.choice((0.25, 0.5, 1, 1, 1, 2, 3, 4, 4, 8)) / 8) * 8)
    tokens = between(chance, 256, max(512, min(65536, 2**28 // max(inputs, outputs))), chance.choice((1, 8, 64, 128)))
    biases = [torch.empty(outputs, dtype=dtype)] if chance.random() < 0.4 else []
    made = torch.empty(tokens, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
    return Piece(F.linear, *made, *biases), ("mm.", "addmm.")


def batched(chance: Chance) -> Drawn:
    """Products of many small matrices, float16 as often as others."""
    dtype = chance.choice((torch.bfloat16, torch.float16, torch.float32))
    count = between(chance, 8, 4096)
    rows, inner, columns = (between(chance, 8, 1024, chance.choice((1, 8, 16, 32))) for _ in range(3))
    count = max(1, min(count, 2**28 // max(rows * inner, inner * columns, rows * columns)))
    made = torch.empty(count, rows, inner, dtype=dtype), torch.empty(count, inner, columns, dtype=dtype)
    return Piece(torch.bmm, *made), ("bmm.",)


def long_products(chance: Chance) -> Drawn:
    """Of millions of rows and few columns: layers over pixels, points and rays."""
    dtype = chance.choice((torch.float32, *HALVES))
    step = chance.choice((1, 1, 8, 32))
    inputs, outputs = (between(chance, 3 if step == 1 else 8, 512, step) for _ in range(2))
    rows = min(between(chance, 65536, 2**21), 2**29 // max(inputs, outputs))
    biases = [torch.empty(outputs, dtype=dtype)] if chance.random() < 0.5 else []
    made = torch.empty(rows, inputs, dtype=dtype), torch.empty(outputs, inputs, dtype=dtype)
    return Piece(F.linear, *made, *biases), ("mm.", "addmm.")


def vectors(chance: Chance) -> Drawn:
    """Of one row and a matrix, for each of many samples."""
    dtype = chance.choice((torch.bfloat16, torch.float16, torch.float32))
    inner, columns = (between(chance, 4, 512, chance.choice((1, 4, 8))) for _ in range(2))
    count = max(16, min(between(chance, 256, 2**18), 2**28 // (inner * columns)))
    is_column = chance.random() < 0.3
    row, matrix = (
        torch.empty(count, 1, inner, dtype=dtype),
        torch.empty(count, inner, columns, dtype=dtype),
    )
    if is_column:
        return Piece(lambda x, y: torch.bmm(y.transpose(1, 2), x.transpose(1, 2)), row, matrix), ("bmm.",)
    return Piece(torch.bmm, row, matrix), ("bmm.",)
