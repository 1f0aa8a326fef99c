"""Eight ranks in meshes of several shapes: peers get the same batches, and data ranks share out the samples."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data as torch_data
from torch.distributed.device_mesh import init_device_mesh

import feedline
from feedline import DataLoader, Loader, samplers
from feedline.frameworks.accelerate import _split_already
from feedline.loader.rebuilding import TorchRebuilding
from tests.datasets.formats.tar.writing import write_shards
from tests.mesh.kinds import KINDS, Counting, Drawing, N, plain, tens, values
from tests.rank_processes import run_ranks
from tests.text.token_files import write

RANKS = 8
MESHES: dict[str, tuple[tuple[int, ...], tuple[str, ...], list[int]]] = {
    "2x2x2": ((2, 2, 2), ("dp_replicate", "dp_shard", "tp"), [0, 0, 1, 1, 2, 2, 3, 3]),
    "4x2": ((4, 2), ("tp", "dp"), [0, 1, 0, 1, 0, 1, 0, 1]),
    "8": ((8,), ("data",), list(range(8))),
}
"""Shapes, names, and the data rank of each rank."""
KINDS_OF = {"2x2x2": list(KINDS), "4x2": list(KINDS)[::3], "8": list(KINDS)[1::3]}
RESUMED = ["shuffled", "Loader", "torch's batch sampler", "stream", "pipe", "shards", "tokens"]
MOVES = list(zip(RESUMED, itertools.cycle([("2x2x2", "4x2"), ("4x2", "8"), ("8", "2x2x2")]), strict=False))
"""Kinds of data, each with the mesh that saves a state and the one that resumes."""
WORKERS = {"random numbers": "process", "shards": "thread", "stream": "thread"}
"""Kinds that are also tried with two workers, and the engine."""
SHORT_S = 3.0
Report = dict[Any, Any]  # names of cases, and what they report


def mesh_of(name: str) -> Any:
    shape, names, _ = MESHES[name]
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def two_epochs(folder: Path, kind: str, mesh: Any, **options: Any) -> Any:
    loader = KINDS[kind](folder, {"mesh": mesh, "check": 2, "mesh_timeout_s": 100.0, **options})
    return [[plain(batch) for batch in loader] for _ in range(2)]


def refusal(make: Callable[[], Any]) -> str:
    """Return the error that making a loader raises."""
    try:
        make()
    except feedline.errors.FeedlineError as exc:
        return f"{type(exc).__name__}: {exc}"
    return "none"


def resumed(folder: Path, kind: str, first: Any, later: Any) -> tuple[list[Any], list[Any]]:
    """Take two batches on one mesh, and the rest of the epoch on another."""
    loader = KINDS[kind](folder, {"mesh": first})
    batches = iter(loader)
    before = [plain(next(batches)) for _ in range(2)]
    states: list[Any] = [None] * RANKS
    dist.all_gather_object(states, loader.state_dict())
    other = KINDS[kind](folder, {"mesh": later})  # without seed=, the state has the seed
    other.load_state_dict(feedline.merge_states(states))
    return before, [plain(batch) for batch in other]


def life(mesh: Any) -> Report:
    """Do with one loader what programs do between epochs."""
    loader: Any = DataLoader(tens(), 2, shuffle=True, mesh=mesh, check=3, num_workers=1, engine="thread")
    persistent: Any = Loader(tens(), 2, shuffle=True, mesh=mesh, check=3, workers=1, engine="thread", persistent=True)
    report: Report = {"seed": loader.seed}
    for name, one in (("loader", loader), ("persistent", persistent)):
        left_early = [plain(batch) for batch in itertools.islice(one, 4)]
        other, twice = iter(one), iter(one)
        begun = [plain(next(other if name == "loader" else twice)), plain(next(twice))]
        one.set_epoch(7)
        seventh = [plain(batch) for batch in one]
        virtual = [[plain(batch) for batch in epoch] for epoch in itertools.islice(one.virtual_epochs(5), 3)]
        twin = [plain(batch) for batch in copy.copy(one)]
        report[name] = [left_early, begun, seventh, virtual, twin, len(one)]
        one.close()
    return report


def bad_input(mesh: Any) -> Report:
    data = tens()
    mixed = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp_cp", "tp"))
    unnamed = init_device_mesh("cpu", (8,))
    world: Any = torch_data.DistributedSampler(Drawing())
    own: Any = samplers.DistributedSampler(range(N))
    seeded = samplers.RandomSampler(range(N), generator=torch.Generator())
    return {
        "with rank": refusal(lambda: DataLoader(data, mesh=mesh, rank=1)),
        "unknown": refusal(lambda: Loader(data, mesh=mesh, data_dims=("dp",))),
        "repeated": refusal(lambda: Loader(data, mesh=mesh, data_dims=("dp_shard", "dp_shard"))),
        "no names": refusal(lambda: Loader(data, mesh=unnamed)),
        "mixed": refusal(lambda: Loader(data, mesh=mixed)),
        "part": refusal(lambda: DataLoader(data, mesh=mesh["dp_shard"])),
        "torch's sampler": refusal(lambda: DataLoader(data, sampler=world, mesh=mesh, seed=1, check=0)),
        "own sampler": refusal(lambda: DataLoader(data, sampler=own, mesh=mesh, seed=1, check=0)),
        "generator": refusal(lambda: DataLoader(data, sampler=seeded, mesh=mesh, seed=1, check=0)),
        "no time": refusal(lambda: DataLoader(data, mesh=mesh, mesh_timeout_s=0)),
        "out of order": refusal(lambda: DataLoader(data, mesh=mesh, in_order=False, seed=1, check=0)),
        "stream": refusal(lambda: DataLoader(Counting(), mesh=mesh, seed=1, check=0)),
        "virtual": refusal(lambda: Loader(data, mesh=mesh, seed=1, check=0).virtual_epochs(3, rank=7, world_size=8)),
    }


def agreeing(mesh: Any) -> list[Any]:
    """Use samplers that are distributed as the mesh says."""
    place = MESHES["2x2x2"][2][dist.get_rank()]
    ours = samplers.DistributedSampler(range(N), 4, place, seed=3)
    theirs: Any = torch_data.DistributedSampler(Drawing(), 4, place, seed=3)
    return [[plain(batch) for batch in DataLoader(tens(), 2, sampler=one, mesh=mesh)] for one in (ours, theirs)]


class Unequal(torch_data.Dataset[int]):
    """Has another sample on one rank, or one that fails there."""

    def __init__(self, *, fails: bool = False) -> None:
        self.is_odd, self.fails = dist.get_rank() == 5, fails

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> int:
        if self.is_odd and index % 8 == 2:
            if self.fails:
                raise OSError("truncated")
            return -1
        return index


def by_accelerate(folder: Path, mesh: Any) -> Any:
    """Let Accelerate prepare loaders that split their samples, with its own device mesh."""
    rebuilding = TorchRebuilding(DataLoader)
    found = []
    for loader in (DataLoader(Counting(), 2, shard=True), KINDS["shards"](folder, {})):
        given: Report = {"torch_device_mesh": mesh, "num_processes": None, "dispatch_batches": None}
        given["split_batches"] = False
        prepared = _split_already(loader, given, rebuilding)
        assert given["torch_device_mesh"] is None
        assert given["num_processes"] == 1
        found.append([plain(batch) for batch in prepared])
    return found


def warned(mesh: Any) -> list[str]:
    """Return the warnings of loaders without mesh=, with a current mesh."""
    world: Any = torch_data.DistributedSampler(Drawing())
    with warnings.catch_warnings(record=True) as caught, mesh:
        warnings.simplefilter("always")
        makes: list[Callable[[], Any]] = [
            lambda: DataLoader(tens(), 2, sampler=world),
            lambda: Loader(Counting(), 2),
            lambda: DataLoader(tens(), 2, shuffle=True, mesh=mesh),
            lambda: Loader(Counting(), 2, mesh=mesh),
        ]
        for make in makes:
            loader = make()
            list(loader)
            list(loader)
    return [str(warning.message) for warning in caught]


class Rows(torch_data.Dataset[dict[str, Any]]):
    """Fails if a sample is read where nothing is needed."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert dist.get_rank() != 5, "a sample was read"
        return {"x": index, "noise": feedline.rng().random()}


