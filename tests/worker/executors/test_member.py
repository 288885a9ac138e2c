"""Processes that train a network together find each other, whatever the names of their hosts lead to."""

from __future__ import annotations

import socket

import psutil

from worker.executors.training_member import interface_towards


def test_members_meet_by_the_interface_that_leads_to_the_first_of_them() -> None:
    for name, places in psutil.net_if_addrs().items():
        for place in places:
            if place.family == socket.AF_INET:
                assert interface_towards(f"{place.address}:6379") == name
