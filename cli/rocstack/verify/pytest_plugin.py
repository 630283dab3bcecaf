"""The pytest plugin of tests/cluster: chooses the checks, gives them the cluster or its recorded evidence, and writes
down what they find.

`rocstack verify` uses it; by hand:
    pytest -p rocstack.verify.pytest_plugin tests/cluster --hosts=ansible://all --ansible-inventory=inventory.yml
"""

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from fnmatch import fnmatchcase
from typing import Any

import pytest

from rocstack.base.errors import RocstackError
from rocstack.base.levels import HARDWARE, LEVELS
from rocstack.verify import result, thresholds
from rocstack.verify.evidence import CheckSkipped, Evidence, NodeEvidence
from rocstack.verify.recorder import Recorder, sort_out, without
from rocstack.verify.result import MARK, Check, CheckResult, Measure, Skip, State
from rocstack.verify.session import Suite
from rocstack.verify.slurm_session import USER

_SUITE = pytest.StashKey[Suite]()
_RECORDER = pytest.StashKey[Recorder]()
_BEGAN = pytest.StashKey[float]()  # seconds since the epoch


def check(*, cannot: str, **about: Any) -> pytest.MarkDecorator:
    """Makes a test function a check; takes what `Check` has, and none goes without its limits."""
    return pytest.mark.check(Check(cannot=cannot, **about))


def of_item(item: pytest.Item) -> Check | None:
    mark = item.get_closest_marker(MARK)
    return mark.args[0] if mark else None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rocstack")
    group.addoption("--inventory", dest="rocstack_inventory", help="the cluster's inventory")
    group.addoption("--level", dest="rocstack_level", type=int, default=3, choices=LEVELS)
    group.addoption("--only", dest="rocstack_only", help="checks whose name fits this pattern")
    group.addoption("--evidence", dest="rocstack_evidence", help="judge this file instead of a cluster")
    group.addoption("--report", dest="rocstack_report", help="folder for the report")
    group.addoption("--runs", dest="rocstack_runs", help="folder of the runs so far: compare with the last like this")
    group.addoption("--user", dest="rocstack_user", default=USER, help="whose jobs they are")
    group.addoption("--wait", dest="rocstack_wait", type=float, default=300, help="seconds a job may wait")
    group.addoption("--events", dest="rocstack_events", type=int, help="file descriptor for progress")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}: a check of the acceptance suite")
    config.stash[_SUITE] = Suite(config)
    # Whatever a script starts in its background ignores SIGINT, and so would we.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those of the level that was asked for, from the lowest on; in a level as they stand, and those that mostly wait
    last: what comes before them can begin them."""
    level, only = config.getoption("rocstack_level"), config.getoption("rocstack_only")
    checks = {item: about for item in items if (about := of_item(item))}
    fit = [item for item, about in checks.items() if about.level <= level and fnmatchcase(about.name, only or "*")]
    config.hook.pytest_deselected(items=[item for item in items if item not in fit])
    items[:] = sorted(fit, key=lambda item: (checks[item].level, "tried" in getattr(item, "fixturenames", ())))
    config.stash[_SUITE].event("checks", checks=[checks[item].model_dump() for item in items])


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """A cluster that can't be read is said once, and not by every check."""
    if session.config.option.collectonly or not session.items:
        return
    suite = session.config.stash[_SUITE]
    try:
        suite.cluster_evidence()
    except RocstackError as error:
        suite.event("stopped", error=error.to_dict())
        pytest.exit(f"{error.what}\n{error.next_step or ''}", returncode=error.exit_code)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if about := of_item(item):
        item.stash[_BEGAN] = time.time()
        item.config.stash[_SUITE].event("start", check=about.name)


@pytest.fixture(scope="session")
def suite(pytestconfig: pytest.Config) -> Iterator[Suite]:
    with closing(pytestconfig.stash[_SUITE]) as session_suite:
        yield session_suite


@pytest.fixture(scope="session")
def evidence(suite: Suite) -> Evidence:
    return suite.evidence


