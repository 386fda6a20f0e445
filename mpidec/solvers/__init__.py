"""Solvers: one family per file, the paper's equations and nothing else."""

from .async_push import AsyncPushSum as AsyncPushSum
from .async_push import RunningSumTracking as RunningSumTracking
from .base import Solver as Solver
from .ceca import DSGDCECA as DSGDCECA
from .diffusion import DGD as DGD
from .diffusion import Consensus as Consensus
from .diffusion import Diffusion as Diffusion
from .gradient_tracking import GradientTracking as GradientTracking
from .momentum import DecentLaM as DecentLaM
from .momentum import DecentralizedMomentum as DecentralizedMomentum
from .momentum import QuasiGlobalMomentum as QuasiGlobalMomentum
from .outer import KGT as KGT
from .outer import LED as LED
from .outer import DiLoCo as DiLoCo
from .outer import GASLoC as GASLoC
from .outer import LocalDGD as LocalDGD
from .outer import SlowMo as SlowMo
from .pairwise import A2CiD2 as A2CiD2
from .pairwise import PairwiseGossip as PairwiseGossip
from .primal_dual import D2 as D2
from .primal_dual import EXTRA as EXTRA
from .primal_dual import ExactDiffusion as ExactDiffusion
from .push import PushDIGing as PushDIGing
from .push import PushSum as PushSum
from .relay import RelaySGD as RelaySGD
from .step_schedules import Constant as Constant
from .step_schedules import Cosine as Cosine
from .step_schedules import Inverse as Inverse
from .step_schedules import InverseSqrt as InverseSqrt
from .step_schedules import StepDecay as StepDecay
from .step_schedules import StepSchedule as StepSchedule
from .step_schedules import WarmUp as WarmUp

CATALOGUE: dict[str, type[Solver]] = {
    "consensus": Consensus,
    "dgd": DGD,
    "diffusion": Diffusion,
    "extra": EXTRA,
    "exact_diffusion": ExactDiffusion,
    "d2": D2,
    "gradient_tracking": GradientTracking,
    "push_sum": PushSum,
    "push_diging": PushDIGing,
    "relaysgd": RelaySGD,
    "dsgd_ceca": DSGDCECA,
    "decentralized_momentum": DecentralizedMomentum,
    "quasi_global_momentum": QuasiGlobalMomentum,
    "decentlam": DecentLaM,
    "local_dgd": LocalDGD,
    "slowmo": SlowMo,
    "diloco": DiLoCo,
    "gasloc": GASLoC,
    "kgt": KGT,
    "led": LED,
    "async_push_sum": AsyncPushSum,
    "pairwise_gossip": PairwiseGossip,
    "a2cid2": A2CiD2,
    "running_sum_tracking": RunningSumTracking,
}
"""The solvers by the names that the command line uses."""


def __dir__() -> list[str]:
    """The public names: what is defined in the modules of this package and imported here."""
    return sorted(
        [
            "CATALOGUE",
            *(
                name
                for name, thing in globals().items()
                if getattr(thing, "__module__", "").startswith(__name__)
                and not name.startswith("_")
            ),
        ]
    )
