"""From facts to a decision, roles and error budgets, each with its reasons. Pure."""

from rankclock.planning.model import (
    Answer,
    Decision,
    ErrorBudget,
    Expectation,
    Hop,
    NodeRole,
    NtpServer,
    Owner,
    Plan,
    PortSide,
    PtpPort,
    Question,
    Reach,
    Refusal,
    Role,
    Scheme,
)
from rankclock.planning.plan import make_plan, why_not
from rankclock.planning.settings import DEFAULT_SETTINGS, Settings
from rankclock.planning.tree import decision_text, plan_text

__all__ = [
    "DEFAULT_SETTINGS",
    "Answer",
    "Decision",
    "ErrorBudget",
    "Expectation",
    "Hop",
    "NodeRole",
    "NtpServer",
    "Owner",
    "Plan",
    "PortSide",
    "PtpPort",
    "Question",
    "Reach",
    "Refusal",
    "Role",
    "Scheme",
    "Settings",
    "decision_text",
    "make_plan",
    "plan_text",
    "why_not",
]
