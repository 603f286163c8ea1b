"""Lists of machines that others keep (Slurm, Kubernetes, Ansible, host lists, a launcher), as a cluster file."""

from rankclock.fleet.inventory.cluster_file import cluster_text, merged
from rankclock.fleet.inventory.found import Inventory, Machine

__all__ = ["Inventory", "Machine", "cluster_text", "merged"]
