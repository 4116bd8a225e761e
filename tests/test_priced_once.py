"""Ops that look alike are priced once: within a trace, and by one pricing also from trace to trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from priced_ops import H200, add, mm
from trainfit.cost import price, price_with, pricing_for
from trainfit.cost.network import network_of
from trainfit.records import Op


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ops that are priced, in order."""
    names: list[str] = []
    really = price._price

    def noted(op: Op, pricing: price.Pricing) -> price.OpCost:
        names.append(op.name)
        return really(op, pricing)

    monkeypatch.setattr(price, "_price", noted)
    return names


def moved(op: Op, by: int) -> Op:
    """The same op of another layer: other storages, another module."""
    args = tuple(replace(arg, storage=arg.storage + by) for arg in op.args)  # type: ignore[type-var]
    outputs = tuple(replace(output, storage=output.storage + by) for output in op.outputs)
    return replace(op, args=args, outputs=outputs, module=f"layers.{by}")


def test_layers_that_are_alike_are_priced_once(priced: list[str]) -> None:
    layer = mm(64, 64, 64)
    costs = price_with([layer, moved(layer, 7), add(10)], pricing_for(H200))
    assert priced == ["aten.mm.default", "aten.add.Tensor"]
    assert costs[0] is costs[1]


def test_a_pricing_remembers_what_it_priced(priced: list[str]) -> None:
    pricing = pricing_for(H200)
    first = price_with([mm(64, 64, 64), add(10)], pricing)
    assert price_with([add(10), add(20), mm(64, 64, 64)], pricing)[::2] == first[::-1]
    assert priced == ["aten.mm.default", "aten.add.Tensor", "aten.add.Tensor"]


def test_another_pricing_prices_anew(priced: list[str]) -> None:
    pricing = pricing_for(H200)
    for other in (pricing, replace(pricing, network=network_of(H200)), pricing_for(H200)):
        price_with([add(10)], other)
    assert priced == ["aten.add.Tensor"] * 3


def test_sizes_numbers_and_shared_storages_are_told_apart(priced: list[str]) -> None:
    x = add(10)
    in_place = replace(x, outputs=x.args[:1])  # type: ignore[arg-type]
    same_twice = replace(x, args=(x.args[0], x.args[0]))
    scaled, whole = (replace(x, kwargs=(("alpha", number),)) for number in (1.0, 1))
    price_with([x, add(11), in_place, same_twice, scaled, whole], pricing_for(H200))
    assert len(priced) == 6
