"""The menu of a block: every option that is best for some price per byte.

In: a `BlockGraph`. Out: `Option`s by rising replay time and falling kept bytes. What of that time hides behind
communication is the solver's affair: the fastest replay for its bytes is the fastest whatever of it hides.

For a price of p/q ns per byte the best option is a minimum cut of this network (`best_at_price`):

    source -> op         q * time(op)       cut: the op is replayed; infinite if it is opaque
    op -> v_in           infinite           what is rebuilt is rebuilt by its op; an op's time is paid once
    source -> v_in       infinite           where v cannot be rebuilt: it comes from outside
    v_in -> v_out        p * bytes(v)       cut: v is kept; 0 if v is free; infinite if v can be neither kept nor held
    v_out -> op          infinite           a replayed op finds what it reads
    v_out -> sink        infinite           backward finds what it needs
    other -> op          infinite           where replaying op requires replaying the other (random ops)

The sink's side holds what must be at hand (v_out), what is rebuilt (v_in) and what is replayed (op). A cut without
infinite edges is a decision that serves backward, and its capacity is q * recompute time + p * kept bytes; conversely
every decision, completed by the closure of `replay.evaluate`, is such a cut. So the minimum cut is a best decision.
In-place chains need no edges of their own: an early version cannot be kept, so who reads it replays the chain up to it.

The best value as a function of the price is the lower envelope of lines (kept bytes is the slope, recompute time the
value at price 0), and its lines are the vertices of the convex frontier. Eisner and Severance: between two neighbouring
known vertices, cut at the price at which they cost the same; either nothing is cheaper, and they are neighbours on the
frontier, or a new vertex is found. This takes two cuts per vertex, all in whole numbers.

Between vertices lie options that no price prefers: `pareto` has them.
"""

from __future__ import annotations

from trainfit.solve.graph import BlockGraph
from trainfit.solve.mincut import Network
from trainfit.solve.replay import Option, evaluate


def frontier(graph: BlockGraph) -> tuple[Option, ...]:
    """The vertices of the convex frontier, from nothing replayed to the fewest bytes kept."""
    total_ns, total_bytes = sum(graph.time_ns), sum(graph.nbytes)
    fastest = best_at_price(graph, total_bytes + 1, 1, 1)
    smallest = best_at_price(graph, 1, total_ns + 1, total_ns + 1)
    if smallest.kept_bytes == fastest.kept_bytes:
        return (fastest,)
    vertices = [fastest]
    pending = [smallest]
    while pending:
        left, right = vertices[-1], pending[-1]
        per_byte_ns, per_bytes = right.replay_ns - left.replay_ns, left.kept_bytes - right.kept_bytes
        middle = best_at_price(graph, per_bytes, per_byte_ns, per_byte_ns)
        if _value(middle, per_byte_ns, per_bytes) < _value(left, per_byte_ns, per_bytes):
            pending.append(middle)
        else:
            vertices.append(pending.pop())
    return tuple(vertices)


def _value(option: Option, per_byte_ns: int, per_bytes: int) -> int:
    return per_bytes * option.replay_ns + per_byte_ns * option.kept_bytes


def best_at_price(graph: BlockGraph, ns_price: int, byte_price: int, cast_price: int) -> Option:
    """The option that minimises ns_price * replay ns + byte_price * kept bytes; casts have a price of their own."""
    num_values, num_ops = len(graph.storage), len(graph.time_ns)
    first_op = 2 * num_values
    source, sink = first_op + num_ops, first_op + num_ops + 1
    prices = [
        nbytes * (cast_price if is_cast else byte_price)
        for nbytes, is_cast in zip(graph.nbytes, graph.is_cast, strict=True)
    ]
    infinite = ns_price * sum(graph.time_ns) + sum(prices) + 1
    network = Network(sink + 1)
    for value in range(num_values):
        maker = graph.maker[value]
        network.add_edge(source if maker is None else first_op + maker, 2 * value, infinite)
        if graph.is_free[value]:
            continue  # v_out stays alone: whoever needs it finds it
        can_be_there = graph.is_keepable[value] or graph.is_input[value]
        network.add_edge(2 * value, 2 * value + 1, prices[value] if can_be_there else infinite)
    for op in range(num_ops):
        network.add_edge(source, first_op + op, infinite if graph.is_opaque[op] else ns_price * graph.time_ns[op])
        for value in graph.reads[op]:
            if not graph.is_free[value]:
                network.add_edge(2 * value + 1, first_op + op, infinite)
    for value in graph.needed:
        network.add_edge(2 * value + 1, sink, infinite)
    for op, other in graph.requires:
        network.add_edge(first_op + other, first_op + op, infinite)
    _, on_source_side = network.min_cut(source, sink)
    kept = [
        graph.storage[value]
        for value in range(num_values)
        if graph.is_keepable[value] and on_source_side[2 * value] and not on_source_side[2 * value + 1]
    ]
    option = evaluate(graph, kept)
    assert option is not None, "keeping all that autograd saves serves backward, so a finite cut exists"
    return option
