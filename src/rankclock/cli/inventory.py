"""`rankclock inventory`: a cluster file from the list of machines that somebody keeps already."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankclock.cli.output import err, out, print_json
from rankclock.errors import ExitCode, UserError

if TYPE_CHECKING:
    from rankclock.fleet.inventory import Inventory

__all__ = ["app"]

app = typer.Typer(
    help="Write a cluster file from Slurm, Kubernetes, Ansible, a host list or a job.", add_completion=False
)

File = Annotated[
    Path | None, typer.Option("--file", help="Read what the tool printed from a file, '-' for standard input.")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write here; never over a file that is there.")]
Merge = Annotated[
    Path | None, typer.Option("--merge", help="Add new machines to this cluster file; nothing else changes in it.")
]
Name = Annotated[str, typer.Option("--name", help="The cluster's name.")]
Nic = Annotated[str | None, typer.Option("--nic", help="The interface that has the listed addresses, such as eth0.")]
Prefix = Annotated[int | None, typer.Option("--prefix", min=1, max=128, help="Prefix length of its networks; 24.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of the file.")]


@app.command()
def slurm(
    *,
    file: File = None,
    topology: Annotated[
        Path | None, typer.Option("--topology", help="With --file: what `scontrol show topology` printed.")
    ] = None,
    partition: Annotated[str | None, typer.Option("--partition", help="Only machines of this partition.")] = None,
    rack_feature: Annotated[
        str | None, typer.Option("--rack-feature", help="Features that name racks, such as 'rack\\d+'.")
    ] = None,
    output: Output = None,
    merge: Merge = None,
    name: Name = "cluster",
    nic: Nic = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> int:
    """Machines of `scontrol show nodes`; racks are its topology's leaf switches, or features.

    \b
    Example: rankclock inventory slurm --partition train --nic ib0eth -o cluster.yaml
    """
    from rankclock.fleet.inventory import slurm as source

    if file is None:
        nodes, switches = source.ask()
    else:
        nodes, switches = _text(file), _text(topology) if topology is not None else ""
    named = str(file) if file is not None else "scontrol show nodes"
    racks = source.racks_of(switches, str(topology or "scontrol show topology"))
    found = source.inventory_of(nodes, racks=racks, partition=partition, rack_feature=rack_feature, name=named)
    return _written(found, output=output, merge=merge, name=name, nic=nic, prefix=prefix, as_json=as_json)


@app.command()
def kubernetes(
    *,
    file: File = None,
    context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    kubeconfig: Annotated[Path | None, typer.Option("--kubeconfig", help="The kubeconfig file.")] = None,
    selector: Annotated[str | None, typer.Option("--selector", "-l", help="Label selector.")] = None,
    rack_label: Annotated[str | None, typer.Option("--rack-label", help="The label that names racks.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Nodes without GPUs too.")] = False,
    output: Output = None,
    merge: Merge = None,
    name: Name = "cluster",
    nic: Nic = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> int:
    """Nodes of a Kubernetes cluster, over its API or from `kubectl get nodes -o json`.

    \b
    Example: kubectl get nodes -o json | rankclock inventory kubernetes --file - --nic eth0
    """
    from rankclock.fleet.inventory import kubernetes as source

    nodes = (
        source.ask(context, str(kubeconfig) if kubeconfig else None, selector=selector) if file is None else _text(file)
    )
    named = str(file) if file is not None else "the API"
    found = source.inventory_of(nodes, rack_label=rack_label, everything=everything, name=named)
    return _written(found, output=output, merge=merge, name=name, nic=nic, prefix=prefix, as_json=as_json)


@app.command()
def ansible(
    inventory: Annotated[
        Path | None, typer.Argument(help="Inventory file or folder, as for ansible -i.", metavar="INVENTORY")
    ] = None,
    *,
    file: File = None,
    group: Annotated[str, typer.Option("--group", help="Only hosts of this group.")] = "all",
    racks: Annotated[
        str | None, typer.Option("--racks", help="Groups that are racks: a regular expression; rack... if not given.")
    ] = None,
    servers: Annotated[str | None, typer.Option("--servers", help="The group of the time servers.")] = None,
    output: Output = None,
    merge: Merge = None,
    name: Name = "cluster",
    nic: Nic = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> int:
    """Hosts of an Ansible inventory, read by Ansible's own parser.

    \b
    Example: rankclock inventory ansible hosts.ini --group gpu --servers time -o cluster.yaml
    """
    from rankclock.fleet.inventory import ansible as source

    if (inventory is None) == (file is None):
        raise UserError("an Ansible inventory is wanted: name its file, or give --file with `ansible-inventory --list`")
    listed = _text(file) if file is not None else source.ask(inventory or Path())
    found = source.inventory_of(
        listed, group=group, racks=racks or source.RACK_GROUPS, servers=servers, name=str(file or inventory)
    )
    return _written(found, output=output, merge=merge, name=name, nic=nic, prefix=prefix, as_json=as_json)


@app.command()
def hosts(
    file: Annotated[Path, typer.Argument(help="A host list, hostfile or /etc/hosts; '-' for standard input.")],
    *,
    output: Output = None,
    merge: Merge = None,
    name: Name = "cluster",
    nic: Nic = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> int:
    """Hosts of a plain list: ranges, MPI hostfiles, lines of /etc/hosts.

    \b
    Example: echo 'gpu[001-032]' | rankclock inventory hosts - -o cluster.yaml
    """
    from rankclock.fleet.inventory import hosts as source

    found = source.inventory_of(_text(file), name=str(file) if str(file) != "-" else "standard input")
    return _written(found, output=output, merge=merge, name=name, nic=nic, prefix=prefix, as_json=as_json)


@app.command()
def torchrun(
    *,
    output: Output = None,
    merge: Merge = None,
    name: Name = "job",
    nic: Nic = None,
    prefix: Prefix = None,
    as_json: Json = False,
) -> int:
    """Machines of the job that this runs in, as torchrun, srun or mpirun tell (torchrun tells few).

    \b
    Example: srun -n1 rankclock inventory torchrun
    """
    from rankclock.fleet.inventory import launcher as source

    found = source.inventory_of(os.environ, own_name=socket.gethostname().lower())
    return _written(found, output=output, merge=merge, name=name, nic=nic, prefix=prefix, as_json=as_json)


def _text(path: Path) -> str:
    from rankclock.fleet.inventory.found import MAX_BYTES

    read: Callable[[int], bytes] = sys.stdin.buffer.read
    try:
        data = read(MAX_BYTES + 1) if str(path) == "-" else path.open("rb").read(MAX_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: more than {MAX_BYTES} bytes: no list of machines")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: not UTF-8 text: expected a list of machines") from None


def _written(
    found: Inventory,
    *,
    output: Path | None,
    merge: Path | None,
    name: str,
    nic: str | None,
    prefix: int | None,
    as_json: bool,
) -> int:
    from rankclock.fleet.inventory import cluster_text, merged

    if output is not None and merge is not None:
        raise UserError("-o and --merge: expected one of them")
    new, gone = [machine.name for machine in found.machines], list[str]()
    if merge is not None:
        text, new, gone = merged(_text(merge), str(merge), found, nic=nic, prefix=prefix)
        _replace(merge, text)
    else:
        text = cluster_text(found, name=name, nic=nic, prefix=prefix)
        if output is not None:
            _create(output, text)
    if as_json:
        print_json(
            {
                "schema": "rankclock-inventory/1",
                "source": found.source,
                "written": str(merge or output) if merge or output else None,
                "machines": [
                    {key: getattr(item, key) for key in ("name", "rack", "address", "kind", "note")}
                    for item in found.machines
                ],
                "new": new,
                "gone": gone,
                "left_out": found.left_out,
                "unknown": list(found.unknown),
            }
        )
    elif merge is not None:
        out().print(f"{merge}: {len(new)} new machines", markup=False)
        for missing in gone:
            err().print(f"{missing} is in {merge} and no longer in {found.source}: still there", markup=False)
    elif output is not None:
        out().print(f"{output}: {len(new)} machines, {len(found.left_out)} left out", markup=False)
    else:
        sys.stdout.write(text)
    return ExitCode.OK


def _create(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"{path}: is there already: --merge {path} adds to it, or choose another name") from None
    except OSError as error:
        raise UserError(f"{path}: cannot write there: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    """The whole new text or the old one, whatever happens on the way."""
    part = path.with_name(f".{path.name}.new")
    try:
        part.write_bytes(text.encode())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot write there: {error.strerror}") from None
