"""Solvers: one family per file, the paper's equations and nothing else."""

from typing import NoReturn

from ..plugins import no_attribute, public_names
from .accelerated import OPAPC as OPAPC, AccDNGD as AccDNGD
from .adaptive import AdaptiveGradientTracking as AdaptiveGradientTracking
from .admm import (
    ADMM as ADMM,
    ATG as ATG,
    DLM as DLM,
    LTADMM as LTADMM,
    DiNNO as DiNNO,
)
from .async_push import AsyncPushSum as AsyncPushSum, RunningSumTracking as RunningSumTracking
from .base import Bias as Bias, FunctionSolver as FunctionSolver, Solver as Solver
from .ceca import DSGDCECA as DSGDCECA
from .composite import (
    NIDS as NIDS,
    PGEXTRA as PGEXTRA,
    MGSkip as MGSkip,
    ProximalDiffusion as ProximalDiffusion,
    ProximalGradientTracking as ProximalGradientTracking,
)
from .compressed import BEER as BEER, CHOCO as CHOCO, LEAD as LEAD, MoTEF as MoTEF
from .diffusion import DGD as DGD, Consensus as Consensus, Diffusion as Diffusion
from .federated import SCAFFOLD as SCAFFOLD, FedOpt as FedOpt, FedProx as FedProx
from .filters import (
    AffineProjection as AffineProjection,
    DiffusionKalman as DiffusionKalman,
    DiffusionRLS as DiffusionRLS,
    InformationKalman as InformationKalman,
    SampleSolver as SampleSolver,
)
from .gradient_tracking import GradientTracking as GradientTracking
from .momentum import (
    DecentLaM as DecentLaM,
    DecentralizedMomentum as DecentralizedMomentum,
    QuasiGlobalMomentum as QuasiGlobalMomentum,
)
from .multitask import MultitaskDiffusion as MultitaskDiffusion
from .needs import Needs as Needs, OneOf as OneOf, Within as Within
from .outer import (
    KGT as KGT,
    LED as LED,
    DiLoCo as DiLoCo,
    GASLoC as GASLoC,
    LocalDGD as LocalDGD,
    NoLoCo as NoLoCo,
    SlowMo as SlowMo,
)
from .pairwise import A2CiD2 as A2CiD2, PairwiseGossip as PairwiseGossip
from .primal_dual import (
    D2 as D2,
    EXTRA as EXTRA,
    ExactDiffusion as ExactDiffusion,
    ProxSkip as ProxSkip,
    WangElia as WangElia,
)
from .push import OSGP as OSGP, PushDIGing as PushDIGing, PushSum as PushSum
from .push_pull import PushPull as PushPull
from .relay import RelaySGD as RelaySGD
from .row_stochastic import FROST as FROST
from .step_schedules import (
    Constant as Constant,
    Cosine as Cosine,
    Inverse as Inverse,
    InverseSqrt as InverseSqrt,
    StepDecay as StepDecay,
    StepSchedule as StepSchedule,
    WarmUp as WarmUp,
)
from .unified import SUDA as SUDA
from .updates import Adam as Adam, Clip as Clip, Momentum as Momentum
from .zero_attracting import ZeroAttractingDiffusion as ZeroAttractingDiffusion

CATALOGUE: dict[str, type[Solver]] = {
    "consensus": Consensus,
    "dgd": DGD,
    "diffusion": Diffusion,
    "multitask_diffusion": MultitaskDiffusion,
    "zero_attracting_diffusion": ZeroAttractingDiffusion,
    "extra": EXTRA,
    "exact_diffusion": ExactDiffusion,
    "d2": D2,
    "gradient_tracking": GradientTracking,
    "adaptive_gradient_tracking": AdaptiveGradientTracking,
    "suda": SUDA,
    "wang_elia": WangElia,
    "admm": ADMM,
    "dlm": DLM,
    "dinno": DiNNO,
    "lt_admm": LTADMM,
    "atg": ATG,
    "prox_skip": ProxSkip,
    "mg_skip": MGSkip,
    "nids": NIDS,
    "pg_extra": PGEXTRA,
    "proximal_gradient_tracking": ProximalGradientTracking,
    "proximal_diffusion": ProximalDiffusion,
    "push_sum": PushSum,
    "osgp": OSGP,
    "push_diging": PushDIGing,
    "push_pull": PushPull,
    "frost": FROST,
    "relaysgd": RelaySGD,
    "dsgd_ceca": DSGDCECA,
    "acc_dngd": AccDNGD,
    "opapc": OPAPC,
    "choco": CHOCO,
    "beer": BEER,
    "motef": MoTEF,
    "lead": LEAD,
    "decentralized_momentum": DecentralizedMomentum,
    "quasi_global_momentum": QuasiGlobalMomentum,
    "decentlam": DecentLaM,
    "local_dgd": LocalDGD,
    "slowmo": SlowMo,
    "diloco": DiLoCo,
    "gasloc": GASLoC,
    "noloco": NoLoCo,
    "fedprox": FedProx,
    "fedopt": FedOpt,
    "scaffold": SCAFFOLD,
    "kgt": KGT,
    "led": LED,
    "diffusion_rls": DiffusionRLS,
    "affine_projection": AffineProjection,
    "diffusion_kalman": DiffusionKalman,
    "information_kalman": InformationKalman,
    "async_push_sum": AsyncPushSum,
    "pairwise_gossip": PairwiseGossip,
    "a2cid2": A2CiD2,
    "running_sum_tracking": RunningSumTracking,
}
"""The solvers by the names that the command line uses."""

