"""Fixtures shared by all tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

# Test processes run side by side; a pool of threads in each would only fight for the cores.
torch.set_num_threads(1)


def load_golden() -> dict[str, Any]:
    """Reference values of tests/golden/golden.json."""
    golden: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "golden.json").read_text())
    return golden


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    return load_golden()
