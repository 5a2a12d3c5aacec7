"""Real Ray, real processes, really killed; and what divides runs without an engine."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from safetensors.torch import load_file
from torch import equal
from waiting import wait_for

from gtpool.commands.options import choose_executor
from gtpool.spec import DataSpec, ModelSpec, RunSpec, SplitSpec, TrainSpec
from gtpool.study.inputs import expand_folds
from gtpool.study.plan import shard
from gtpool.study.ray_executor import RayExecutor, import_ray
from gtpool.study.run import run_many
from gtpool.study.store import Store, collect

# Ray reads these when it is imported; without them it leaves a token in the user's home.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
NUMBERS = ("spec", "test", "valid_loss", "valid_metric", "epoch", "other_rules", "curves", "split")
SPEC = RunSpec(
    data=DataSpec(source="MUTAG"),
    split=SplitSpec(rule="stratified"),  # whether or not the fixed folds are there
    model=ModelSpec(width=8, levels=1),
    train=TrainSpec(epochs=30, warmup=2),
)
ENDLESS = replace(SPEC, train=TrainSpec(epochs=10**6, warmup=1, patience=10**6))
FOLDS = expand_folds(SPEC)[:6]
LONG = [replace(spec, train=TrainSpec(epochs=200, warmup=2)) for spec in FOLDS[:4]]
GTPOOL = str(Path(sys.executable).with_name("gtpool"))
pytestmark = pytest.mark.usefixtures("no_data_folder")


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The folds, one after the other in this process."""
    store = Store(tmp_path_factory.mktemp("reference"))
    run_many(FOLDS, store, keep=True)
    return store


@pytest.fixture(scope="module")
def cluster(request):
    """Two nodes of one core each, to which every ``RayExecutor`` in this process then belongs."""
    request.getfixturevalue("no_data_folder")  # workers have the environment of now
    ray = import_ray()
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - after the settings

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    ray.init(nodes.address, logging_level="WARNING")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


class Log:
    """A watcher that counts, and does something once, when so many runs are on their way."""

    def __init__(self, do=lambda: None, when=1, times=1):
        self.begun, self.ended, self.at = Counter(), Counter(), set()
        self.do, self.when, self.times = do, when, times

    def begin(self, *_):
        pass

    def preparing(self, *_):
        pass

    def started(self, spec):
        self.begun[spec.key] += 1
        self.at.add(spec.key)
        if len(self.at) == self.when and self.times:
            self.times -= 1
            self.do()

    def epoch(self, *_):
        pass

    def finished(self, row):
        self.ended[row.key] += 1
        self.at.remove(row.key)


def numbers(rows):
    return {row.key: {name: getattr(row, name) for name in NUMBERS} for row in rows}


def check_complete(store, reference):
    assert numbers(store.rows()) == numbers(reference.rows())
    assert {row.status for row in store.rows()} == {"done"}


