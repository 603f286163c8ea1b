"""Machines of the job that this process is part of, as its launcher's variables tell.

Slurm tells all names. torchrun and MPI tell how many machines there are, and not their names: what is not told is
said. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from rankclock.cluster.hostlist import expand
from rankclock.errors import DecodeError, UserError
from rankclock.fleet.inventory.found import Inventory, Machine, address_of, collected

__all__ = ["inventory_of"]

_LISTS = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
_COUNTS = ("GROUP_WORLD_SIZE", "SLURM_NNODES", "OMPI_MCA_orte_num_nodes", "PMI_NUM_NODES")


def inventory_of(environment: Mapping[str, str], *, own_name: str) -> Inventory:
    """The machines that the variables name. own_name: this host's. Raises UserError outside of a job."""
    listed = next(((key, environment[key]) for key in _LISTS if environment.get(key)), None)
    if listed is not None:
        try:
            names = expand(listed[1])
        except DecodeError as error:
            raise UserError(f"{listed[0]}: {error}") from None
        machines = [Machine(name=name, where=listed[0]) for name in names]
        return collected(f"the job's {listed[0]}", machines, unknown=("racks", "addresses"))
    master = environment.get("MASTER_ADDR")
    count = next((environment[key] for key in _COUNTS if environment.get(key)), None)
    if master is None and count is None:
        raise UserError("no launcher's variables here: run it under srun or torchrun, or use another list of machines")
    machines = [Machine(name=own_name, where="this host")]
    if master is not None and address_of(master) is None and master not in (own_name, "localhost", "127.0.0.1"):
        machines.insert(0, Machine(name=master, where="MASTER_ADDR"))
    told = f"{count} machines" if count else "how many machines"
    unknown = (
        "racks",
        "addresses",
        f"the other machines: the launcher tells its processes {told}, and not their names; run this on each",
    )
    return collected("the job's variables", machines, unknown=unknown)
