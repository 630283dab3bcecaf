"""Who changed what: a line for each change, in the same transaction, and in the log. The lines stay, on a disk that
Slurm's accounting needs, too: so a person can make so many in a day."""

import logging
import time

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from rocstack.base.text import visible
from rocstack.service.failures import TooMany
from rocstack.service.tables import AuditLine

MOST, DAY_S = 10_000, 86_400  # changes of a person in a day
_MAKES = (".create", ".resume", ".requeue")  # what ends something, or removes it, is never refused
log = logging.getLogger("rocstack.audit")


def note(session: Session, who: str, what: str, target: str, detail: str = "") -> None:
    """
    Raises:
        TooMany: as `room`, where something is made.
    """
    if what.endswith(_MAKES):
        room(session, who)
    line = AuditLine(at=int(time.time()), who=who, what=what, target=target[:255], detail=visible(detail)[:2000])
    session.add(line)
    log.info("%s %s %s %s", who, what, visible(line.target), line.detail)


def room(session: Session, who: str) -> None:
    """
    Raises:
        TooMany: that many changes are this person's within a day.
    """
    of_today = (AuditLine.who == who, AuditLine.at > int(time.time()) - DAY_S)
    if (session.scalar(select(func.count()).select_from(AuditLine).where(*of_today)) or 0) >= MOST:
        raise TooMany.of("too-many-changes", most=f"{MOST:,}")