def finished(store):
    """Name, time and content of each row file."""
    files = (store.folder / "runs").glob("*.json")
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def descendants(pid):
    """Name all processes that come from one, by pid."""
    parents, names = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            names[int(stat.parent.name)] = stat.with_name("cmdline").read_bytes().decode()
            parents.setdefault(parent, []).append(int(stat.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    found, queue = {}, [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found.update({child: names[child] for child in children})
        queue += children
    return found


def workers(pid):
    """List the processes of Ray's that do a unit for a driver or its nodes."""
    return [below for below, name in descendants(pid).items() if name.startswith("ray::_run_task")]


def busy_workers(pid, process=None):
    """List them as soon as there are any; between two units a process has another name."""
    found = []
    wait_for(lambda: found.extend(workers(pid)) or found, process)
    return found


def kill_a_worker():
    os.kill(busy_workers(os.getpid())[0], signal.SIGKILL)


def drive(store, *address):
    """Do the folds in a process of its own."""
    return subprocess.Popen(
        [sys.executable, __file__, store.folder, *address],
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


# Without an engine


def test_shards_are_disjoint_and_together_all_runs():
    specs = expand_folds(SPEC, seeds=10)
    parts = [shard(specs, f"{part}/7") for part in range(1, 8)]
    assert sorted(spec.key for part in parts for spec in part) == sorted(s.key for s in specs)
    assert all(5 <= len(part) <= 30 for part in parts)
    assert shard(list(reversed(specs)), "3/7") == list(reversed(parts[2]))


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "-1/2", "1/0", ""])
def test_a_shard_that_is_none_is_an_error(part):
    with pytest.raises(ValueError, match="shard"):
        shard(FOLDS, part)


def test_shards_done_apart_are_collected_into_what_one_run_gives(tmp_path):
    specs = expand_folds(replace(SPEC, train=TrainSpec(epochs=2, warmup=1)))
    stores = [Store(tmp_path / part) for part in "12"]
    for part, store in enumerate(stores, 1):
        run_many(shard(specs, f"{part}/2"), store)
        assert 0 < len(store.rows()) < len(specs)
    rows = collect([store.folder for store in stores], tmp_path / "all.jsonl")
    whole = run_many(specs, Store(tmp_path / "whole"))
    assert {row.key: row.test for row in rows} == {row.key: row.test for row in whole}
    row = stores[0].rows()[0].updated(test=0.123)
    Store(tmp_path / "other").put(row)
    with pytest.raises(ValueError, match=rf"{row.key} .*: test;"):
        collect([stores[0].folder, tmp_path / "other"], tmp_path / "all.jsonl")


def slurm(*words):
    words = [GTPOOL, "cluster", "slurm", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout or done.stderr


def test_slurm_gets_an_array_of_shards():
    text = slurm("--array", "8", "--cpus", "4", "study", "run", "table1", "--only", "pool=a b")
    assert "#SBATCH --array=1-8\n" in text
    assert "#SBATCH --cpus-per-task=4\n" in text
    assert text.endswith(
        "exec gtpool study run table1 --only 'pool=a b' --jobs 4 "
        '--shard "$SLURM_ARRAY_TASK_ID/8"\n'
    )
    assert "--jobs" not in slurm("--array", "8", "--cpus", "4", "--gpus", "1", "train", "MUTAG")
    assert "--jobs 4" not in slurm("--array", "8", "--cpus", "4", "train", "MUTAG", "--jobs=2")
    assert "--array requires `train`" in slurm("--array", "8", "search", "MUTAG")
    assert "either --array N" in slurm("train", "MUTAG")
    assert "either --array N" in slurm("--array", "2", "--ray", "2", "train", "MUTAG")


def test_slurm_gets_a_ray_cluster_that_needs_a_token_and_notices_a_cut_link():
    text = slurm("--ray", "3", "--cpus", "16", "--gpus", "2", "train", "MUTAG")
    for said in ("--nodes=3", "--exclusive", "--gpus-per-node=2", "keepalive_time_ms=5000"):
        assert said in text
    assert "--address auto --gpus-per-unit 1\n" in text
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    tokens = text.replace("srun", "echo $RAY_AUTH_TOKEN; exit;").replace("scontrol", "true")
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_NODELIST": "a"}
    made = {subprocess.check_output(["bash"], input=tokens, text=True, env=env) for _ in range(2)}
    assert {len(token.strip()) for token in made} == {64}
    assert len(made) == 2


@pytest.mark.slow
def test_the_parts_of_an_array_leave_nothing_to_do_for_the_whole(tmp_path):
    size = ("--folds", "4", "--epochs", "2", "--width", "8", "--levels", "1")
    command = ("train", "MUTAG", *size, "--output-dir", "out")
    script = slurm("--array", "2", *command)
    env = {**os.environ, "PATH": f"{Path(GTPOOL).parent}{os.pathsep}{os.environ['PATH']}"}
    for part in "12":
        subprocess.run(
            ["bash"],
            input=script,
            text=True,
            check=True,
            cwd=tmp_path,
            env={**env, "SLURM_ARRAY_TASK_ID": part},
        )
    before = finished(Store(tmp_path / "out"))
    assert len(before) == 4
    assert not (tmp_path / "out" / "report.html").exists()
    subprocess.run([GTPOOL, *command], check=True, cwd=tmp_path)
    assert finished(Store(tmp_path / "out")) == before
    assert (tmp_path / "out" / "report.html").exists()


# The door to Ray


def test_without_ray_the_error_names_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install '\.\[cluster\]'"):
        run_many(FOLDS, Store(tmp_path), executor=RayExecutor())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"executor": RayExecutor(), "jobs": 2}, "jobs=.* and together="),
        ({"executor": RayExecutor(), "together": 1}, "jobs=.* and together="),
        (
            {"executor": RayExecutor(), "device": "cuda"},
            "gpus_per_unit=0 .*'cuda'",
        ),
        (
            {"executor": RayExecutor(gpus_per_unit=0.5), "device": "cpu"},
            "cuda, got 'cpu'",
        ),
        (
            {"executor": RayExecutor("nonsense")},
            "'nonsense'.*HOST:PORT",
        ),
        ({"executor": RayExecutor("127.0.0.1:1")}, "'127.0.0.1:1'"),
    ],
)
def test_what_cannot_be_had_of_a_cluster_is_an_error_at_once(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        run_many(FOLDS, Store(tmp_path), **options)


@pytest.mark.parametrize("options", [{"gpus_per_unit": -1}, {"unit_limit": 0}])
def test_impossible_shares_and_limits_are_errors(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        RayExecutor(**options)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        (("auto", None, None), "address"),
        ((None, 0.5, None), "gpus-per-unit"),
        ((None, None, 9.0), "unit-limit"),
    ],
)
def test_options_of_ray_are_not_ignored_without_it(given, option):
    with pytest.raises(ValueError, match=f"--{option} "):
        choose_executor("local", *given)


