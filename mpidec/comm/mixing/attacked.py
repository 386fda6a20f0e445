"""Mixers some of whose agents send other rows than their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from inspect import signature

import numpy as np

from ... import _validation as check
from ..._words import word
from .disturbed import Disturbed
from .edges import edges_out_of
from .edgewise import EdgewisePhase, returned
from .exchange import mapped
from .noisy import Noisy
from .operator import Attack, Operator, StepOperator
from .packing import Empty

ATTACKS = ("sign_flip",)


def _is_told(attack: Callable[..., object]) -> bool:
    """Whether a function has a fourth parameter `receiver`."""
    try:
        return list(signature(attack).parameters)[3:4] == ["receiver"]
    except (TypeError, ValueError):  # it has no signature
        return False


class AttackedPhase(EdgewisePhase):
    """The operator of one step of an `Attacked` mixer, on one graph.

    Parameters
    ----------
    phase, k, at, empty, agents, stripe, calls
        See `EdgewisePhase`.
    attacks : dict of int to str, float or callable
    told : set of int
        The agents whose functions are told the receiver.
    """

    def __init__(
        self,
        phase: StepOperator,
        k: int,
        at: Callable[[int], StepOperator],
        empty: Empty,
        agents: range,
        stripe: int,
        calls: Iterator[int],
        attacks: Mapping[int, Attack],
        told: Set[int],
    ):
        super().__init__(phase, k, at, empty, agents, stripe, calls)
        self._settings = attacks, told
        out = edges_out_of(self.topology, agents.start, agents.stop)
        self._attackers = [
            (edge, agent, (receiver,) * (agent in told))
            for edge, (agent, receiver) in enumerate(
                zip(out.senders.tolist(), out.receivers.tolist())
            )
            if agent in attacks
        ]

    def _like(self, phase: StepOperator, at: Callable[[int], StepOperator]) -> StepOperator:
        return AttackedPhase(
            phase,
            self._k,
            at,
            self._empty,
            self._agents,
            self._stripe,
            self._calls,
            *self._settings,
        )

    def exchange(self, M: np.ndarray) -> np.ndarray:
        """Send a different row over each edge; those of the attackers are replaced."""
        with self._propagate_errors("W.exchange(M)"):
            sent = mapped(M, self._attacked) if self._attackers else M
        return self._phase.exchange(sent)

    def _attacked(self, rows: np.ndarray) -> np.ndarray:
        sent: np.ndarray = rows.copy()
        for edge, agent, receiver in self._attackers:
            attack = self._settings[0][agent]
            if callable(attack):
                sent[edge] = returned(
                    attack(self._k, agent, rows[edge], *receiver),
                    f"the attack of agent {agent}",
                    rows[edge],
                    number=True,
                )
            else:
                sent[edge] = -rows[edge] if isinstance(attack, str) else attack
        return sent


class Attacked(Disturbed):
    r"""A mixer some of whose agents send other rows than their own; made by `Mixer.attacked`.

    .. math:: Y_i = w_{ii} X_i + \sum_{j \ne i} w_{ij} a_{ij}(X_j)

    Parameters
    ----------
    W : Operator
        A mixer, compressed (without error feedback) or not.
    attacks : dict
        See `Mixer.attacked`.

    Notes
    -----
    Sent per call: as without attacks.  An attacker computes like all others; only what it sends is replaced.
    """

    def __init__(self, W: Operator[StepOperator], attacks: Mapping[int, Attack]):
        super().__init__(W)
        if not isinstance(attacks, Mapping):
            raise TypeError(
                f"attacked: attacks is {attacks!r:.60}, expected a dict of agents and what they send: {{3: 'sign_flip', 5: 100.0}}"
            )
        self.attacks: dict[int, Attack] = {}
        for agent, attack in attacks.items():
            number = check.integer(agent, "attacked: agent", least=0, most=W.n - 1)
            if isinstance(attack, str):
                check.choice(attack, f"attacked: the attack of agent {number}", ATTACKS)
            elif not (callable(attack) or check.is_number(attack)):
                raise TypeError(
                    f"attacked: the attack of agent {number} is {attack!r}, expected 'sign_flip', a number that it sends "
                    "in all entries, or a function of (step, agent, row) or (step, agent, row, receiver)"
                )
            if number in self.attacks:
                raise ValueError(
                    f"attacked: agent {number} is named twice, expected one attack of each agent"
                )
            self.attacks[number] = attack
        functions = {agent: attack for agent, attack in self.attacks.items() if callable(attack)}
        self.columnwise = W.columnwise and not functions
        self._told = {agent for agent, attack in functions.items() if _is_told(attack)}

    @property
    def call(self) -> str:
        """The call that makes it of the mixer below."""
        return f"attacked({word(self.attacks)})"

    def over(self, W: Operator[StepOperator]) -> Attacked:
        return Attacked(W, self.attacks)

    def own_disturbance(self) -> str:
        """The attackers."""
        agents = ", ".join(map(str, sorted(self.attacks)))
        return f"wrong rows are sent (attackers: {agents})" if agents else ""

    def _part(self, phase: StepOperator, k: int, stripe: int, calls: Iterator[int]) -> StepOperator:
        return AttackedPhase(
            phase, k, self.at, self.empty, self.agents, stripe, calls, self.attacks, self._told
        )

    def noisy(self, sigma: float, *, seed: int = 0) -> Noisy:
        """This mixer with noise on what arrives; see `Mixer.noisy`."""
        return Noisy(self, sigma, seed)
