"""The versions that a record needs to be understood later."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


PACKAGES = ("gradguard", "torch", "numpy", "pydantic")


@cache
def describe_environment() -> dict[str, str]:
    """Return the versions of Python, the platform and the packages that a run depends on."""
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed as a package"
    return found
