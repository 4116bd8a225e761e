"""Stage `cost`: time per op on the target GPU, from a measured profile or the datasheet. Imports no torch."""

from trainfit.cost.collectives import COLLECTIVE, MEASURED_COLLECTIVE
from trainfit.cost.host import HostCosts, further_times_ns, issue_times_ns, kernels_in_turn
from trainfit.cost.network import Network, network_of
from trainfit.cost.price import (
    OpCost,
    Pricing,
    datasheet_pricing,
    kernels_off,
    price_ops,
    price_with,
    pricing_for,
    unpriced,
)
from trainfit.cost.profile import Profile, load_profile

__all__ = [
    "COLLECTIVE",
    "MEASURED_COLLECTIVE",
    "HostCosts",
    "Network",
    "OpCost",
    "Pricing",
    "Profile",
    "datasheet_pricing",
    "further_times_ns",
    "issue_times_ns",
    "kernels_in_turn",
    "kernels_off",
    "load_profile",
    "network_of",
    "price_ops",
    "price_with",
    "pricing_for",
    "unpriced",
]
