"""Limits that every reader holds before it allocates; `README.md` beside this file states them."""

from __future__ import annotations

MAX_NODE_BYTES = 64 << 20
"""A B+tree node or a manifest, encoded or decoded."""
MAX_ENTRIES_PER_NODE = 1 << 20
MAX_FILES_PER_TABLE = 1 << 20
MAX_TREE_HEIGHT = 16
MAX_NODES = 1 << 20
MAX_KEYS = 16 << 20
MAX_INDEX_BYTES = 4 << 30
MAX_KEY_BYTES = 1 << 16
MAX_PATH_BYTES = 1024
MAX_PATH_LEVELS = 4
MAX_INLINE_BYTES = 1 << 20
MAX_SIDECAR_BYTES = 1 << 30
MAX_JSON_BYTES = 256 << 20
MAX_TREE_DEPTH = 64
MAX_NDIM = 32
MAX_ARRAY_BYTES = 1 << 50
