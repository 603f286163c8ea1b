"""A plan to configuration files, and what each daemon version accepts. Pure, but for `manifest`, which writes them."""

from rankclock.configs.manifest import (
    FileEntry,
    Manifest,
    NodeEntry,
    manifest_of,
    read_manifest,
    read_rendered,
    write_rendered,
)
from rankclock.configs.options import ConfigLine
from rankclock.configs.render import RenderedNode, Service, explain, render

__all__ = [
    "ConfigLine",
    "FileEntry",
    "Manifest",
    "NodeEntry",
    "RenderedNode",
    "Service",
    "explain",
    "manifest_of",
    "read_manifest",
    "read_rendered",
    "render",
    "write_rendered",
]
