"""Policies for failed samples, and the log of failures."""

from feedline.abc.faults import NEIGHBOUR, ErrorPolicy, Failure, Fault, Verdict
from feedline.faults.actions import Action, Raise, Replace, Retry, Skip
from feedline.faults.log import FaultLog
from feedline.faults.policy import Policy

__all__ = [
    "NEIGHBOUR",
    "Action",
    "ErrorPolicy",
    "Failure",
    "Fault",
    "FaultLog",
    "Policy",
    "Raise",
    "Replace",
    "Retry",
    "Skip",
    "Verdict",
]


def __dir__() -> list[str]:
    return __all__