class _LazyCluster:
    """The cluster, connected to when something of it is asked for: what is replayed never does."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite

    def __getattr__(self, name: str) -> Any:
        return getattr(self._suite.cluster, name)


@pytest.fixture(scope="session")
def cluster(suite: Suite) -> Any:
    return _LazyCluster(suite)


@pytest.fixture(scope="session")
def all_nodes(suite: Suite) -> tuple[NodeEvidence, ...]:
    """Those that were reached."""
    return suite.cluster_evidence().reached


@pytest.fixture
def record(request: pytest.FixtureRequest, suite: Suite, all_nodes: tuple[NodeEvidence, ...]) -> Recorder:
    """For the nodes that have what the check needs."""
    about = of_item(request.node)
    assert about, "only a check records"
    judged = [node for node in all_nodes if node.is_worker or about.scope == "cluster"]
    if "jobs" in about.needs and any(not node.no_jobs for node in all_nodes if node.is_worker):
        left_out = suite.left_out()
        reasons = ((node, node.no_jobs or left_out.get(node.name, "")) for node in judged)
        judged = [node.model_copy(update={"no_jobs": why}) for node, why in reasons]
    tools: Mapping[str, list[str]] = {}
    if any(need.startswith("tool:") for need in about.needs):
        tools = request.getfixturevalue("tools")
    unfit = without(suite.cluster_evidence().labels)
    recorder = sort_out(judged, about.needs, tools, unfit=unfit, hardware=about.level >= HARDWARE)
    recorder.quantities = thresholds.load(suite.settings.overlay_folder())
    request.node.stash[_RECORDER] = recorder
    return recorder


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    recorder = pyfuncitem.stash.get(_RECORDER, None)
    if recorder is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    recorder.run(lambda: pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """The state of a check is that of its measures; of an exception, it is an error."""
    report = yield
    about = of_item(item)
    if about is None or call.when == "teardown" or (call.when == "setup" and report.passed):
        return report
    recorder = item.stash.get(_RECORDER, Recorder((), ()))
    measures = tuple(recorder.measures)
    state, why, skips = _outcome(call, measures)
    outcome = CheckResult(
        check=about,
        state=state,
        seconds=round(call.stop - item.stash.get(_BEGAN, call.start), 3),  # its evidence is gathered before the call
        measures=measures,
        why=why,
        skips=skips,
        drawings=dict(recorder.drawings),
    )
    suite = item.config.stash[_SUITE]
    suite.results.append(outcome)
    suite.event("result", result=outcome.model_dump(mode="json"))
    if state in result.BAD and report.passed:
        bad = [measure for measure in measures if measure.state in result.BAD]
        report.outcome, report.longrepr = "failed", "\n".join(f"{m.node or 'cluster'}: {m.why}" for m in bad) or why
    elif state == "skipped" and not report.skipped:
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {why}")
    return report


def _outcome(call: pytest.CallInfo[None], measures: tuple[Measure, ...]) -> tuple[State, str, tuple[Skip, ...]]:
    raised = call.excinfo.value if call.excinfo else None
    if raised is None:
        state = result.state_of(measures)
        reasons = {measure.why for measure in measures if measure.state == state and measure.why}
        return state, "; ".join(sorted(reasons)[:3]) or ("the check measured nothing" if state == "error" else ""), ()
    if isinstance(raised, CheckSkipped | pytest.skip.Exception):
        return "skipped", str(raised), getattr(raised, "skips", ())
    if isinstance(raised, RocstackError):
        return "error", raised.what + (f"; cause: {raised.cause}" if raised.cause else ""), ()
    return "error", f"{type(raised).__name__}: {raised}", ()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Iterator[None]:
    """Jobs are cancelled and the report is written, however impatient somebody is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    suite = session.config.stash[_SUITE]
    suite.interrupted = exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
    with ExitStack() as last:  # of which none keeps the others from being done
        last.callback(suite.write)
        last.callback(suite.close)
        yield
