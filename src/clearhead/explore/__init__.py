"""The explorer: a web page that shows what attention models compute, and its server.

server            `serve`: find a port, print the address, serve until Ctrl-C
app               the ASGI application: routes, the page's files and the guard put together
routes/           the routes of the API, a file per domain; explorer: what they share
requests          the bodies and parameters of requests; answers: the JSON that is sent
responses         JSON, arrays, streams of JSON lines, errors as sentences
guard             which requests are allowed
queue             a bounded queue; work that stops when its client disconnects
store             models by id, and inspections within a memory limit; images: those that were uploaded
examples          texts and images to try a model with
inspections/      what a model computed for a text, an image or a caption, and its maps
writing           text generation one token at a time; candidates: the likeliest tokens in each place
translations      the sentences of a text and their translations; reading: what an encoder computes of a text
comparison        two vision models: layers, attention distances and receptive fields
build             attention by hand, position vectors, a memory with decay
runs              the runs under a folder, read while they are being written
page/             the page: one HTML file and its modules, sent as they are
"""

from .server import serve

__all__ = ["serve"]
