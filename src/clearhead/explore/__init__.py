"""The explorer: a web page that shows what attention does, and its server.

page/     the page: one HTML file and its modules, as they are sent
server    the routes, thin around the rooms above      guard   who may ask, and how much
looks     what a model did with a text, to be asked    byhand  attention with every number in sight
shelf     models and looks by their ids                turns   one step at a time, a bounded queue
runs      trainings while they run                     serving open it
worked    the lecture's worked example, printed
"""

from .serving import serve

__all__ = ["serve"]
