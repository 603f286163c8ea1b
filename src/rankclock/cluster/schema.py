"""The JSON schema of the cluster file, for editors.

Written by `python -m rankclock.cluster.schema > docs/reference/cluster.schema.json`; a test compares.
"""

from __future__ import annotations

import json
import sys

from rankclock.cluster.model import Cluster

__all__ = ["cluster_schema"]


def cluster_schema() -> str:
    """The schema as text, the same bytes each time."""
    schema = Cluster.model_json_schema(by_alias=True)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(cluster_schema())
