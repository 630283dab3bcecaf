"""A script that runs in a base image. That is a stranger: what it prints is neither logged by the engine nor kept
whole, and one that doesn't keep to what it is asked for is stopped."""

import subprocess
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import IO

from rocstack.container import privileges
from rocstack.image.base_image import BaseImage
from rocstack.image.base_reader import QUIET

SAID = 1 << 16  # bytes of errors that are kept: the last ones
GRACE_S = 2.0


@dataclass
class RunningScript:
    """`code` is known when it has ended."""

    out: IO[bytes]
    _said: bytearray = field(default_factory=bytearray)
    code: int = 0

    @property
    def errors(self) -> list[str]:
        """What apt calls errors, or else the last line."""
        return [line for line in self.lines if line.startswith("E:")] or self.lines[-1:]

    @property
    def lines(self) -> list[str]:
        return self._said.decode("utf-8", "replace").splitlines()

    def hear(self, stream: IO[bytes]) -> None:
        while part := stream.read(1 << 12):
            self._said += part
            del self._said[:-SAID]


@contextmanager
def running(script: str, base: BaseImage) -> Iterator[RunningScript]:
    """It is stopped where the block ends by an exception."""
    name = f"rocstack-base-{uuid.uuid4().hex[:12]}"
    command = ["docker", "run", "--rm", "-i", f"--name={name}", *privileges.LEAST, *privileges.SERVICE, *QUIET]
    # It comes through stdin: site settings are in no process list.
    command += [base.reference, "bash", "-c", "cat >/tmp/ask && bash /tmp/ask </dev/null"]
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as asked:
        asked.write(script.encode())
        asked.seek(0)
        with subprocess.Popen(command, stdin=asked, stdout=pipe, stderr=pipe) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            script_run = RunningScript(process.stdout)
            listener = threading.Thread(target=script_run.hear, args=(process.stderr,))
            listener.start()
            try:
                yield script_run
                script_run.code = process.wait()
            except BaseException:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)  # one that ends says why
                subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
                process.kill()
                raise
            finally:
                listener.join()
