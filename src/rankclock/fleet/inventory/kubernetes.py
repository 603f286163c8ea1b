"""Machines as Kubernetes knows them: its nodes with their labels, over the API or from `kubectl get nodes -o json`.

Nodes that offer GPUs are the training nodes where any does; the others are left out, with the reason. Pods are no
machines: clocks are the nodes'. Pure, but for `ask`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rankclock.cluster.model import Provider
from rankclock.errors import HostError, PeerError, UserError
from rankclock.fleet.inventory.found import MAX_BYTES, Inventory, Machine, address_of, collected, rack_name

__all__ = ["RACK_LABELS", "ask", "inventory_of"]

RACK_LABELS = ("topology.kubernetes.io/rack", "network.topology.nvidia.com/leaf", "topology.kubernetes.io/zone")
"""Labels that name what fails together, the narrowest first; `--rack-label` comes before them."""

_GPUS = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
_PROVIDERS = {"aws": Provider.AWS, "gce": Provider.GCP, "azure": Provider.AZURE, "alicloud": Provider.ALIBABA}
_PAGE = 500
_TIMEOUT_S = 20


def ask(context: str | None = None, kubeconfig: str | None = None, *, selector: str | None = None) -> list[Any]:
    """All node objects, page by page. Raises HostError without client library or configuration, else PeerError."""
    try:
        from kubernetes import client, config
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError
    except ImportError:
        raise HostError("the Kubernetes client is not installed: pip install 'rankclock[kubernetes]'") from None
    try:
        load: Any = config.load_config
        load(context=context, config_file=kubeconfig)
    except (config.ConfigException, OSError, ValueError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HostError(f"no configuration of a Kubernetes cluster: {first[:200]}") from None
    api: Any = client.CoreV1Api()
    found: list[Any] = []
    token = ""
    try:
        while True:
            answer = api.list_node(
                limit=_PAGE,
                _continue=token or None,
                label_selector=selector or None,
                _request_timeout=_TIMEOUT_S,
                _preload_content=False,
            )
            page = _object(answer.data.decode("utf-8", "replace"), "the API's answer")
            found += _items(page, "the API's answer")
            token = str((page.get("metadata") or {}).get("continue") or "")
            if not token:
                return found
    except ApiException as error:
        raise PeerError(f"Kubernetes answers {error.status} {error.reason}: may this user list nodes?") from None
    except HTTPError as error:
        reason = str(getattr(error, "reason", None) or error)
        raise PeerError(f"Kubernetes cannot be reached: {reason.splitlines()[0][:200]}") from None


def inventory_of(
    nodes: str | list[Any], *, rack_label: str | None = None, everything: bool = False, name: str = "the API"
) -> Inventory:
    """The machines among node objects (or of a file's text). Raises UserError.

    everything: take nodes without GPUs too.
    """
    if isinstance(nodes, str):
        nodes = _items(_object(nodes, name), name)
    parts = [_Node(value, f"{name}: item {number}") for number, value in enumerate(nodes, 1)]
    only_gpus = not everything and any(part.gpus for part in parts)
    labels = (rack_label,) if rack_label else RACK_LABELS
    machines, left_out = [], {}
    for part in parts:
        if only_gpus and not part.gpus:
            left_out[part.name] = "offers no GPU (--all takes it)"
            continue
        rack = next((part.labels[label] for label in labels if label in part.labels), None)
        machines.append(
            Machine(
                name=part.name,
                where=part.where,
                rack=rack_name(rack) if rack else None,
                address=part.address,
                note=part.trouble,
            )
        )
    providers = {part.provider for part in parts}
    unknown = () if any(machine.rack for machine in machines) else (f"racks (no label {' or '.join(labels)})",)
    provider = _PROVIDERS.get(providers.pop() or "") if len(providers) == 1 else None
    return collected(f"Kubernetes ({name})", machines, left_out=left_out, unknown=unknown, provider=provider)


class _Node:
    """One node object, as far as it is needed."""

    def __init__(self, value: Any, where: str) -> None:
        self.where = where
        metadata, spec, status = (_mapping(_mapping(value, where).get(key), where) for key in _PARTS)
        self.name = str(metadata.get("name") or "")
        self.labels = {str(key): str(item) for key, item in _mapping(metadata.get("labels"), where).items()}
        capacity = _mapping(status.get("capacity"), where)
        self.gpus = any(str(capacity.get(kind, "0")).lstrip("0") for kind in _GPUS)
        addresses = [item for item in status.get("addresses") or () if isinstance(item, Mapping)]
        internal = [str(item.get("address")) for item in addresses if item.get("type") == "InternalIP"]
        self.address = address_of(internal[0]) if internal else None
        self.provider = str(spec.get("providerID") or "").partition(":")[0] or None
        self.trouble = self._trouble(spec, status)

    @staticmethod
    def _trouble(spec: Mapping[str, Any], status: Mapping[str, Any]) -> str | None:
        conditions = [item for item in status.get("conditions") or () if isinstance(item, Mapping)]
        ready = next((str(item.get("status")) for item in conditions if item.get("type") == "Ready"), "Unknown")
        said = (["not ready"] if ready != "True" else []) + (["cordoned"] if spec.get("unschedulable") else [])
        return f"Kubernetes says {' and '.join(said)}" if said else None


_PARTS = ("metadata", "spec", "status")


def _object(text: str, name: str) -> dict[str, Any]:
    if len(text) > MAX_BYTES:
        raise UserError(f"{name}: more than {MAX_BYTES} characters")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name}: not JSON: {str(error)[:120]}; expected `kubectl get nodes -o json`") from None
    if not isinstance(value, dict):
        raise UserError(f"{name}: expected a list of nodes as `kubectl get nodes -o json` prints it")
    return value


def _items(page: dict[str, Any], name: str) -> list[Any]:
    items = page.get("items") if "items" in page else [page] if page.get("kind") == "Node" else None
    if not isinstance(items, list):
        raise UserError(f"{name}: expected a list of nodes, found an object of kind {str(page.get('kind'))[:40]!r}")
    return items


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected an object, found {str(value)[:40]!r}")
    return value
