"""The rules: their file, the judge, and what every shipped rule says of real and of made-up combinations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from rocstack.base.errors import BadInput
from rocstack.stack import component, overlay, resolve, rules, stack

RULES = rules.load()
BY_ID = {rule.code: rule for rule in RULES}
STACKS = list(stack.names())
NICS = list(component.library("nic").files)

# A combination that AMD documents. Each case below changes some facts of it.
AMD: dict[str, Any] = {
    "os": "ubuntu-24.04",
    "gfx": ["gfx90a", "gfx942"],
    "nic": "mellanox",
    "wheels": ["transformers"],
    "packages.absent": ["none"],
    "python": "3.12",
    "trainer.method": "own",
    "rocm": "7.2.3",
    "rocm.method": "amd",
    "rccl": "2.27.7",
    "rccl.method": "amd",
    "ucx": "1.20.1",
    "ucx.method": "source",
    "pmix": "5.0.7",
    "openmpi": "5.0.7",
    "openmpi.pmix": "5.0.7",
    "slurm": "24.11.5",
    "slurm.pmix": "5.0.7",
    "pytorch": "2.11.0+rocm7.2",
    "pytorch.method": "wheel",
    "pytorch.rocm": "7.2",
    "driver": "30.30.1",
}
# Rule -> (facts under which it holds, the same with facts that break it).
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "os-packages": ({}, {"packages.absent": ["librdmacm1t64"]}),
    "trainer-python": ({}, {"python": "3.10"}),
    "rocm-6-os": ({"rocm": "6.4.3"}, {"os": "debian-13"}),
    "rocm-7.0-os": ({"rocm": "7.0.2", "os": "ubuntu-22.04"}, {"os": "debian-12"}),
    "rocm-7-os": ({"os": "debian-12"}, {"os": "ubuntu-20.04"}),
    "rocm-10-os": ({"rocm": "10.0.0", "os": "debian-13"}, {"os": "debian-11"}),
    "rocm-layout": ({"rocm": "10.0.0", "rocm.method": "amdrocm"}, {"rocm": "7.2.3"}),
    "gfx942-rocm": ({}, {"rocm": "5.7.1"}),
    "gfx950-rocm": ({"gfx": ["gfx942", "gfx950"], "rocm": "7.0.0"}, {"rocm": "6.4.3"}),
    "gfx942-rccl": ({"rccl": "2.17.1"}, {"rccl": "2.13.4"}),
    "gfx950-rccl": ({"gfx": ["gfx950"], "rccl": "2.26.6"}, {"rccl": "2.22.3"}),
    "rocm-6.4-rccl": ({"rocm": "6.4.1", "rccl": "2.22.3"}, {"rccl": "2.27.7"}),
    "rocm-7.0-rccl": ({"rocm": "7.0.2", "rccl": "2.26.6"}, {"rccl": "2.22.3"}),
    "rocm-7-rccl": ({}, {"rccl": "2.26.6"}),
    "rocm-10-rccl": ({"rocm": "10.0.0", "rccl": "2.30.4", "rccl.method": "amdrocm"}, {"rccl": "2.27.7"}),
    "rocm-10-pytorch": ({"rocm": "10.0.0", "pytorch": "2.13.0+rocm10.0.0"}, {"pytorch": "2.10.0"}),
    "rocm-6.4-pytorch": ({"rocm": "6.4.3", "pytorch": "2.9.1+rocm6.4"}, {"pytorch": "2.10.0+rocm6.4"}),
    "rocm-7.0-pytorch": ({"rocm": "7.0.2", "pytorch": "2.10.0+rocm7.0"}, {"pytorch": "2.11.0"}),
    "rocm-7.1-pytorch": ({"rocm": "7.1.1", "pytorch": "2.6.0"}, {"pytorch": "2.5.1"}),
    "rocm-7.2-pytorch": ({"pytorch": "2.7.1"}, {"pytorch": "2.7.0"}),
    "pytorch-wheel-rocm": ({}, {"pytorch.rocm": "7.1"}),
    "debian-rccl-gfx": (
        {"rccl.method": "apt", "rccl": "2.13.4", "gfx": ["gfx90a"]},
        {"rccl.method": "apt", "rccl": "2.13.4", "gfx": ["gfx90a", "gfx942"]},
    ),
    "debian-rccl-7.2-gfx": (
        {"rccl.method": "apt", "gfx": ["gfx90a", "gfx942", "gfx950"]},
        {"gfx": ["gfx942", "gfx1151"]},
    ),
    "debian-rocblas-gfx": (
        {"rocm.method": "apt", "rocm": "7.2.4"},
        {"gfx": ["gfx942", "gfx950"]},
    ),
    "debian-hipblaslt-gfx": (
        {"rocm.method": "apt", "rocm": "7.2.4", "gfx": ["gfx90a"]},
        {"gfx": ["gfx90a", "gfx942"]},
    ),
    "pytorch-wheel-rccl": ({}, {"rccl.method": "source"}),
    "triton-rocm": ({}, {"wheels": ["transformers", "pytorch-triton-rocm"]}),
    "pytorch-triton-rocm": ({"pytorch": "2.9.1"}, {"wheels": ["triton-rocm"]}),
    "rocm-6-driver": ({"rocm": "6.3.1", "driver": "6.1.5"}, {"driver": "30.10.1"}),
    "rocm-6.4-driver": ({"rocm": "6.4.0", "driver": "30.10"}, {"driver": "6.0.3"}),
    "rocm-7.0-driver": ({"rocm": "7.0.2", "driver": "6.3.4"}, {"driver": "6.1.5"}),
    "rocm-7-driver": ({"driver": "6.4.3"}, {"driver": "6.3.3"}),
    "rocm-10-driver": ({"rocm": "10.0.0", "driver": "31.50"}, {"driver": "6.4"}),
    "debian-rocm-7-driver": ({"rocm.method": "apt", "driver": "6.4.3"}, {"driver": "6.0"}),
    "rocm-6-ucx": ({"rocm": "6.2.0", "ucx": "1.15.0"}, {"ucx": "1.14.1"}),
    "rocm-7-ucx": ({"ucx": "1.17.0"}, {"ucx": "1.16.0+ds-5"}),
    "rocm-7-ucx-source": ({"ucx": "1.20.1"}, {"ucx": "1.18.1"}),
    "openmpi-pmix": ({}, {"openmpi.pmix": "4.1.2"}),
    "slurm-pmix": ({}, {"slurm.pmix": "6.0.0"}),
    "same-pmix": ({"slurm.pmix": "5.0.3"}, {"slurm.pmix": "4.2.9"}),
}


def judge(rule_id: str, facts: dict[str, Any]) -> rules.RuleVerdict:
    return rules.judge((BY_ID[rule_id],), facts)[0]


def test_every_shipped_rule_has_a_case() -> None:
    assert set(CASES) == set(BY_ID)


@pytest.mark.parametrize("rule_id", CASES)
def test_rule_can_hold_and_can_be_broken(rule_id: str) -> None:
    good = {**AMD, **CASES[rule_id][0]}
    bad = {**good, **CASES[rule_id][1]}
    assert judge(rule_id, good).state == "holds", judge(rule_id, good).text
    verdict = judge(rule_id, bad)
    assert verdict.state == "broken", verdict.text
    for name, value in CASES[rule_id][1].items():  # the facts that decided it are named
        assert name in verdict.text
        assert all(item in verdict.text for item in ([value] if isinstance(value, str) else value))


def test_a_nightly_is_judged_by_its_version() -> None:
    assert judge("rocm-7.2-pytorch", {**AMD, "pytorch": "2.12.0.dev20260101+rocm7.2"}).state == "holds"
    assert judge("rocm-7.2-pytorch", {**AMD, "pytorch": "2.15.0.dev20260901+rocm7.2"}).state == "broken"


@pytest.mark.parametrize("rule_id", CASES)
@pytest.mark.parametrize("gone", [None, "", 7, object(), [None], "no version"], ids=lambda each: type(each).__name__)
def test_without_a_fact_nothing_is_known(rule_id: str, gone: object) -> None:
    """Each fact a rule turns on, missing or senseless: never `holds`, and never `broken`."""
    good = {**AMD, **CASES[rule_id][0]}
    rule = BY_ID[rule_id]
    methods = {f"{each}.method" for each in ("rocm", "rccl", "ucx", "pytorch", "trainer")}
    words = {"os", "gfx", "wheels", "packages.absent", *methods}  # any text is a word
    for name in (*rule.when, *rule.need, *(rule.same or ())):
        if isinstance(gone, str) and gone and name in words:
            continue
        verdict = judge(rule_id, {**good, name: gone})
        assert verdict.state == "unknown", (name, verdict.text)
        assert name in verdict.text
        without = {key: value for key, value in good.items() if key != name}
        assert judge(rule_id, without).state == "unknown"


@pytest.mark.parametrize("nic", NICS)
@pytest.mark.parametrize("name", STACKS)
def test_shipped_stacks_break_no_rule(name: str, nic: str) -> None:
    resolved = resolve.resolve(
        stack.load(name), nic, component.library("components"), component.library("nic"), overlay.Overlay()
    )
    verdicts = rules.judge(RULES, resolved.facts())
    assert {v.rule.level for v in verdicts if v.state == "broken"} <= {"note"}  # what has another way
    rules.refuse_broken(verdicts)
    if not all(map(resolved.has, ("rocm", "slurm", "openmpi", "pytorch"))):  # most rules are about what it doesn't have
        return
    # What is not known is only what a stack can't know: the host's driver, and whose a component of its base is.
    unread = {f"{part.name}.method" for part in resolved.parts if part.choice.method == "base"}
    assert all(
        "driver" in v.rule.need or unread & {*v.rule.when, *v.rule.need} for v in verdicts if v.state == "unknown"
    )
    series_5 = {"openmpi-pmix"} if resolved.facts()["openmpi"].startswith("5.") else set()
    assert {"same-pmix"} | series_5 <= {v.rule.code for v in verdicts if v.state == "holds"}


def test_a_distributions_rocm_is_not_judged_by_amds_matrix() -> None:
    """Debian's mix (ROCm 6.1.2, RCCL 2.13.4, torch 2.6 without ROCm) is in no row of the matrix."""
    resolved = resolve.resolve(
        stack.load("debian-13"), "tcp", component.library("components"), component.library("nic"), overlay.Overlay()
    )
    verdicts = rules.judge(RULES, {**resolved.facts(), "driver": "6.0.1"})
    assert {v.state for v in verdicts if "rocm.method" in v.rule.when} == {"does not apply"}


