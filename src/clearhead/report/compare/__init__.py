"""compare: two models side by side, in numbers and as one offline HTML report.

comparison     `compare`, and the Comparison that it returns
inputs         the images or texts that both are measured on
pair           two models with their inputs, and what a section is
questions      what a model is asked about a text
sections       what is measured: size, accuracy, speed, CKA, attention distance, fields, colours, saliency, lens
"""

from typing import TYPE_CHECKING

from ... import lazy

if TYPE_CHECKING:
    from .comparison import Comparison as Comparison
    from .comparison import check_report as check_report
    from .comparison import compare as compare

lazy.public_names(__name__)
