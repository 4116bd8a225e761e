"""What a person would call each op of a block: `kinds_of(program)` gives a word per op, such as "norms" or "rope".

In: a `BlockProgram`. Out: one word for each of its ops. First by the op's own name and the modules it runs in; then by
patterns among ops, since what people call rope is a handful of products and sums: halves swapped and negated, or
complex numbers, turned by factors that come from outside of the block; and a product of an activation is its gate.
"""

from __future__ import annotations

from trainfit.records import BlockProgram, Op

ROPE, NORMS, ACTIVATION, RESIDUALS, ELEMENTWISE, WEIGHT_CASTS, CASTS, MATMULS = (
    "rope", "norms", "activation", "residual adds", "elementwise", "weight casts", "casts", "matmuls"
)  # fmt: skip
_NAMED = (  # the first that is part of the op's name, without its namespace and overload
    ("attention", "attention"),
    ("convolution", "convolutions"),
    ("norm", NORMS),
    ("dropout", "dropout"),
    ("bernoulli", "dropout"),
    ("softmax", "softmax"),
    ("embedding", "embeddings"),
    ("gelu", "gelu"),
    ("silu", "silu"),
    ("relu", "relu"),
    ("sigmoid", "sigmoid"),
    ("tanh", "tanh"),
    ("pool", "pooling"),
    ("topk", "routing"),
    ("index_add", "scatters"),
    ("index", "gathers"),
    ("gather", "gathers"),
    ("scatter", "scatters"),
    ("cat", "concatenations"),
    ("stack", "concatenations"),
    ("clone", "copies"),
    ("copy", CASTS),
)
_MATMULS = frozenset("mm addmm bmm baddbmm linear matmul addbmm _grouped_mm".split())
_ELEMENTWISE = frozenset("add sub mul div neg pow rsqrt sqrt exp where addcmul rsub square abs mean sum erf".split())
_ACTIVATIONS = frozenset("gelu silu relu sigmoid tanh".split()) | {ACTIVATION}
_GATED = "{}\u00b7mul"  # with a middle dot, as people write it


def kinds_of(program: BlockProgram) -> list[str]:
    """A word per op."""
    kinds = [_kind_by_name(op) for op in program.ops]
    graph = _Makers(program)
    _find_weight_casts(program, kinds)
    _find_activations(program, kinds)
    _find_rope(program, graph, kinds)
    _find_residuals(program, kinds)
    _find_gates(program, graph, kinds)
    return kinds


def _name(op: Op) -> str:
    return op.name.split(".")[-2].strip("_") if "." in op.name else op.name


def _kind_by_name(op: Op) -> str:
    name, path = _name(op), op.module.lower().split(".")
    if name in _MATMULS:
        return MATMULS
    if any("rotary" in part or "rope" in part for part in path):
        return ROPE
    if "norm" in path[-1]:
        return NORMS
    found = next((kind for part, kind in _NAMED if part in name), None)
    return found or (ELEMENTWISE if name in _ELEMENTWISE else name)


class _Makers:
    """Which op made a storage last, at each op."""

    def __init__(self, program: BlockProgram) -> None:
        self._inputs: list[list[int | None]] = []  # by op: the ops that made what it reads; None for what is not made
        maker: dict[int, int] = {}
        for index, op in enumerate(program.ops):
            self._inputs.append([maker.get(ref.storage) for ref in op.input_refs()])
            maker.update((ref.storage, index) for ref in op.outputs)

    def of(self, op: int) -> list[int]:
        return [maker for maker in self._inputs[op] if maker is not None]

    def reads_from_outside(self, op: int) -> bool:
        return None in self._inputs[op]


def _find_weight_casts(program: BlockProgram, kinds: list[str]) -> None:
    parameters = {ref.storage for _, ref in program.parameters}
    for index, op in enumerate(program.ops):
        storages = [ref.storage for ref in op.input_refs()]
        if kinds[index] == CASTS and storages and parameters.issuperset(storages):
            kinds[index] = WEIGHT_CASTS


def _find_activations(program: BlockProgram, kinds: list[str]) -> None:
    """An activation function that a module of its own spells out."""
    for index, op in enumerate(program.ops):
        module = op.module.rsplit(".", 1)[-1].lower()
        if kinds[index] not in (ELEMENTWISE, CASTS, "tanh", "sigmoid"):
            continue
        if "gelu" in module or "silu" in module or "swish" in module:
            kinds[index] = "gelu" if "gelu" in module else "silu"
        elif module.startswith("act") or "activation" in module:
            kinds[index] = ACTIVATION


def _find_rope(program: BlockProgram, makers: _Makers, kinds: list[str]) -> None:
    """Halves swapped and negated, or complex numbers: products with what comes from outside, and what joins them."""
    names = [_name(op) for op in program.ops]
    swapped: dict[int, list[int]] = {}  # (-second, first) joined -> what negates; not yet known to be turned
    turned: set[int] = set()  # ops of rope, as far as found
    for index, op in enumerate(program.ops):
        made_by = makers.of(index)
        if names[index] in ("cat", "stack"):
            rotated = [maker for maker in made_by if _is_rotation(maker, makers, names)]
            if len(rotated) == len(made_by) >= 2:  # (first turned, second turned)
                turned |= {index, *rotated, *(product for maker in rotated for product in makers.of(maker))}
            elif turned.intersection(made_by):  # a part of the head that is turned, and the rest
                turned.add(index)
            elif negated := [maker for maker in made_by if names[maker] == "neg"]:
                swapped[index] = negated
        elif names[index] == "mul" and makers.reads_from_outside(index):
            joined = [maker for maker in made_by if maker in swapped]
            if joined or any(ref.dtype.startswith("complex") for ref in op.outputs):
                turned |= {index, *joined, *(maker for cat in joined for maker in swapped[cat])}
        elif names[index] in ("add", "sub") and all(names[maker] == "mul" for maker in made_by):
            turned |= {index, *made_by} if turned.intersection(made_by) else set()
    for index in turned:
        kinds[index] = ROPE


def _is_rotation(op: int, makers: _Makers, names: list[str]) -> bool:
    """Whether it is the sum or difference of two products with what comes from outside: x cos - y sin."""
    products = makers.of(op)
    return (
        names[op] in ("add", "sub")
        and len(products) == 2
        and all(names[product] == "mul" and makers.reads_from_outside(product) for product in products)
    )


def _find_residuals(program: BlockProgram, kinds: list[str]) -> None:
    """Sums of two tensors that look as the block's result does."""
    shapes = {ref.shape for ref in program.outputs}
    for index, op in enumerate(program.ops):
        refs = list(op.input_refs())
        looks_so = len(refs) == 2 and refs[0].shape == refs[1].shape and refs[0].shape in shapes
        if looks_so and kinds[index] == ELEMENTWISE and _name(op) == "add":
            kinds[index] = RESIDUALS


def _find_gates(program: BlockProgram, makers: _Makers, kinds: list[str]) -> None:
    """An activation times another tensor: both are called by one name."""
    for index, op in enumerate(program.ops):
        if kinds[index] != ELEMENTWISE or _name(op) != "mul" or len(list(op.input_refs())) != 2:
            continue
        for maker in makers.of(index):
            if kinds[maker] in _ACTIVATIONS and program.ops[maker].outputs[0].numel == op.outputs[0].numel:
                kind, module = kinds[maker], program.ops[maker].module
                gated = _GATED.format(kind)
                kinds[index] = gated
                for other, there in enumerate(program.ops):  # an activation may be several ops
                    if kinds[other] == kind and there.module == module:
                        kinds[other] = gated
                break