def test_debian_13_for_mi300_is_refused() -> None:
    """Its RCCL has no gfx942 kernels, whoever packaged it."""
    resolved = resolve.resolve(
        stack.load("debian-13").with_gfx(("gfx942",)), "tcp", component.library("components"),
        component.library("nic"), overlay.Overlay(),
    )  # fmt: skip
    with pytest.raises(BadInput, match=r"gfx942-rccl.*2\.13\.4") as error:
        rules.refuse_broken(rules.judge(RULES, resolved.facts()))
    assert error.value.code == "rule-broken"
    assert "RCCL changelog" in (error.value.cause or "")


def test_facts_that_shipped_rules_name_exist() -> None:
    """A misspelt fact would make its rule unknown for ever."""
    known = {"driver"}
    for name in STACKS:
        known |= set(
            resolve.resolve(
                stack.load(name), "tcp", component.library("components"), component.library("nic"), overlay.Overlay()
            ).facts()
        )
    for rule in RULES:
        assert {*rule.when, *rule.need, *(rule.same or ())} <= known, rule.code


facts = st.dictionaries(
    st.sampled_from([*AMD, "nonsense"]),
    st.one_of(
        st.none(), st.integers(), st.text(max_size=20),
        st.sampled_from([value for value in AMD.values() if isinstance(value, str)]),
        st.lists(st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["gfx942", "gfx950"])), max_size=3),
        st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}([+~-][a-z0-9.]{0,8})?", fullmatch=True),
    ),
)  # fmt: skip


