"""Who a process is in its job, from the variables that torchrun, mpirun, srun and Kubernetes set."""

from __future__ import annotations

import pytest

from rankclock.errors import UserError
from rankclock.training.environment import (
    DEFAULT_PORT,
    Given,
    Launcher,
    MeetingPoint,
    parse_meeting_point,
    read_place,
)

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "gpu1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SRUN = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "gpu[003,007-009]",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "3052994561",
}


def test_torchrun_gives_rank_size_and_the_ports_after_its_own_store() -> None:
    place = read_place(TORCHRUN)
    assert (place.launcher, place.rank, place.world_size) == (Launcher.TORCHRUN, 3, 4)
    assert (place.local_rank, place.attempt) == (1, 2)
    assert place.meeting == MeetingPoint(host="gpu1", ports=(29501, 29502, 29503, 29504))
    assert 29500 not in place.meeting.ports


def test_ports_never_run_beyond_the_last_one() -> None:
    place = read_place({**TORCHRUN, "MASTER_PORT": "65533"})
    assert place.meeting.ports == (65529, 65530, 65531, 65532)


def test_the_restart_count_does_not_part_ranks_of_one_job() -> None:
    assert read_place(TORCHRUN).job == read_place({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "0"}).job


def test_jobs_of_different_run_ids_or_stores_differ() -> None:
    jobs = {
        read_place({**TORCHRUN, **change}).job
        for change in ({}, {"TORCHELASTIC_RUN_ID": "b"}, {"MASTER_PORT": "29600"}, {"MASTER_ADDR": "gpu2"})
    }
    assert len(jobs) == 4


def test_an_srun_step_meets_at_its_first_node_on_ports_of_its_own_job() -> None:
    place = read_place(SRUN)
    assert (place.launcher, place.rank, place.world_size) == (Launcher.SLURM, 2, 4)
    assert place.job == "slurm 4711.0"
    assert place.meeting.host == "gpu003"
    assert place.meeting.ports != read_place({**SRUN, "SLURM_JOB_ID": "4712"}).meeting.ports
    assert max(place.meeting.ports) < 32768


def test_a_batch_script_is_no_rank_though_slurm_gives_it_a_process_number() -> None:
    batch = {name: value for name, value in SRUN.items() if name not in ("SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS")}
    with pytest.raises(UserError, match="in no job that I know"):
        read_place(batch)


def test_torchrun_inside_srun_is_torchrun() -> None:
    place = read_place({**SRUN, **TORCHRUN, "SLURM_PROCID": "1"})
    assert (place.launcher, place.rank) == (Launcher.TORCHRUN, 3)


def test_mpirun_on_one_host_meets_on_loopback() -> None:
    place = read_place(MPIRUN)
    assert (place.launcher, place.rank, place.world_size) == (Launcher.OPENMPI, 1, 2)
    assert place.meeting.host == "127.0.0.1"


def test_mpirun_over_hosts_asks_where_to_meet() -> None:
    spread = {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    with pytest.raises(UserError, match="--rendezvous HOST:PORT"):
        read_place(spread)
    assert read_place({**spread, "MASTER_ADDR": "gpu1"}).meeting.host == "gpu1"
    assert read_place({**spread, "RANKCLOCK_RENDEZVOUS": "gpu1:7000"}).meeting == MeetingPoint(
        host="gpu1", ports=(7000,)
    )


def test_hydra_is_known_by_its_pmi_variables() -> None:
    place = read_place({"PMI_RANK": "0", "PMI_SIZE": "3", "MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "0"})
    assert (place.launcher, place.rank, place.world_size) == (Launcher.PMI, 0, 3)


def test_an_indexed_kubernetes_job_gives_the_rank_and_the_user_the_size() -> None:
    given = Given(world_size=4, rendezvous="train-0.train:29333")
    place = read_place({"JOB_COMPLETION_INDEX": "2"}, given)
    assert (place.launcher, place.rank, place.world_size) == (Launcher.KUBERNETES, 2, 4)


def test_a_host_list_needs_no_launcher() -> None:
    place = read_place({}, Given(hosts=("gpu1", "gpu2", "gpu3"), own_index=2))
    assert (place.rank, place.world_size) == (2, 3)
    assert place.meeting.host == "gpu1"
    assert place.meeting.ports[0] == DEFAULT_PORT


def test_options_win_over_the_environment_where_the_worlds_differ() -> None:
    place = read_place(SRUN, Given(rank=0, world_size=2, rendezvous="a:1"))
    assert (place.rank, place.world_size) == (0, 2)


def test_arrivals_have_no_rank_only_where_that_is_allowed() -> None:
    given = Given(world_size=4, rendezvous="gpu1:29333", may_arrive=True)
    assert read_place({}, given).rank is None
    with pytest.raises(UserError, match="Give --rank"):
        read_place({}, Given(world_size=4, rendezvous="gpu1:29333"))


@pytest.mark.parametrize(
    ("env", "given", "says"),
    [
        ({}, Given(), "in no job that I know"),
        ({"RANK": "0"}, Given(), "WORLD_SIZE is missing"),
        ({"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2"}, Given(), "RANK is missing"),
        ({**TORCHRUN, "RANK": "4"}, Given(), "the rank is 4: expected 0 to 3"),
        ({**TORCHRUN, "RANK": "-1"}, Given(), "RANK is '-1'"),
        ({**TORCHRUN, "RANK": "two"}, Given(), "RANK is 'two'"),
        ({**TORCHRUN, "RANK": "٣"}, Given(), "expected a whole number"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, Given(), "the world size is 0"),
        ({**TORCHRUN, "WORLD_SIZE": "999999"}, Given(), "WORLD_SIZE is '999999'"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, Given(), "MASTER_PORT is '70000'"),
        (TORCHRUN, Given(rank=1), "--rank is 1, but torchrun says RANK=3"),
        ({**SRUN, "RANK": "0", "WORLD_SIZE": "4"}, Given(), "RANK=0 and SLURM_PROCID=2 contradict"),
        ({**SRUN, "SLURM_STEP_NODELIST": "gpu[003"}, Given(), "cannot be read"),
        ({}, Given(hosts=("a", "b"), world_size=3), "--hosts names 2 hosts"),
        ({}, Given(rank=2, world_size=2, rendezvous="a:1"), "the rank is 2"),
        ({}, Given(rank=0, world_size=2), "Give --rendezvous"),
        (TORCHRUN, Given(rendezvous="gpu1:0"), "a port is 1 to 65535"),
        (TORCHRUN, Given(rendezvous="fd00::1"), "expected HOST:PORT"),
        (TORCHRUN, Given(rendezvous="http://gpu1:80"), "expected HOST:PORT"),
        ({**TORCHRUN, "RANKCLOCK_RENDEZVOUS": "::"}, Given(), "RANKCLOCK_RENDEZVOUS is '::'"),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_refused_in_one_line(
    env: dict[str, str], given: Given, says: str
) -> None:
    with pytest.raises(UserError) as refused:
        read_place(env, given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("gpu1:29333", "gpu1", 29333),
        ("gpu1", "gpu1", DEFAULT_PORT),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[fd00::1]:65535", "fd00::1", 65535),
        ("[fe80::1%eth0]", "fe80::1%eth0", DEFAULT_PORT),
    ],
)
def test_meeting_points_are_read_and_written_alike(text: str, host: str, port: int) -> None:
    point = parse_meeting_point(text)
    assert (point.host, point.ports) == (host, (port,))
    assert parse_meeting_point(str(point)) == point
