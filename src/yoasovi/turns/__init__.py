"""What one turn of each kind of method is: plan, look, propose, judge, settle.

Windows decide on the host, for all running lanes at once; single steps run many to a call inside `kernels.chain`. Only a
rule may say "roll back", and only `WindowTurns` (in a chain, `chain.turn`) does it, for parameters, optimiser and yardstick
together.
"""

from yoasovi.turns.chains import ChainTurns, ScoreTurns
from yoasovi.turns.groups import GroupTurns
from yoasovi.turns.labels import LabelTurns
from yoasovi.turns.natural import NaturalTurns
from yoasovi.turns.state import Journey, Limits, RunState, TurnRow, Turns
from yoasovi.turns.values import ValueTurns

__all__ = [
    "ChainTurns", "GroupTurns", "Journey", "LabelTurns", "Limits", "NaturalTurns", "RunState", "ScoreTurns", "TurnRow",
    "Turns", "ValueTurns",
]  # fmt: skip
