"""Who changed what: a line for each change, in the same transaction, and in the log."""

import logging
import time

from sqlalchemy.orm import Session

from rocstack.base.text import visible
from rocstack.service.tables import AuditLine

log = logging.getLogger("rocstack.audit")


def note(session: Session, who: str, what: str, target: str, detail: str = "") -> None:
    line = AuditLine(at=int(time.time()), who=who, what=what, target=target[:255], detail=visible(detail)[:2000])
    session.add(line)
    log.info("%s %s %s %s", who, what, visible(line.target), line.detail)
