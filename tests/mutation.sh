#!/usr/bin/env bash
# Changes the gate's code in every small way (mutmut) and says which changes no test notices.
# mutmut wants the code under src/ and writes beside it, so it works in a copy.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv/bin work=$PWD/.rocstack/mutation
rm -rf "$work"
mkdir -p "$work/src" "$work/tests/unit"
cp -r cli/rocstack "$work/src/"
mkdir -p "$work/src/rocstack/data"
cp -r images templates playbooks "$work/src/rocstack/data/"
cp -r tests/support "$work/tests/"
cp -r tests/unit/{conftest.py,support,node,data} "$work/tests/unit/"
cat >"$work/pyproject.toml" <<'END'
[tool.mutmut]
source_paths = ["src"]
only_mutate = ["src/rocstack/node/gate.py", "src/rocstack/node/image_facts.py"]
pytest_add_cli_args = ["-p", "no:randomly", "-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = [
    "tests/unit/node/test_gate.py",
    "tests/unit/node/test_gate_properties.py",
    "tests/unit/node/test_image_facts.py",
    "tests/unit/node/test_slingshot.py",
]

[tool.pytest.ini_options]
pythonpath = ["tests/support", "tests/unit/support"]
END
cd "$work"
env -u PYTHONPATH "$bin/mutmut" run --max-children "${JOBS:-2}"
"$bin/mutmut" results | tee survivors
