"""data: files and generated tasks -> batches of numpy arrays, each a function of (seed, step). Imports no torch.

sets.py         data sets by name                      files.py        find files, download named sets, fingerprints
data.py         Data: batches, shares of workers       text_files.py   text files and stdin as a stream of lines
batching.py     batches of similar length, windows
tables/         CSV, TSV, JSON and Parquet files, and what is in them
text/           texts, translations, labelled texts, conversations
images/         folders of images, sets in memory, captions
generated/      tasks that are computed: sequences, scenes
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from .data import IGNORE as IGNORE
    from .data import Batch as Batch
    from .data import Data as Data
    from .data import share_rows as share_rows
    from .files import DataError as DataError
    from .files import find as find
    from .images.preprocessing import Preprocessing as Preprocessing
    from .sets import data_config as data_config
    from .sets import make_data as make_data
    from .sets import names as names
    from .sets import read_iris as read_iris
    from .tables.understand import Understood as Understood
    from .tables.understand import understand as understand
    from .text.parallel import load_split as load_split
    from .text.token_files import write_tokens as write_tokens

lazy.public_names(__name__)
