"""Traces by OpenTelemetry's own library, sent to the site's collector by OTLP; without a collector there are none, and
nothing of the library is loaded. A trace says which route was asked, what Slurm and the database were asked for it, and
how long each took. It holds no token, no name of a person, file or model and no text of theirs: routes are the patterns
of the program, numbers in Slurm's paths are left out, and of an error its kind alone is told."""

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import urlsplit

from rocstack import base

PATH = "/v1/traces"
TIMEOUT_S = 5.0  # for one batch
WAITING, BATCH = 2048, 256  # spans that wait for the collector; more are dropped
log = logging.getLogger(__name__)


class Span:
    """A stretch of work. This one is told nothing."""

    def name(self, name: str) -> None:
        pass

    def tell(self, values: Mapping[str, str | int]) -> None:
        """Attributes, by the names of OpenTelemetry's semantic conventions."""

    def fail(self, kind: str) -> None:
        """It failed; `kind` is a word of the program's."""


class Tracing:
    """None."""

    @contextmanager
    def span(self, name: str, kind: Literal["SERVER", "CLIENT"]) -> Iterator[Span]:
        """Lasts as long as the block. What fails in it fails the span, too. One of a client belongs to a request: work
        that nobody asked for has none."""
        yield Span()

    def close(self) -> None:
        """Sends what waits, for some seconds at most."""


def tracing(url: str | None, cluster: str) -> Tracing:
    return OtlpTracing(url, cluster) if url else Tracing()


class OtlpTracing(Tracing):
    """Sent from a thread of its own, in batches. A collector that is away costs a line in the log."""

    def __init__(self, url: str, cluster: str) -> None:
        import requests
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # a line for each try; ours says it once
        session = requests.Session()
        session.trust_env = False
        exporter = OTLPSpanExporter(_traces(url), timeout=TIMEOUT_S, session=session)
        about = {"service.name": "rocstack-service", "service.version": base.__version__, "rocstack.cluster": cluster}
        self._provider = TracerProvider(resource=Resource(about), shutdown_on_exit=False)
        batches = BatchSpanProcessor(_once(exporter, url), max_queue_size=WAITING, max_export_batch_size=BATCH)
        self._provider.add_span_processor(batches)
        self._tracer = self._provider.get_tracer("rocstack.service", base.__version__)

    @contextmanager
    def span(self, name: str, kind: Literal["SERVER", "CLIENT"]) -> Iterator[Span]:
        from opentelemetry.trace import SpanKind, get_current_span

        if kind == "CLIENT" and not get_current_span().is_recording():
            yield Span()
            return
        # What an exception says may name files: its kind alone is told.
        with self._tracer.start_as_current_span(
            name, kind=SpanKind[kind], record_exception=False, set_status_on_exception=False
        ) as span:
            told = _OtlpSpan(span)
            try:
                yield told
            except Exception as error:
                told.fail(str(getattr(error, "code", "") or type(error).__name__))
                raise

    def close(self) -> None:
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        ending.join(TIMEOUT_S)  # not for all that waits, where the collector is away


class _OtlpSpan(Span):
    def __init__(self, span: Any) -> None:
        self._span = span

    def name(self, name: str) -> None:
        self._span.update_name(name)

    def tell(self, values: Mapping[str, str | int]) -> None:
        self._span.set_attributes(values)

    def fail(self, kind: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR)
        self._span.set_attribute("error.type", kind)


def _traces(url: str) -> str:
    return url if urlsplit(url).path.endswith(PATH) else url.rstrip("/") + PATH


def _once(exporter: Any, url: str) -> Any:
    """The same exporter, which says once that its collector is away, and once that it is back."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    class Once(SpanExporter):
        away = False

        def export(self, spans: Any) -> SpanExportResult:
            try:
                done: SpanExportResult = exporter.export(spans)
            except Exception:  # whatever its HTTP library raises
                done = SpanExportResult.FAILURE
            if (away := done is not SpanExportResult.SUCCESS) != self.away:
                self.away = away
                if away:
                    log.warning("the collector %s takes no traces: they are dropped until it does", url)
                else:
                    log.warning("the collector %s takes traces again", url)
            return done

        def shutdown(self) -> None:
            exporter.shutdown()

    return Once()


def place(path: str) -> str:
    """A path of slurmrestd without its numbers and its query."""
    return re.sub(r"(?<![\w.])\d+(?![\w.])", "ID", path.partition("?")[0])
