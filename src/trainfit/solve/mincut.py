"""Minimum cut by Dinic's algorithm on integer capacities.

In: a `Network` to which edges were added. Out: which nodes are on the source's side of a minimum cut; of all minimum
cuts, the one with the smallest source side, so the answer does not depend on the order of the edges.

Exact: capacities are Python integers of any size. Iterative: no recursion, so long chains are no problem. A phase
builds the levels of a breadth-first search and fills them with a blocking flow; the distance from source to sink grows
with each phase, so there are fewer phases than nodes.
"""

from __future__ import annotations


class Network:
    """A directed graph with capacities; nodes are 0 to num_nodes - 1."""

    def __init__(self, num_nodes: int) -> None:
        self._edges_of: list[list[int]] = [[] for _ in range(num_nodes)]
        self._head: list[int] = []
        self._capacity: list[int] = []  # what is left; edge e ^ 1 is the reverse of e

    def add_edge(self, tail: int, head: int, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"the edge {tail} -> {head} has capacity {capacity}; it must not be negative")
        for start, end, room in ((tail, head, capacity), (head, tail, 0)):
            self._edges_of[start].append(len(self._head))
            self._head.append(end)
            self._capacity.append(room)

    def min_cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """The cut's capacity, and for each node whether it is on the source's side. Uses the network up."""
        flow = 0
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return flow, [distance >= 0 for distance in level]
            flow += self._blocking_flow(source, sink, level)

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self._edges_of)
        level[source] = 0
        frontier = [source]
        for node in frontier:  # grows while it is read
            for edge in self._edges_of[node]:
                head = self._head[edge]
                if self._capacity[edge] > 0 and level[head] < 0:
                    level[head] = level[node] + 1
                    frontier.append(head)
        return level

    def _blocking_flow(self, source: int, sink: int, level: list[int]) -> int:
        edges_of, heads, capacity = self._edges_of, self._head, self._capacity
        next_edge = [0] * len(edges_of)
        path: list[int] = []
        node, flow = source, 0
        while True:
            if node == sink:
                room = min(capacity[edge] for edge in path)
                flow += room
                first_full = None
                for depth, edge in enumerate(path):
                    capacity[edge] -= room
                    capacity[edge ^ 1] += room
                    if capacity[edge] == 0 and first_full is None:
                        first_full = depth
                assert first_full is not None
                node = heads[path[first_full] ^ 1]
                del path[first_full:]
                continue
            while next_edge[node] < len(edges_of[node]):
                edge = edges_of[node][next_edge[node]]
                if capacity[edge] > 0 and level[heads[edge]] == level[node] + 1:
                    path.append(edge)
                    node = heads[edge]
                    break
                next_edge[node] += 1
            else:
                if not path:
                    return flow
                edge = path.pop()
                node = heads[edge ^ 1]
                next_edge[node] += 1