@given(facts)
def test_judge_is_total(some: dict[str, Any]) -> None:
    for verdict in rules.judge(RULES, some):
        assert verdict.state in {"holds", "broken", "unknown", "does not apply"}
        if verdict.state in {"holds", "broken"}:  # decided by facts that are there
            assert any(some.get(name) is not None for name in (*verdict.rule.need, *(verdict.rule.same or ())))


@given(facts, facts)
def test_knowing_more_never_contradicts(some: dict[str, Any], more: dict[str, Any]) -> None:
    """A verdict reached on few facts stays the same when others become known."""
    before = rules.judge(RULES, some)
    after = rules.judge(RULES, {**more, **{k: v for k, v in some.items() if v is not None}})
    for old, new in zip(before, after, strict=True):
        asked = {*old.rule.when, *old.rule.need, *(old.rule.same or ())}
        if old.state in {"holds", "broken"} and all(some.get(name) is not None for name in asked):
            assert new.state == old.state


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5.0.7", "5.0.7"),
        ("1:5.0.7+ds-2+b1", "5.0.7"),
        ("1.18.1+ds-2+b1", "1.18.1"),
        ("5.0.7-1", "5.0.7"),
        ("2.8.0+rocm6.4", "2.8.0"),
        ("2.6.0+dfsg-7", "2.6.0"),
        ("24.11.5-4+deb13u1", "24.11.5"),
        ("7.0~rc1-1", "7.0rc1"),
        ("7.15.0a20260901", "7.15.0a20260901"),
        ("30.30.3.0.30300300-2327507.22.04", "30.30.3.0.30300300"),
        ("6.4.60400", "6.4.60400"),
    ],
)
def test_upstream_part(text: str, expected: str) -> None:
    assert rules.upstream(text) == Version(expected)