def some_fields(mesh: Any) -> Any:
    """Deliver other fields on the second rank of each pair, and return the batches and the state after two of them."""
    needed: Any = {1: ["noise"], 3: lambda batch: batch["x"], 5: (), 7: ["x", "noise"]}.get(dist.get_rank())
    loader: Any = DataLoader(Rows(), 2, shuffle=True, mesh=mesh, check=1, fields=needed)
    batches = iter(loader)
    first = [plain(next(batches)) for _ in range(2)]
    state = loader.state_dict()
    return first + [plain(batch) for batch in batches], {name: state[name] for name in ("order", "seed", "draw_seed")}


def error_of(loader: Any, steps: int | None = None) -> str:
    try:
        for _ in itertools.islice(loader, steps):
            pass
    except feedline.errors.RankError as exc:
        return str(exc)
    return "none"


def faults(mesh: Any) -> Report:
    common: dict[str, Any] = {"batch_size": 2, "mesh": mesh, "check": 2}
    fault = {
        "other data": error_of(DataLoader(Unequal(), **common)),
        "skipped": error_of(DataLoader(Unequal(fails=True), on_error="skip", **common)),
        "other length": refusal(lambda: DataLoader(range(N + (dist.get_rank() == 3)), **common)),
    }
    dist.barrier()
    leaves: Any = DataLoader(tens(), mesh_timeout_s=SHORT_S, **common)
    fault["left early"] = error_of(leaves, 2 if dist.get_rank() == 6 else None)
    dist.barrier()
    if dist.get_rank() != 2:  # last: from here on, the ranks have not made the same loaders
        fault["never made"] = refusal(lambda: DataLoader(tens(), mesh_timeout_s=SHORT_S, **common))
    dist.barrier()
    if dist.get_rank() == 2:
        fault["too late"] = refusal(lambda: DataLoader(tens(), mesh_timeout_s=SHORT_S, **common))
    return fault