# One cluster


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_ray_gives_the_same_numbers_and_weights_bit_for_bit(tmp_path, reference):
    log, store = Log(), Store(tmp_path)
    rows = run_many(FOLDS, store, keep=True, watch=log, executor=RayExecutor())
    assert [row.key for row in rows] == [spec.key for spec in FOLDS]
    assert log.begun == log.ended == Counter(spec.key for spec in FOLDS)
    check_complete(store, reference)
    for spec in FOLDS:
        ours, theirs = (load_file(where.artifact(spec.key)) for where in (store, reference))
        assert ours.keys() == theirs.keys()
        assert all(equal(ours[part], theirs[part]) for part in ours)


@pytest.mark.slow
@needs_proc
@pytest.mark.usefixtures("cluster")
def test_a_worker_that_is_killed_is_replaced_and_its_run_redone(tmp_path, reference):
    log = Log(kill_a_worker)
    run_many(FOLDS, Store(tmp_path), executor=RayExecutor(), watch=log)
    assert log.times == 0
    assert log.ended == Counter(spec.key for spec in FOLDS)
    check_complete(Store(tmp_path), reference)


@pytest.mark.slow
@needs_proc
@pytest.mark.usefixtures("cluster")
def test_a_run_that_no_worker_survives_is_stored_as_failed(tmp_path):
    log = Log(kill_a_worker, times=9)
    rows = run_many([ENDLESS], Store(tmp_path), executor=RayExecutor(), watch=log)
    assert rows == Store(tmp_path).rows()
    assert (rows[0].status, log.begun.total()) == ("failed", 3)
    assert "its process died 3 times, last with WorkerCrashedError" in rows[0].error


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_run_beyond_its_limit_is_cancelled_and_the_others_are_done(tmp_path):
    short = replace(SPEC, train=TrainSpec(epochs=2, warmup=1))
    rows = run_many([ENDLESS, short], Store(tmp_path), executor=RayExecutor(unit_limit=10))
    assert [row.status for row in rows] == ["failed", "done"]
    assert "cancelled at the limit of 10 s" in rows[0].error


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_what_is_wrong_with_a_spec_raises_from_afar(tmp_path):
    wrong = replace(SPEC, model=replace(SPEC.model, pool="sagpol"))
    with pytest.raises(ValueError, match="sagpol") as raised:
        run_many([wrong], Store(tmp_path), executor=RayExecutor())
    assert type(raised.value) is ValueError
    with pytest.raises(ValueError, match="no GPU"):
        run_many(FOLDS, Store(tmp_path), executor=RayExecutor(gpus_per_unit=0.5))
    assert Store(tmp_path).rows() == []


# Many nodes, and the loss of them


