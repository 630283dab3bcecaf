"""Checked strings. Whatever reaches a Dockerfile or a shell passes through one of these, so a value
can't start an instruction, end a line or open a subshell."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from rocstack.base.text import shortened


class Value(BaseModel):
    """A frozen value; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AtKey(ValueError):
    """What a check of a whole mapping finds, and below which keys of it that stands."""

    def __init__(self, loc: tuple[str | int, ...], problem: str) -> None:
        super().__init__(problem)
        self.loc = loc


def word(pattern: str, meaning: str) -> AfterValidator:
    """Text that is `pattern` as a whole; `meaning` is how errors and the reference call it."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{shortened(text)!r} is not {meaning}")
        return text

    return AfterValidator(check)


Name = Annotated[str, word(r"[a-z0-9][a-z0-9.-]{0,62}", "a name (small letters, digits, '-' and '.')")]
Version = Annotated[str, word(r"[0-9][0-9A-Za-z.+~:-]{0,63}", "a version (digits, letters and .+~:-)")]
Package = Annotated[str, word(r"[a-z0-9][a-z0-9.+-]{0,127}", "a package name (small letters, digits and .+-)")]
PackageOfStack = Annotated[
    str,
    word(
        r"[a-z0-9](?:[a-z0-9.+-]|ROCM|GFX){0,127}",
        "a package name (small letters, digits and .+-, with ROCM and GFX for the stack's release and targets)",
    ),
]
Extra = Annotated[str, word(r"(?:[a-z0-9])(?:[a-z0-9.-]|GFX){0,63}", "an extra of a wheel, such as device-GFX")]
PackageGlob = Annotated[
    str, word(r"[a-z0-9][a-z0-9.+*-]{0,127}", "a package name or glob (small letters, digits, .+-*)")
]
Gfx = Annotated[str, word(r"gfx[0-9a-f]{3,5}", "a gfx target such as gfx942")]
FolderPath = Annotated[
    str, word(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9_.+-]{1,60}){1,12}", "an absolute path (letters, digits and _.+-, no ..)")
]
Sha256 = Annotated[str, word(r"[0-9a-f]{64}", "a sha256 (64 hex digits)")]
Url = Annotated[str, word(r"https?://[A-Za-z0-9._~:/@%+,=?-]{1,500}", "a plain http(s) address (no & or spaces)")]
PlainUrl = Annotated[
    str,
    word(
        r"https?://[A-Za-z0-9._~:/%+,=?-]{1,500}",
        "a plain http(s) address (no name or password: it is kept in images, locks and attestations)",
    ),
]
Suite = Annotated[str, word(r"[a-z0-9./][a-z0-9./-]{0,80}", "an apt suite or component")]
Origin = Annotated[str, word(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,80}", "the Origin of an apt repository")]
Driver = Annotated[str, word(r"[a-z0-9][a-z0-9_-]{0,40}", "the name of a driver (small letters, digits, '_' and '-')")]
Glob = Annotated[str, word(r"/[A-Za-z0-9._*?+/@-]{1,200}", "an absolute path glob without quotes or spaces")]
ImageRef = Annotated[
    str,
    word(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,200}(@sha256:[0-9a-f]{64})?", "an image reference (registry/name:tag)"),
]
ImagePrefix = Annotated[
    str,
    word(
        r"(?=.{1,200}\Z)((?=[^/]*[.:])[A-Za-z0-9.-]+(:[0-9]{1,5})?/)?"
        r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*",
        "the start of an image's name (small letters, digits and ._-/)",
    ),
]
Tag = Annotated[str, word(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", "a tag (at most 128 letters, digits and ._-)")]
ImageId = Annotated[str, word(r"sha256:[0-9a-f]{64}", "an image's id (sha256:, 64 hex digits)")]
PciId = Annotated[str, word(r"[0-9a-f]{4}:[0-9a-f]{4}", "a PCI id such as 14e4:1760")]


def _from_to(text: str) -> str:
    low, _, high = text.partition("-")
    if int(low) > int(high):
        raise ValueError(f"'{text}' ends before it begins: write {high}-{low}")
    return text


KernelAbi = Annotated[str, word(r"[0-9]{1,4}-[0-9]{1,4}", "a kernel-ABI range such as 1-1"), AfterValidator(_from_to)]
_BYTE = r"(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])"
_IPV4 = rf"({_BYTE}\.){{3}}{_BYTE}"
_ONE = r"[a-z][a-z0-9_-]{0,40}((>=|<=|==|>|<)[0-9]{1,9}(\.[0-9]{1,9}){0,4})?"
Condition = Annotated[
    str,
    word(
        rf"{_ONE}(, ?{_ONE}){{0,4}}",
        "a condition on versions, such as rocm>=7.2.1 or a name that must be there",
    ),
]
FileName = Annotated[str, word(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,120}", "a file name (letters, digits and ._+-)")]
FilePath = Annotated[
    str, word(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,60}(/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,60}){0,6}", "a relative path")
]
Option = Annotated[str, word(r"--?[A-Za-z0-9][A-Za-z0-9_./=,:+-]{0,200}", "a configure option")]
EnvName = Annotated[str, word(r"[A-Za-z][A-Za-z0-9_]{0,127}", "an environment variable's name")]
EnvValue = Annotated[str, word(r"[A-Za-z0-9_.,:/=@%^+ -]{0,300}", "a plain value (no quotes, $, \\ or newline)")]
Hostlist = Annotated[str, word(r"[A-Za-z0-9_.,\[\]-]{1,2000}", "a node, a group or a hostlist such as n[1-3,7]")]
SlurmName = Annotated[str, word(r"[a-z0-9_][a-z0-9_.-]{0,62}", "a name (small letters, digits and _.-)")]
SlurmKey = Annotated[str, word(r"[A-Za-z][A-Za-z0-9]{1,60}", "a keyword of slurm.conf")]
SlurmText = Annotated[
    str, word(r"[A-Za-z0-9_.,:/=@%^+*() \[\]-]{1,500}", "a value of slurm.conf (no quotes, $, \\, # or newline)")
]
SlurmFlag = Annotated[str, word(r"[A-Za-z][A-Za-z0-9_]{0,40}", "a flag (letters, digits and _)")]
User = Annotated[str, word(r"[a-z_][a-z0-9_-]{0,31}", "a user's name (small letters, digits, '_' and '-')")]
Duration = Annotated[str, word(r"infinite|[1-9][0-9]{0,5}[smhd]", "a duration such as 30s, 90m, 12h, 7d or infinite")]
Moment = Annotated[str, word(r"now|20\d\d-\d\d-\d\dT\d\d:\d\d", "now, or a time such as 2026-11-20T08:00")]
Address = Annotated[
    # Nothing of four numbers is a name.
    str, word(rf"{_IPV4}|(?![0-9.]+\Z)[A-Za-z0-9][A-Za-z0-9.:-]{{0,252}}", "a host name or an address")
]
MountText = Annotated[
    str,
    word(
        r"/[A-Za-z0-9._@%+=/-]{0,500}(:/[A-Za-z0-9._@%+=/-]{1,500})?(:r[ow])?",
        "SRC[:DST[:ro]] with absolute paths of the nodes",
    ),
]
MemorySize = Annotated[str, word(r"[1-9][0-9]{0,11}[bkmgBKMG]?", "host or a size such as 64g (b, k, m or g)")]
Line = Annotated[str, word(r"[^\x00-\x08\x0a-\x1f]{0,1000}", "one line of text, at most 1000 characters")]
