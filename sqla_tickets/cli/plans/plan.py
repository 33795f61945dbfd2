"""A plan: a change's steps, how it is made, and what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ... import TicketError

#: How the line of a step begins that cannot be done.
NOT_POSSIBLE: Final = "NOT POSSIBLE"
#: How the line begins of what has to be done elsewhere, so that the plan is not complete.
NOT_FINISHED: Final = "NOT FINISHED"


@dataclass(frozen=True)
class Plan:
    """A planned change.

    Attributes:
        steps: a line for each step, by sequence; steps for all sequences have an empty name.
        run: makes the change, and returns the guarantees from now on, as read from the servers. It can be called
            again after an error: finished steps are kept.
        following: the operator's next steps when all of every plan is done.
        repairs: the operator's steps for what cannot be done.
        refusal: why it could not be planned; None if it could.
        is_possible: whether some of it can be done.
        can_be_undone: whether another command undoes it.
    """

    steps: Mapping[str, Sequence[str]]
    run: Callable[[], list[str]]
    following: Sequence[str] = ()
    repairs: Sequence[str] = ()
    refusal: TicketError | None = None
    is_possible: bool = True
    can_be_undone: bool = False

    @property
    def lines(self) -> list[str]:
        """All steps."""
        return [line for lines in self.steps.values() for line in lines]

    @property
    def is_complete(self) -> bool:
        """Whether every step can be done, as far as is known."""
        return not any(line.startswith((NOT_POSSIBLE, NOT_FINISHED)) for line in self.lines)


class PartlyDone(TicketError):
    """Raised if some steps of a plan failed.

    Attributes:
        proof: what the finished steps guarantee from now on; empty if nothing.
    """

    def __init__(self, reasons: str, proof: str) -> None:
        super().__init__(reasons)
        self.proof = proof

    def __reduce__(self) -> tuple[type[PartlyDone], tuple[str, str]]:
        return type(self), (str(self), self.proof)


def impossible(name: str, error: TicketError) -> Plan:
    """The plan for a sequence for which nothing can be done."""

    def run() -> list[str]:
        raise error

    return Plan({name: [f"{NOT_POSSIBLE}: {error}"]}, run, refusal=error, is_possible=False)
