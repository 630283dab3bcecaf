"""wheels-install on the nearest thing to PyTorch's wheel for ROCm that PyPI has: its wheel for CUDA, 900 MB, whose
libraries were changed by patchelf, with the NVIDIA wheels that `import torch` needs on a machine without a GPU. It must
import and compute afterwards. 3 GB are downloaded, 6 GB unpacked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from workspace import REPO, engine

from rocstack.settings import site
from rocstack.settings.settings import Settings

pytestmark = [pytest.mark.engine, pytest.mark.slow]
TORCH = "2.9.1"
WHEELS = (Path(__file__).with_name("data") / "torch-cuda.txt").read_text()
FOLDER = "/usr/local/lib/python3.13/dist-packages"
# A matrix product, a decomposition, a gradient and an exception that crosses libraries; and what strip has left.
COMPUTES = """
import torch
assert torch.version.cuda and not torch.cuda.is_available()
a = torch.arange(1.0, 5.0).reshape(2, 2).requires_grad_()
(a @ a).sum().backward()
assert a.grad.tolist() == [[7.0, 11.0], [9.0, 13.0]], a.grad
assert torch.allclose(torch.linalg.solve(a, a @ torch.ones(2)), torch.ones(2), atol=1e-4)
conv = torch.nn.functional.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
assert conv.flatten().tolist() == [9.0] * 4
try:
    torch.ones(2) @ torch.ones(3)
except RuntimeError:
    print("computes")
"""


@pytest.fixture(scope="module")
def place(base: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of a container as the build's stage for wheels is: Debian 13 with pip and binutils."""
    folder = tmp_path_factory.mktemp("wheels")
    network = site.of(Settings())
    (folder / "site.env").write_text(network.env_file())
    (folder / "rules").write_text("path-exclude=/usr/share/doc/*\n")
    (folder / "wheels").mkdir()
    (folder / "wheels/0.txt").write_text(WHEELS)
    mounts = {REPO / "images/build": "build", folder / "site.env": "site.env", folder / "wheels": "wheels"}
    mounts[folder / "rules"] = "rules/dpkg.rules"
    if network.ca:
        mounts[Path(network.ca)] = "ca.pem"
    return [f"--volume={path}:/run/rocstack/{name}:ro" for path, name in mounts.items()]


def test_a_big_wheel_imports_and_computes(base: str, place: list[str]) -> None:
    script = f"""
        /run/rocstack/build/apt-update >/dev/null
        /run/rocstack/build/apt-install python3-pip binutils >/dev/null
        /run/rocstack/build/wheels-install /run/rocstack/wheels /out {FOLDER} gfx942
        du -sm /out{FOLDER}/torch/lib
        readelf -dW /out{FOLDER}/torch/lib/libtorch_python.so | grep -F 'ORIGIN'
        PYTHONPATH=/out{FOLDER} python3 -c "$COMPUTES"
    """
    done = engine("run", "--rm", *place, f"--env=COMPUTES={COMPUTES}", base, "bash", "-euo", "pipefail", "-c", script)
    print(done.stdout)
    assert done.stdout.endswith("\ncomputes\n")
    found = re.search(r"stripped (\d+) libraries of (\d+), (\d+) MB", done.stdout)
    assert found
    assert int(found[1]) > 0
    assert done.stdout.count("not stripped: ") == int(found[2]) - int(found[1])


PATCHED = """
cat >a.c <<'EOF'
static int hidden(int x) { return x * 3; }
int answer(int x) { return hidden(x) + 1; }
int table[50000] = {1};
__thread int own = 4;
EOF
gcc -g3 -shared -fPIC -Wl,-soname,liba.so -o plain.so a.c
mkdir tree
n=0
while read -r options; do
    n=$((n + 1))
    cp plain.so tree/lib$n.so
    eval "patchelf $options tree/lib$n.so"
done <<'EOF'
--set-rpath '$ORIGIN/../../nvidia/cublas/lib:$ORIGIN'
--set-soname libwith-a-long-name-and-a-hash-0123456789abcdef.so.1
--add-needed libm.so.6 --set-rpath /a/folder
--replace-needed libc.so.6 libc.so.6 --add-rpath /a:/b
EOF
cp -r tree before
python3 /run/rocstack/build/strip_libraries.py tree
for file in tree/*; do
    [ "$(stat -c %s "$file")" -lt "$(stat -c %s "before/${file##*/}")" ]
    python3 -c "import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).answer(4) == 13" "./$file"
done
"""


def test_libraries_that_patchelf_changed_load_afterwards(base: str, place: list[str]) -> None:
    script = f"""
        /run/rocstack/build/apt-update >/dev/null
        /run/rocstack/build/apt-install python3 binutils patchelf gcc libc6-dev >/dev/null
        cd /tmp{PATCHED}
    """
    done = engine("run", "--rm", *place, base, "bash", "-euo", "pipefail", "-c", script)
    assert "stripped 4 libraries of 4" in done.stdout
