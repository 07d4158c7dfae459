"""Looking inside a model: watch and edit activations, lazy attention maps, exact statistics.

watch       record activations of any torch model          edit       change them
Tape        what a watch recorded, by address              silence, scale, patch   ready-made edits of heads
attention   the maps of one text, with its tokens          AttentionMap            the weights, computed on request
head_effects   the change of a text's probability when each head is silenced
saliency    which pixels or tokens an answer depends on    perturbation_curves     deletion and insertion of them
rollout, gradient_rollout   attention through all layers    cls_maps    what the class token attends to, per head
attention_view   a map without its sinks, or weighted by the norms of the values
statistics  any of MEANING; entropy, received and distance of all watched layers

cka         similarity of layers, models, checkpoints      cka_of_features   the same of matrices of features
receptive_fields   what a unit depends on, by depth        features          a vector per input, of any layer
project     PCA and t-SNE of vectors                       patch_colours     PCA of patches as red, green and blue
neighbours  the nearest vectors by cosine                  word_neighbours   the nearest words; king - man + woman
filters, feature_maps   weights and activations as pictures
position_similarity     each position embedding with every other

Causes:
patching            which layer and position carries the difference between two inputs
logit_attribution   what every head, MLP and embedding adds to one logit
logit_lens          the likeliest answers after each layer
attention_effects   the weight of each key against the effect of its removal
word_attention      how often a head attends from one word to another, in sentences of read_sentences
linear_baseline     a linear model with readable weights; fit_words, fit_pixels
"""

from typing import TYPE_CHECKING

from .. import lazy

if TYPE_CHECKING:
    from ..errors import Notice as Notice
    from ..models.text_events import new_text as new_text
    from .capture.edits import patch as patch
    from .capture.edits import scale as scale
    from .capture.edits import silence as silence
    from .capture.tape import Tape as Tape
    from .causes.attention_effects import AttentionEffects as AttentionEffects
    from .causes.attention_effects import attention_effects as attention_effects
    from .causes.head_effects import HeadEffects as HeadEffects
    from .causes.head_effects import head_effects as head_effects
    from .causes.logit_attribution import LogitAttribution as LogitAttribution
    from .causes.logit_attribution import LogitPart as LogitPart
    from .causes.logit_attribution import logit_attribution as logit_attribution
    from .causes.logit_lens import LogitLens as LogitLens
    from .causes.logit_lens import logit_lens as logit_lens
    from .causes.patching import Patching as Patching
    from .causes.patching import patching as patching
    from .examples.linear_models import LinearModel as LinearModel
    from .examples.linear_models import fit_pixels as fit_pixels
    from .examples.linear_models import fit_words as fit_words
    from .examples.linear_models import linear_baseline as linear_baseline
    from .examples.word_attention import Sentence as Sentence
    from .examples.word_attention import WordAttention as WordAttention
    from .examples.word_attention import read_sentences as read_sentences
    from .examples.word_attention import word_attention as word_attention
    from .maps.attention_map import AttentionMap as AttentionMap
    from .maps.cls_maps import ClsMaps as ClsMaps
    from .maps.cls_maps import cls_maps as cls_maps
    from .maps.rollout import gradient_rollout as gradient_rollout
    from .maps.rollout import rollout as rollout
    from .maps.sinks import AttentionView as AttentionView
    from .maps.sinks import attention_view as attention_view
    from .maps.statistics import MEANING as MEANING
    from .maps.statistics import distance as distance
    from .maps.statistics import entropy as entropy
    from .maps.statistics import received as received
    from .maps.statistics import statistics as statistics
    from .maps.text_attention import TextAttention as TextAttention
    from .maps.text_attention import attention as attention
    from .representation.cka import Similarity as Similarity
    from .representation.cka import cka as cka
    from .representation.cka import cka_of_features as cka_of_features
    from .representation.features import features as features
    from .representation.fields import Fields as Fields
    from .representation.fields import receptive_fields as receptive_fields
    from .representation.pictures import PatchColours as PatchColours
    from .representation.pictures import PictureGrid as PictureGrid
    from .representation.pictures import PositionSimilarity as PositionSimilarity
    from .representation.pictures import feature_maps as feature_maps
    from .representation.pictures import filters as filters
    from .representation.pictures import patch_colours as patch_colours
    from .representation.pictures import position_similarity as position_similarity
    from .representation.projection import Projection as Projection
    from .representation.projection import neighbours as neighbours
    from .representation.projection import project as project
    from .representation.projection import word_neighbours as word_neighbours
    from .saliency_methods.perturbation import PerturbationCurves as PerturbationCurves
    from .saliency_methods.perturbation import perturbation_curves as perturbation_curves
    from .saliency_methods.saliency import SALIENCY_METHODS as SALIENCY_METHODS
    from .saliency_methods.saliency import Saliency as Saliency
    from .saliency_methods.saliency import saliency as saliency
    from .watch import edit as edit
    from .watch import watch as watch

lazy.public_names(__name__)
