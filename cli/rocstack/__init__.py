"""rocstack turns a list of AMD GPU servers into a Slurm cluster for multi-node training.

The steps are functions, such as `rocstack.build(rocstack.BuildOptions(nic="broadcom"))`; docs/python.md has examples.
They take typed options, return values, raise RocstackError and print nothing. `import rocstack` loads none of them.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rocstack.base import __version__

if TYPE_CHECKING:
    from rocstack.base.errors import BadInput, CheckFailed, Missing, RocstackError
    from rocstack.steps.build import BuildEvents, build, lock
    from rocstack.steps.deploy import deploy, plan_deploy, plan_rollback, rollback, status
    from rocstack.steps.doctor import doctor
    from rocstack.steps.explain import explain, render, stacks
    from rocstack.steps.first_light import first_light, replay
    from rocstack.steps.job_options import RunOptions, SizeOptions
    from rocstack.steps.options import (
        BuildOptions,
        DeployOptions,
        DoctorOptions,
        ExplainOptions,
        FirstLightOptions,
        LockOptions,
        OutdatedOptions,
        ProbeOptions,
        RenderOptions,
        ReplayOptions,
        RollbackOptions,
        StacksOptions,
        StatusOptions,
        VerifyOptions,
    )
    from rocstack.steps.outdated import outdated
    from rocstack.steps.probe import fabric_environment, probe
    from rocstack.steps.run import plan_run
    from rocstack.steps.size import size
    from rocstack.steps.verify import verify

__all__ = ["BadInput", "BuildEvents", "BuildOptions", "CheckFailed", "DeployOptions", "DoctorOptions"]
__all__ += [
    "ExplainOptions",
    "FirstLightOptions",
    "LockOptions",
    "Missing",
    "OutdatedOptions",
    "ProbeOptions",
    "RenderOptions",
]
__all__ += ["ReplayOptions", "RocstackError", "RollbackOptions", "RunOptions", "SizeOptions", "StacksOptions"]
__all__ += ["StatusOptions", "VerifyOptions", "__version__", "build", "deploy", "doctor", "explain"]
__all__ += [
    "fabric_environment",
    "first_light",
    "lock",
    "outdated",
    "plan_deploy",
    "plan_rollback",
    "plan_run",
    "probe",
]
__all__ += ["render", "replay", "rollback", "size", "stacks", "status", "verify"]
_OF_JOBS = ("RunOptions", "SizeOptions")
_HOMES = {
    "base.errors": ("BadInput", "CheckFailed", "Missing", "RocstackError"),
    "steps.options": tuple(name for name in __all__ if name.endswith("Options") and name not in _OF_JOBS),
    "steps.job_options": _OF_JOBS,
    "steps.build": ("BuildEvents", "build", "lock"),
    "steps.deploy": ("deploy", "plan_deploy", "plan_rollback", "rollback", "status"),
    "steps.doctor": ("doctor",),
    "steps.explain": ("explain", "render", "stacks"),
    "steps.first_light": ("first_light", "replay"),
    "steps.outdated": ("outdated",),
    "steps.probe": ("fabric_environment", "probe"),
    "steps.run": ("plan_run",),
    "steps.size": ("size",),
    "steps.verify": ("verify",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_PACKAGES = ("deploy", "doctor", "probe", "size", "verify")  # that have a step's name


def _step(name: str) -> Any:
    return getattr(import_module(f"rocstack.{_HOME[name]}"), name)


class _StepPackage(ModuleType):
    """A package with a step's name: rocstack.probe is the package, and to call it is to call the step."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _step(self.__name__.rpartition(".")[2])(*args, **kwargs)


class _Rocstack(ModuleType):
    """Loads a name when it is first used."""

    def __getattr__(self, name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'rocstack' has no attribute '{name}'")
        return import_module(f"rocstack.{name}") if name in _PACKAGES else _step(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _PACKAGES and isinstance(value, ModuleType):
            value.__class__ = _StepPackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Rocstack
