"""A position in a structure's body that refuses to run over its end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jaxckpt.format.frame import FormatError
from jaxckpt.format.varint import TruncatedError, decode_column, decode_number

_FEW = 4  # below this numpy costs more than it saves


class Cursor:
    """Reads fields one after another; every refusal names the structure and the field."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what, self.pos = data, what, 0
        self._array = np.frombuffer(data, np.uint8)

    def column(self, field: str, count: int, maximum: int = 2**63 - 1) -> NDArray[np.int64]:
        """``count`` varints, none above ``maximum``."""
        if count <= _FEW:
            few = [self._number(f"{field}[{i}]", maximum) for i in range(count)]
            return np.array(few, np.uint64).astype(np.int64)
        try:
            values, self.pos = decode_column(self._array, self.pos, count)
        except TruncatedError as error:
            raise FormatError(f"{self.what}: {field}: {error}") from error
        if int(values.max()) > maximum:
            at = int(np.argmax(values > np.uint64(maximum)))
            raise FormatError(
                f"{self.what}: {field}[{at}] is {int(values[at])}; allowed is up to {maximum}"
            )
        return values.astype(np.int64)

    def number(self, field: str, maximum: int) -> int:
        """One varint."""
        return self._number(field, maximum)

    def _number(self, field: str, maximum: int) -> int:
        try:
            value, self.pos = decode_number(self.data, self.pos)
        except TruncatedError as error:
            raise FormatError(f"{self.what}: {field}: {error}") from error
        if value > maximum:
            raise FormatError(f"{self.what}: {field} is {value}; allowed is up to {maximum}")
        return value

    def take(self, field: str, count: int) -> bytes:
        """``count`` raw bytes."""
        if count > len(self.data) - self.pos:
            raise FormatError(
                f"{self.what}: {field} needs {count} bytes; {len(self.data) - self.pos} are left"
            )
        piece = self.data[self.pos : self.pos + count]
        self.pos += count
        return piece

    def finish(self) -> None:
        """Refuses bytes behind the last field."""
        if self.pos != len(self.data):
            raise FormatError(f"{self.what}: {len(self.data) - self.pos} bytes behind its end")
