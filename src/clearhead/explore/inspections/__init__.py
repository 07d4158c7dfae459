"""Inspections: what a model computed for one input, kept so that any map, head, layer or token can be queried later.

text               of a text: encoders, language models, translators
image              of an image: attention over patches, feature maps, classes
caption            of an image and its caption: what each word looked at
attention_groups   the maps of an inspection, and the tokens beside them
"""

from typing import TYPE_CHECKING

from ... import lazy

if TYPE_CHECKING:
    from .attention_groups import Group as Group
    from .caption import CaptionInspection as CaptionInspection
    from .caption import captions_images as captions_images
    from .caption import checked_image as checked_image
    from .caption import inspect_caption as inspect_caption
    from .caption import own_caption as own_caption
    from .image import ImageInspection as ImageInspection
    from .image import inspect_image as inspect_image
    from .image import reads_images as reads_images
    from .text import Inspection as Inspection
    from .text import inspect_text as inspect_text
    from .text import inspect_translation as inspect_translation

lazy.public_names(__name__)