def everything(rank: int, world_size: int, folder: Path) -> Report:
    """Run all cases on one rank."""
    meshes = {name: mesh_of(name) for name in MESHES}
    report: Report = {}
    for name, mesh in meshes.items():
        for kind in KINDS_OF[name]:
            report[name, kind, ""] = two_epochs(folder, kind, mesh)
    for kind, engine in WORKERS.items():
        report["2x2x2", kind, engine] = two_epochs(folder, kind, meshes["2x2x2"], num_workers=2, engine=engine)
    for kind, (first, later) in MOVES:
        report["resumed", kind, later] = resumed(folder, kind, meshes[first], meshes[later])
    report["whole"] = {kind: values(_alone(folder, kind)) for kind in KINDS}
    report["life"] = life(meshes["2x2x2"])
    report["bad input"] = bad_input(meshes["2x2x2"])
    report["agreeing"] = agreeing(meshes["2x2x2"])
    report["accelerate"] = by_accelerate(folder, meshes["2x2x2"])
    report["warned"] = warned(meshes["2x2x2"])
    report["fields"] = some_fields(meshes["2x2x2"])
    report["faults"] = faults(meshes["2x2x2"])
    return report


def _alone(folder: Path, kind: str) -> list[Any]:
    kind = "shuffled" if kind == "own generator" else kind  # which excludes a seed
    return [plain(batch) for batch in KINDS[kind](folder, {"rank": 0, "world_size": 1, "seed": 5})]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Report]:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder, [8] * 6)
    write(folder / "tokens.bin", [list(range(4 * N + 1))])
    return run_ranks(RANKS, folder, everything)


def by_data_rank(reports: list[Any], mesh: str) -> list[Any]:
    """Return one report for each data rank; those of its peers have to be equal."""
    found: dict[int, Any] = {}
    for rank, (place, report) in enumerate(zip(MESHES[mesh][2], reports, strict=True)):
        assert found.setdefault(place, report) == report, f"rank {rank} got something else than its peers"
    return [found[place] for place in sorted(found)]


CASES = [(name, kind, "") for name in MESHES for kind in KINDS_OF[name]]
CASES += [("2x2x2", kind, engine) for kind, engine in WORKERS.items()]


@pytest.mark.parametrize(("mesh", "kind", "engine"), CASES)
def test_peers_get_the_same_batches_and_data_ranks_their_own(
    reports: list[Report], mesh: str, kind: str, engine: str
) -> None:
    ranks = by_data_rank([report[mesh, kind, engine] for report in reports], mesh)
    whole = Counter(reports[0]["whole"][kind])
    for epoch in range(2):
        got = Counter(value for rank in ranks for value in values(rank[epoch]))
        assert got.keys() == whole.keys()
        assert sum(got.values()) - N <= len(ranks), "samples came twice, beyond those that fill up the last batches"
    if kind == "random numbers":
        draws = [row for rank in ranks for batch in rank[0] for row in zip(*batch[1:], strict=True)]
        assert len(set(draws)) == len(draws), "samples of different data ranks have the same random numbers"


