"""The rates of links between devices and the host's memory (data/devices/links.csv)."""

import csv
import functools
from collections.abc import Mapping
from typing import NamedTuple

from acplan._base.package import shared_file


class HostLink(NamedTuple):
    """A link, in bytes a second each way, and the GPUs that have it."""

    gpus: tuple[str, ...]
    to_host: float
    to_device: float


@functools.cache
def host_links() -> Mapping[str, HostLink]:
    """Returns the links by name."""
    lines = shared_file("data/devices/links.csv").read_text().splitlines()
    return {
        row["link"]: HostLink(
            tuple(row["gpus"].split()),
            float(row["to_host_gbs"]) * 1e9,
            float(row["to_device_gbs"]) * 1e9,
        )
        for row in csv.DictReader(lines)
    }


def link_of_gpu(gpu: str) -> HostLink:
    """Returns the link of a GPU of the table."""
    return next(link for link in host_links().values() if gpu in link.gpus)
