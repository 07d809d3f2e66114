"""Reading one span of a data file of an item, checked against the file first."""

from __future__ import annotations

from jaxckpt._types import Span
from jaxckpt.format.datafiles import check_data_path
from jaxckpt.format.frame import FormatError
from jaxckpt.io.store import Store, join


def read_span(store: Store, item: str, span: Span) -> bytes:
    """The bytes of a span; its path is relative to the item's directory.

    Raises:
        FormatError: the span leaves its file or the directory.
    """
    path = join(item, check_data_path(span.file, item))
    reader = store.open(path, direct=False, beneath=item)
    try:
        if span.end > reader.size:
            raise FormatError(f"{span} ends behind its file, which has {reader.size} bytes")
        data = bytearray(span.length)
        if reader.read_into(span.offset, [data]) != span.length:
            raise FormatError(f"{span} could not be read whole")
        return bytes(data)
    finally:
        reader.close()
