"""A demo that does not learn and hardly measures, for tests of its output and its end.

PyTorch's optimizers import its compiler, which takes two seconds of a core.
"""

PROGRAM = """
import types
from feedline.tools.cli import demo, demo_training

demo.peak_mb = lambda _: None
demo.ready_samples = lambda *_: []
demo.kill_worker = lambda *_: "told"
optimizers = types.SimpleNamespace(AdamW=lambda *_, **__: None)
demo_training.torch = types.SimpleNamespace(manual_seed=demo_training.torch.manual_seed, optim=optimizers)
demo_training.Training._step = lambda *_: 0
"""
"""Code to run before the demo."""
