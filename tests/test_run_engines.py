"""Engines: by name, and Ray (where it is installed) with the local rows, on two nodes and after a death."""

import builtins
import os
import signal
from pathlib import Path

import pytest
from run_models import Picked, tiny

from xattn.errors import ArgumentError, ArgumentTypeError, MissingDependencyError
from xattn.evaluation import benchmark, load_dataset
from xattn.evaluation._rows import MEASURED
from xattn.evaluation.datasets import BrokenSampleError
from xattn.evaluation.engines import LocalEngine, RayEngine, find_engine

SCENES = load_dataset("demo", n=6)


class Deadly(Picked):
    """Kills the process that reads the picture `at`, once."""

    def __init__(self, at, marker):
        super().__init__(SCENES, range(len(SCENES)))
        self.at, self.marker = at, marker

    def read(self, index):
        if index == self.at and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(index)


class Broken(Picked):
    """Its third picture cannot be used."""

    def __init__(self):
        super().__init__(SCENES, range(len(SCENES)))

    def read(self, index):
        if index == 2:
            raise BrokenSampleError("sample 2 (two): broken")
        return super().read(index)


def run(out, data=SCENES, engine="local", **options):
    methods, protocols = ["token_rank", "random"], ["perturbation", "segmentation"]
    return benchmark(tiny(), data, methods, protocols, out, engine=engine, chunk_size=2, **options)


def test_engines_by_name():
    engine = LocalEngine()
    assert find_engine(engine) is engine
    assert isinstance(find_engine("local"), LocalEngine)
    with pytest.raises(ArgumentError, match="expected local, ray or an engine"):
        find_engine("dask")
    with pytest.raises(ArgumentTypeError, match="run"):
        find_engine(3)


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"threads": 0}])
def test_numbers_are_positive(wrong):
    with pytest.raises(ArgumentError, match="expected a positive number, got 0"):
        RayEngine(**wrong)


def test_the_extra_is_named_where_ray_is_missing(monkeypatch, tmp_path):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "ray":
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingDependencyError, match=r"xattn\[distributed\]"):
        run(tmp_path, engine="ray")


def test_an_engine_may_finish_units_in_any_order(tmp_path):
    class Backwards(LocalEngine):
        def run(self, plan, jobs):
            return reversed(list(super().run(plan, jobs)))

    def same(results):
        return results.rows.drop_columns(MEASURED).to_pylist()

    assert same(run(tmp_path / "a", engine=Backwards())) == same(run(tmp_path / "b"))


def on(address, workers):
    """Workers that find this folder's modules."""
    paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return RayEngine(address, workers, runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, paths))}})


@pytest.fixture(scope="module")
def nodes():
    """Two nodes on this machine, with one processor each."""
    pytest.importorskip("ray", reason="needs the extra distributed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster.address
    cluster.shutdown()


@pytest.mark.filterwarnings("ignore")
def test_two_nodes_and_a_killed_worker_give_the_local_rows(nodes, tmp_path):
    local = run(tmp_path / "local").rows.drop_columns(MEASURED).to_pylist()
    data = Deadly(3, tmp_path / "dead")
    rows = run(tmp_path / "ray", data, on(nodes, 2)).rows.drop_columns(MEASURED).to_pylist()
    assert (tmp_path / "dead").exists()
    for row, expected in zip(rows, local, strict=True):
        assert row.pop("value") == pytest.approx(expected.pop("value"), abs=1e-6, nan_ok=True)
        for name in ("curve", "fractions"):
            found, wanted = row.pop(name), expected.pop(name)
            assert found == (wanted if wanted is None else pytest.approx(wanted, abs=1e-6))
        assert row.pop("configuration") == expected.pop("configuration")
        assert row == expected


@pytest.mark.filterwarnings("ignore")
def test_errors_of_a_worker_arrive_as_they_are(nodes, tmp_path):
    with pytest.raises(BrokenSampleError, match="two"):
        run(tmp_path, Broken(), on(nodes, 1), on_broken="raise")