@pytest.mark.slow
@needs_proc
def test_after_kill_9_of_the_driver_no_finished_run_is_repeated(tmp_path, reference):
    store = Store(tmp_path)
    process = drive(store)
    wait_for(lambda: len(finished(store)) >= 2, process)
    crew = busy_workers(process.pid, process)
    process.kill()
    process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in crew))
    before = finished(store)
    assert 2 <= len(before) < len(FOLDS)
    assert drive(store).wait() == 0
    after = finished(store)
    assert {name: after[name] for name in before} == before
    check_complete(store, reference)


@pytest.mark.slow
def test_with_a_node_lost_all_runs_are_there_exactly_once(tmp_path, cluster):
    node = next(iter(cluster.worker_nodes))
    log = Log(lambda: cluster.remove_node(node, allow_graceful=False), when=2)
    rows = run_many(LONG, Store(tmp_path), executor=RayExecutor(), watch=log)
    cluster.add_node(num_cpus=1)
    assert log.begun.total() > len(LONG)  # one was begun on the lost node, and again
    assert log.ended == Counter(spec.key for spec in LONG)
    assert [row.status for row in rows] == ["done"] * len(LONG)


def can_cut_links():
    """Say whether this user may make network namespaces."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"gtpool-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made.returncode == 0


@pytest.fixture
def two_machines():
    """Two network namespaces with a link between; gives what starts a program in each."""
    if not can_cut_links():
        pytest.skip("it takes root and `ip netns` to make two networks")
    names = [f"gtpool-{os.getpid()}-{end}" for end in "ab"]
    links = [f"gtp{os.getpid()}{end}" for end in "ab"]
    ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
    for number, (name, link) in enumerate(zip(names, links, strict=True), 1):
        ip("netns", "add", name)
        ip("link", "set", link, "netns", name)
        ip("-n", name, "address", "add", f"10.213.0.{number}/24", "dev", link)
        ip("-n", name, "link", "set", link, "up")
        ip("-n", name, "link", "set", "lo", "up")
    started = []

    def start(machine, *command):
        words = ["ip", "netns", "exec", names[machine], *map(str, command)]
        started.append(subprocess.Popen(words, start_new_session=True))
        return started[-1]

    try:
        yield start, lambda: ip("-n", names[1], "link", "set", links[1], "down")
    finally:
        for process in started:
            for pid in (*descendants(process.pid), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        for name in names:
            ip("netns", "delete", name)


def ip(*words):
    subprocess.run(["ip", *words], check=True)


@pytest.mark.slow
@needs_proc
def test_after_a_cut_link_the_runs_soon_go_on_elsewhere(tmp_path, two_machines, monkeypatch):
    start, cut = two_machines
    import_ray()  # for its settings, which all nodes inherit
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ray, store, address = Path(GTPOOL).with_name("ray"), Store(tmp_path), "10.213.0.1:6379"
    join = ("--num-cpus=1", "--block", "--disable-usage-stats")
    with TemporaryDirectory() as short:  # enough for the names of sockets
        head = ("--head", "--port=6379", "--node-ip-address=10.213.0.1", f"--temp-dir={short}")
        start(0, ray, "start", *head, "--include-dashboard=false", *join)
        wait_for(Path(short, "session_latest", "sockets", "raylet").exists)
        far = start(1, ray, "start", f"--address={address}", "--node-ip-address=10.213.0.2", *join)
        driver = start(0, sys.executable, __file__, store.folder, address)
        begun = tmp_path / "begun"
        wait_for(lambda: workers(far.pid) and begun.exists(), driver)
        wait_for(lambda: len(begun.read_text().split()) >= 2, driver)
        cut()
        wait_for(lambda: len(begun.read_text().split()) > len(LONG), driver, limit=180)
        assert driver.wait() == 0
    assert [row.status for row in store.rows()] == ["done"] * len(LONG)


class Diary(Log):
    """A watcher that another process can read."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def started(self, spec):
        super().started(spec)
        with self.path.open("a") as file:
            file.write(f"{spec.key}\n")


if __name__ == "__main__":
    out, *there = sys.argv[1:]
    diary = Diary(Path(out, "begun"))
    run_many(LONG if there else FOLDS, Store(out), executor=RayExecutor(*there), watch=diary)
