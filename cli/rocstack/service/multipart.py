"""A form with one file in it, read as it comes: the file is never held in memory, nor twice on the disk."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from rocstack.service.failures import RequestRefused

MOST = 64 << 10  # bytes of all other fields and headers
FIELDS = 64


@dataclass
class FileForm:
    """`pieces` gives the file; fields that come before it are in `fields` by then, the others afterwards."""

    content_type: str
    stream: AsyncIterator[bytes]
    file_field: str
    fields: dict[str, str] = field(default_factory=dict)
    filename: str = ""
    _pieces: list[bytes] = field(default_factory=list)
    _found: bool = False
    _ended: bool = False

    def __post_init__(self) -> None:
        """
        Raises:
            RequestRefused: it is no form.
        """
        kind, options = parse_options_header(self.content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary or len(boundary) > 200:
            raise RequestRefused.of("no-form", field=self.file_field)
        self._name, self._value, self._header, self._text = "", bytearray(), bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._in_file, self._small = False, 0
        callbacks = {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]

    async def begin(self) -> None:
        """Reads to the beginning of the file.

        Raises:
            RequestRefused: there is none.
        """
        while not self._found and not self._ended:
            if not await self._more():
                break
        if not self._found:
            raise RequestRefused.of("no-file-in-form", field=self.file_field).about(self.file_field)

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                yield self._pieces.pop(0)
            if self._ended or not await self._more():
                break
        while self._pieces:
            yield self._pieces.pop(0)
        if not self._ended:
            raise RequestRefused.of("form-cut-off")

    async def _more(self) -> bool:
        async for chunk in self.stream:
            if chunk:
                try:
                    self._parser.write(chunk)
                except MultipartParseError:
                    raise RequestRefused.of("form-cut-off") from None
                return True
        return False

    # what the parser calls
    def _part_begin(self) -> None:
        self._headers, self._value, self._in_file, self._name = {}, bytearray(), False, ""

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._header += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._count(end - start)
        self._text += data[start:end]

    def _header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._text)
        self._header, self._text = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name == self.file_field and not self._found:
            self._in_file = self._found = True
            self.filename = options.get(b"filename", b"").decode(errors="replace")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._pieces.append(bytes(data[start:end]))
            return
        self._count(end - start)
        self._value += data[start:end]

    def _part_end(self) -> None:
        if not self._in_file:
            if len(self.fields) >= FIELDS:
                raise RequestRefused.of("form-too-big")
            self.fields[self._name] = bytes(self._value).decode(errors="replace")

    def _end(self) -> None:
        self._ended = True

    def _count(self, more: int) -> None:
        self._small += more
        if self._small > MOST:
            raise RequestRefused.of("form-too-big")
