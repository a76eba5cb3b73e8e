"""What every test of the bench shares."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """These runs store thousands of records; tests/runs sees to what a power cut leaves."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
