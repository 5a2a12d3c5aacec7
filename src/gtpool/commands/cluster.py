"""`gtpool cluster`: batch scripts for SLURM."""

import shlex
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def top() -> None:
    """Batch scripts for clusters."""


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog="gtpool cluster slurm --array 8 --cpus 4 study run table1 > job.sh; sbatch job.sh",
)
def slurm(
    command: Annotated[
        list[str], typer.Argument(help="Command without `gtpool`, such as: study run table1.")
    ],
    array: Annotated[
        int | None, typer.Option(min=1, help="Number of tasks of a job array; each does one shard.")
    ] = None,
    ray: Annotated[
        int | None, typer.Option(min=1, help="Number of nodes of a Ray cluster in one job.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="Partition. (default: that of SLURM)")
    ] = None,
    time: Annotated[str, typer.Option(help="Time limit; two days are 2-00:00:00.")] = "04:00:00",
    cpus: Annotated[int, typer.Option(min=1, help="Cores per task or node.")] = 1,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs per task or node.")] = 0,
    memory: Annotated[
        str | None, typer.Option(help="Memory. (default: 8G per task, or all of a node)")
    ] = None,
) -> None:
    """Print a batch script for `sbatch` of SLURM that runs a command of gtpool.

    Options of this command go before the command to run.
    A requeued task resumes.
    """
    if (array is None) == (ray is None):
        raise ValueError(
            "give either --array N (a job array) or --ray N (a Ray cluster of N nodes)"
        )
    sharded = command[:1] == ["train"] or command[:2] == ["study", "run"]
    if array is not None and (not sharded or _has(command, "--shard")):
        raise ValueError("--array requires `train` or `study run` without --shard")
    flags = ["requeue"]
    options = {
        "job-name": "gtpool",
        "partition": partition,
        "time": time,
        "cpus-per-task": cpus,
        "gpus-per-node": gpus or None,
        "mem": memory or ("8G" if ray is None else 0),
        "open-mode": "append",
    }
    if ray is None:
        options |= {"array": f"1-{array}", "output": "gtpool-%A-%a.log"}
        jobs = cpus > 1 and not gpus and not _has(command, "--jobs")
        more = ["--jobs", str(cpus)] if jobs else []
        lines = [f'exec {_line(command, more)} --shard "$SLURM_ARRAY_TASK_ID/{array}"']
    else:
        # At the end of a job Ray kills all its processes on a node, also those of other jobs.
        flags.append("exclusive")
        options |= {"nodes": ray, "ntasks-per-node": 1, "output": "gtpool-%j.log"}
        share = ["--gpus-per-unit", "1"] if gpus and not _has(command, "--gpus-per-unit") else []
        line = _line(command, ["--executor", "ray", "--address", "auto", *share])
        lines = [*_RAY_SETUP, f"{_RAY_RUN.format(nodes=ray, cpus=cpus, gpus=gpus)} {line}"]
    flags += [f"{name}={value}" for name, value in options.items() if value is not None]
    asked = [f"#SBATCH --{flag}" for flag in flags]
    typer.echo("\n".join(["#!/bin/bash", *asked, "set -euo pipefail", *lines]))


_RAY_SETUP = (
    "# Detect a lost connection in seconds; require a token to use the cluster.",
    "export RAY_grpc_client_keepalive_time_ms=5000 RAY_grpc_client_keepalive_timeout_ms=5000",
    "export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0",
    "export RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')}",
    'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
)
_RAY_RUN = (
    'srun --cpus-per-task={cpus} ray symmetric-run --address "$head:6379" --min-nodes {nodes} '
    "--num-cpus={cpus} --num-gpus={gpus} --"
)


def _has(command: list[str], option: str) -> bool:
    """Return whether an option is given, as one word or two."""
    return any(word.partition("=")[0] == option for word in command)


def _line(command: list[str], more: list[str]) -> str:
    return shlex.join(["gtpool", *command, *more])
