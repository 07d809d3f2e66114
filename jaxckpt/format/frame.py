"""The frame around every OCDBT structure: magic, length, version, compression, body, crc32c.

Source: the storage format section of TensorStore's page on its `ocdbt` driver.
"""

from __future__ import annotations

import struct

import crc32c
import zstandard

from jaxckpt.format.limits import MAX_NODE_BYTES

MANIFEST_MAGIC = 0x0CDB3A2A
BTREE_MAGIC = 0x0CDB20DE
VERSION_MAGIC = 0x0CDB1234

_HEADER_BYTES = 14  # magic, length, version 0 and compression, one byte each for the varints
_FOOTER_BYTES = 4
_MIN_BYTES = _HEADER_BYTES + _FOOTER_BYTES


class FormatError(ValueError):
    """Bytes break the format; the text says which rule, with the value and what is allowed."""


def encode_frame(magic: int, body: bytes) -> bytes:
    """Wraps an uncompressed body."""
    length = _HEADER_BYTES + len(body) + _FOOTER_BYTES
    head = struct.pack(">I", magic) + struct.pack("<Q", length) + b"\x00\x00"
    framed = head + body
    return framed + struct.pack("<I", crc32c.crc32c(framed))


def decode_frame(magic: int, data: bytes, what: str) -> bytes:
    """Checks a frame and returns its body, decompressed within the limits.

    The checksum is checked before anything is decompressed, so that only the writer of the file
    can make this spend memory, and never more than 64 MiB of it.
    """
    if not _MIN_BYTES <= len(data) <= MAX_NODE_BYTES:
        raise FormatError(f"{what} has {len(data)} bytes; allowed {_MIN_BYTES} to {MAX_NODE_BYTES}")
    found_magic, length = struct.unpack(">I", data[:4])[0], struct.unpack("<Q", data[4:12])[0]
    if found_magic != magic:
        raise FormatError(f"{what} begins with 0x{found_magic:08x}; expected 0x{magic:08x}")
    if length != len(data):
        raise FormatError(f"{what} says that it has {length} bytes; it has {len(data)}")
    stored = struct.unpack("<I", data[-4:])[0]
    computed = crc32c.crc32c(data[:-4])
    if stored != computed:
        raise FormatError(f"{what} has crc32c {computed:08x}; {stored:08x} was stored")
    version, compression = data[12], data[13]
    if version != 0:
        raise FormatError(f"{what} has version {version}; only 0 is known")
    body = data[_HEADER_BYTES:-_FOOTER_BYTES]
    if compression == 0:
        return body
    if compression != 1:
        raise FormatError(f"{what} has compression {compression}; known are 0 (none) and 1 (zstd)")
    return _decompress(body, what)


def _decompress(body: bytes, what: str) -> bytes:
    try:
        size = zstandard.frame_content_size(body)
        if size > MAX_NODE_BYTES:
            raise FormatError(f"{what} unpacks to {size} bytes; allowed are {MAX_NODE_BYTES}")
        reader = zstandard.ZstdDecompressor(max_window_size=MAX_NODE_BYTES).stream_reader(body)
        plain = reader.read(MAX_NODE_BYTES + 1)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what} is no zstd stream: {error}") from error
    if len(plain) > MAX_NODE_BYTES:
        raise FormatError(f"{what} unpacks to more than {MAX_NODE_BYTES} bytes")
    return plain
