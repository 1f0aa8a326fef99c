"""Data ranks of any mesh: every rank has one, peers form equal groups, and names are read only if they are clear."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import DataLoader, Loader
from feedline.errors import BadOption
from feedline.mesh.data_rank import check_data_dims, data_dims_of, data_rank_of, grid_of

NAMES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")


@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.randoms(use_true_random=False), st.data())
def test_groups_of_peers_divide_the_ranks(shape: list[int], shuffler: Any, data: st.DataObject) -> None:
    names = NAMES[: len(shape)]
    dims = data.draw(st.permutations(names).flatmap(lambda order: st.integers(0, len(order)).map(lambda n: order[:n])))
    ranks = list(range(math.prod(shape)))
    shuffler.shuffle(ranks)
    grid = np.array(ranks).reshape(shape)
    found = {rank: data_rank_of(grid, names, dims, rank) for rank in ranks}
    size = math.prod(shape[names.index(name)] for name in dims)
    for rank, (data_rank, count, peers) in found.items():
        assert count == size
        assert rank in peers
        assert all(found[peer] == (data_rank, count, peers) for peer in peers)
        coordinates = [int(np.argwhere(grid == rank)[0][names.index(name)]) for name in dims]
        places = list(itertools.product(*(range(shape[names.index(name)]) for name in dims)))
        assert places[data_rank] == tuple(coordinates), "the data rank is not the row-major number of the coordinates"
    assert {data_rank for data_rank, _, _ in found.values()} == set(range(size))


@pytest.mark.parametrize(
    ("names", "dims"),
    [
        (NAMES, ("dp_replicate", "dp_shard")),
        (("data", "model"), ("data",)),
        (("fsdp", "tp"), ("fsdp",)),
        (("data_parallel", "tensor_parallel"), ("data_parallel",)),
        (("tp", "DP"), ("DP",)),
    ],
)
def test_usual_names_are_known(names: tuple[str, ...], dims: tuple[str, ...]) -> None:
    assert data_dims_of(names) == dims


@pytest.mark.parametrize("names", [("replicate", "shard"), ("dp_cp", "tp"), ("dp_shard_in_ep", "tp"), ("depth", "tp")])
def test_unclear_names_are_not_guessed(names: tuple[str, ...]) -> None:
    with pytest.raises(BadOption, match=f"{names[0]!r}, 'tp'|'replicate', 'shard'"):
        data_dims_of(names)


@pytest.mark.parametrize("dims", ["nothing", ["dp", "nothing"], ["dp", "dp"], 3, [0]])
def test_names_that_are_not_in_the_mesh_are_refused(dims: Any) -> None:
    with pytest.raises(BadOption, match="data_dims"):
        check_data_dims(dims, ("dp", "tp"))


def test_a_rank_outside_of_the_mesh_is_refused() -> None:
    mesh = SimpleNamespace(mesh=np.arange(2), mesh_dim_names=("dp",), get_coordinate=lambda: None)
    with pytest.raises(BadOption, match="rank 2"):
        grid_of(mesh, 2, 3)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rank": 1}, "world_size= is missing"),
        ({"world_size": 2}, "rank= is missing"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"data_dims": ("dp",)}, "needs mesh="),
        ({"check": 5, "rank": 0, "world_size": 2}, "needs mesh="),
        ({"mesh": object()}, "process group"),
    ],
)
@pytest.mark.parametrize("kind", [DataLoader, Loader])
def test_arguments_that_do_not_define_a_data_rank_are_refused(kind: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadOption, match=says):
        kind(list(range(4)), **options)


@pytest.mark.parametrize("kind", [DataLoader, Loader])
def test_a_data_rank_can_be_given_by_hand(kind: Any) -> None:
    loaders = [kind(list(range(8)), 2, shuffle=True, rank=rank, world_size=2) for rank in (0, 1, 1)]
    first, second, peer = [[batch.tolist() for batch in loader] for loader in loaders]
    assert second == peer
    assert sorted(index for batch in first + second for index in batch) == list(range(8))
    assert len(loaders[0]) == 2