@pytest.mark.parametrize(("kind", "meshes"), MOVES)
def test_a_state_resumes_on_another_mesh(reports: list[Report], kind: str, meshes: tuple[str, str]) -> None:
    first, later = meshes
    before = by_data_rank([report["resumed", kind, later][0] for report in reports], first)
    after = by_data_rank([report["resumed", kind, later][1] for report in reports], later)
    had = Counter(value for rank in before for value in values(rank))
    rest = Counter(value for rank in after for value in values(rank))
    whole = Counter(reports[0]["whole"][kind])
    assert had <= whole
    assert (whole - had).keys() <= rest.keys(), "samples were lost"
    assert sum((rest - (whole - had)).values()) < 2 * len(after), "samples came again"


def test_loaders_are_left_early_copied_and_continued_alike(reports: list[Report]) -> None:
    ranks = by_data_rank([report["life"] for report in reports], "2x2x2")
    assert len({rank["seed"] for rank in ranks}) == 1
    for name in ("loader", "persistent"):
        seventh = Counter(value for rank in ranks for value in values(rank[name][2]))
        assert seventh == Counter(range(N))
        assert all(rank[name][5] == N // 8 for rank in ranks)
        virtual = [value for rank in ranks for epoch in rank[name][3] for value in values(epoch)]
        assert len(virtual) == 4 * 3 * 5 * 2
    assert ranks[0]["loader"][2] != ranks[0]["persistent"][2], "each loader without seed= has one of its own"


EXPECTED = {
    "with rank": "mesh= and rank=1",
    "unknown": "'dp_replicate', 'dp_shard', 'tp'",
    "repeated": "twice",
    "no names": "mesh_dim_names",
    "mixed": "'dp_cp'",
    "part": "2 of the 8 ranks",
    "torch's sampler": "of 8",
    "own sampler": "of 8",
    "generator": "seed=",
    "no time": "mesh_timeout_s=0",
    "out of order": "in_order=False",
    "stream": "shard=True",
    "virtual": "of 4",
}


@pytest.mark.parametrize("case", EXPECTED)
def test_bad_input_is_refused(reports: list[Report], case: str) -> None:
    for report in reports[1:]:
        assert report["bad input"][case].startswith("BadOption: ")
        assert EXPECTED[case] in report["bad input"][case]


def test_samplers_that_agree_with_the_mesh_are_used(reports: list[Report]) -> None:
    for which in range(2):
        ranks = by_data_rank([report["agreeing"][which] for report in reports], "2x2x2")
        assert Counter(value for rank in ranks for value in values(rank)) == Counter(range(N))


def test_accelerate_s_mesh_is_used(reports: list[Report]) -> None:
    for which in range(2):
        ranks = by_data_rank([report["accelerate"][which] for report in reports], "2x2x2")
        assert Counter(value for rank in ranks for value in values(rank)).keys() == set(range(N))


def test_a_loader_without_the_mesh_in_use_warns_once(reports: list[Report]) -> None:
    for report in reports:
        messages = [text for text in report["warned"] if "mesh" in text]
        assert len(messages) == 2, "one of each loader without mesh="
        assert all("'tp' get different batches" in text for text in messages)


def test_peers_may_need_different_fields(reports: list[Report]) -> None:
    batches, states = zip(*(report["fields"] for report in reports), strict=True)
    by_data_rank(list(states), "2x2x2")
    assert batches[1] == [{"noise": batch["noise"]} for batch in batches[0]]
    assert batches[3] == [batch["x"] for batch in batches[2]]
    assert batches[5] == [{}] * len(batches[4])
    assert batches[7] == batches[6]


@pytest.mark.parametrize(
    ("case", "touched", "says"),
    [
        ("other data", {4, 5}, "ranks 4 and 5"),
        ("skipped", {4, 5}, "rank 5 had skipped or replaced"),
        ("other length", {3}, f"{N + 1} on rank 3"),
        ("left early", {6, 7}, "rank 6 failed"),
        ("too late", {2}, "came too late"),
        ("never made", {0, 1, 3, 4, 5, 6, 7}, r"rank"),
    ],
)
def test_ranks_that_differ_are_named(reports: list[Report], case: str, touched: set[int], says: str) -> None:
    found = {rank: report["faults"].get(case, "none") for rank, report in enumerate(reports)}
    left = {6} if case == "left early" else set()  # it asked for no further batch
    for rank, text in found.items():
        if rank in touched - left:
            assert says in text
        else:
            assert text == "none", f"rank {rank}: {text}"
    if case == "never made":
        assert "rank 2 did not come" in found[0]
