"""The iterator of `Loader`."""

from __future__ import annotations

from feedline.abc.sampler import draw_seed
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.state.epochs import Start
from feedline.frameworks.torch_compile import run_untraced
from feedline.loader.run.iteration import Iteration, Seeds, order_state
from feedline.loader.run.numpy_config import NumpyConfig
from feedline.loader.run.run import Run
from feedline.order.order import Order
from feedline.randomness.keys import epoch_key


@run_untraced
class NumpyBatches(Iteration):
    """Iterate over the batches of a `feedline.Loader`."""

    def _enter(self, run: Run, config: NumpyConfig, order: Order, start: Start, *, first: bool) -> Seeds:
        self._announce(run, config, order, start)
        order.prepare(order_state(start))
        snapshot, seed = start.snapshot, run.options.seed
        ordered = snapshot.seed if snapshot is not None and snapshot.seed is not None else order.seed_for(seed)
        drawn = snapshot.draw_seed if snapshot is not None and snapshot.draw_seed is not None else seed
        if drawn is None:
            drawn = order.common_seed()
        return Seeds(ordered, draw_seed() if drawn is None else drawn)

    def _spec(self, run: Run, config: NumpyConfig, start: Start) -> WorkerSpec:
        return run.spec(config, config.dataset, epoch_key(self.seeds.draw, start.epoch) >> 1, config.init)