@pytest.mark.parametrize("text", ["", "unknown", "-", "+", "~", "gfx942", "9" * 5000])
def test_no_version(text: str) -> None:
    assert rules.upstream(text) is None


def write(path: Path, text: str) -> Path:
    file = path / "rules.yml"
    file.write_text(text)
    return file


GOOD = "a:\n  cause: because\n  source: there\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (f"{GOOD}  need: {{rocm: '>=6.x'}}\n", 4, "not a version specifier"),
        (f"{GOOD}  need: {{rocm: 'Not A Word'}}\n", 4, "neither a version specifier nor a plain word"),
        (f"{GOOD}  need: {{rocm: []}}\n", 4, "empty"),
        (f"{GOOD}  need: {{rocm: 7.2}}\n", 4, "must be text"),
        (f"{GOOD}  neds: {{rocm: '>=6'}}\n", 4, "did you mean 'need'"),
        (f"{GOOD}  same: [slurm.pmix]\n", 4, "same"),
        (GOOD, None, "needs 'need' or 'same'"),
        ("a:\n  cause: because\n  need: {rocm: '>=6'}\n", None, "source"),
        ("a:\n  cause: ''\n  source: there\n  need: {rocm: '>=6'}\n", 2, "cause"),
        (f"{GOOD}  need: {{rocm: '>=6'}}\n{GOOD}  need: {{rocm: '>=7'}}\n", 5, "appears twice"),
        ("a: [1]\n", 1, "must be a mapping"),
        ("Big Rule:\n  cause: r\n  source: s\n  need: {rocm: '>=6'}\n", None, "code"),
    ],
)
def test_bad_rules_are_refused(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(BadInput) as error:
        rules.load(file)
    assert message in str(error.value)
    assert error.value.where is not None
    assert error.value.where.path == str(file)
    if line is not None:
        assert error.value.where.line == line


def test_own_rules_are_read(tmp_path: Path) -> None:
    (rule,) = rules.load(write(tmp_path, f"{GOOD}  when: {{nic: [ainic, broadcom]}}\n  need: {{rocm: '>=7'}}\n"))
    assert rules.judge((rule,), {"nic": "broadcom", "rocm": "6.4.3"})[0].state == "broken"
    assert rules.judge((rule,), {"nic": "tcp"})[0].state == "does not apply"
    assert rules.judge((rule,), {"rocm": "6.4.3"})[0].state == "unknown"
    with pytest.raises(BadInput) as error:
        rules.load(tmp_path / "none.yml")
    assert error.value.code == "no-rules"
