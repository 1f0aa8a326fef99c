"""The views of the lab, in the order of the page."""

from feedline.lab.view import View
from feedline.lab.views import batching, collate, samplers, workers

VIEWS: tuple[View, ...] = (batching.VIEW, samplers.VIEW, collate.VIEW, workers.VIEW)