PAPERS: dict[str, tuple[str, dict[str, object]]] = {
    "ab": ("push_pull", {}),
    "aug_dgm": ("gradient_tracking", {"variant": "atc"}),
    "diging": ("gradient_tracking", {"variant": "diging"}),
    "dmsgd": ("decentralized_momentum", {}),
    "next": ("gradient_tracking", {"variant": "semi-atc"}),
    "qg_dsgdm": ("quasi_global_momentum", {"nesterov": False}),
    "qg_dsgdm_n": ("quasi_global_momentum", {"nesterov": True}),
    "rza_diffusion": ("zero_attracting_diffusion", {"reweighted": True}),
    "sonata": ("gradient_tracking", {"variant": "semi-atc"}),
}
"""Other names in papers, with the options that they stand for."""

TITLES: dict[str, str] = {
    "consensus": "Consensus",
    "dgd": "DGD",
    "diffusion": "Diffusion",
    "multitask_diffusion": "Multitask Diffusion",
    "zero_attracting_diffusion": "ZA Diffusion",
    "extra": "EXTRA",
    "exact_diffusion": "Exact Diffusion",
    "d2": "D$^2$",
    "gradient_tracking": "Gradient Tracking",
    "adaptive_gradient_tracking": "Adaptive Gradient Tracking",
    "suda": "SUDA",
    "wang_elia": "Wang–Elia",
    "admm": "ADMM",
    "dlm": "DLM",
    "dinno": "DiNNO",
    "lt_admm": "LT-ADMM",
    "atg": "ATG",
    "prox_skip": "ProxSkip",
    "mg_skip": "MG-Skip",
    "nids": "NIDS",
    "pg_extra": "PG-EXTRA",
    "proximal_gradient_tracking": "Proximal Gradient Tracking",
    "proximal_diffusion": "Proximal Diffusion",
    "push_sum": "Gradient-Push",
    "osgp": "OSGP",
    "push_diging": "Push-DIGing",
    "push_pull": "Push-Pull",
    "frost": "FROST",
    "relaysgd": "RelaySGD",
    "dsgd_ceca": "DSGD-CECA",
    "acc_dngd": "Acc-DNGD",
    "opapc": "OPAPC",
    "choco": "CHOCO-SGD",
    "beer": "BEER",
    "motef": "MoTEF",
    "lead": "LEAD",
    "decentralized_momentum": "DmSGD",
    "quasi_global_momentum": "QG-DSGDm",
    "decentlam": "DecentLaM",
    "local_dgd": "Local DSGD",
    "slowmo": "SlowMo",
    "diloco": "DiLoCo",
    "gasloc": "GASLoC",
    "noloco": "NoLoCo",
    "fedprox": "FedProx",
    "fedopt": "FedOpt",
    "scaffold": "SCAFFOLD",
    "kgt": "K-GT",
    "led": "LED",
    "diffusion_rls": "Diffusion RLS",
    "affine_projection": "Diffusion Affine Projection",
    "diffusion_kalman": "Diffusion Kalman Filter",
    "information_kalman": "Information Consensus Kalman Filter",
    "async_push_sum": "Asynchronous Push-Sum",
    "pairwise_gossip": "Asynchronous Gossip",
    "a2cid2": "A$^2$CiD$^2$",
    "running_sum_tracking": "Running-Sum Tracking",
}
"""The names of the solvers in figures and printed tables, with formulas in ``$...$``."""


def __getattr__(name: str) -> NoReturn:
    raise no_attribute(__name__, name, __dir__())


def __dir__() -> list[str]:
    return public_names(__name__, globals())
