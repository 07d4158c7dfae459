"""The explorer: a web page that shows what attention models compute, and its server.

serving           open it: find a port, print the address, serve until Ctrl-C
server            the ASGI application: routes, the page's files and the guard put together
routes            the routes of the API, in groups; schemas: their requests and responses
responses         JSON, streams of JSON lines, errors as sentences
guard             which requests are allowed
request_queue     a bounded queue; work that stops when its client disconnects
store             models by id, with examples; inspections within a memory limit; images: uploaded and example images
inspections       what a model computed for a text; attention_groups: its maps, token_axis: the tokens beside them
generation        text generation one token at a time; candidates: the likeliest tokens in each place
translations      the sentences of a text and their translations; reading: what an encoder computes of a text
image_inspection  what a vision model computed for one image: attention over patches, feature maps, classes
worked            attention by hand, and the lecture's worked example
illustrations     position encodings, and a memory with forgetting
runs              runs under a folder, read while they are being written
page/             the page: one HTML file and its modules, sent as they are
"""

from .app import serve

__all__ = ["serve"]
