"""Recipes: every mistake is reported with its place, before anything is built."""

import pytest
from trainings import GAN, STUDENT, go, recipe

from clearhead import config
from clearhead.config import ConfigError
from clearhead.data import make_data
from clearhead.training.optim.optimisers import OptimConfig
from clearhead.training.optim.schedule import ScheduleConfig
from clearhead.training.recipe import MAY_CHANGE, Recipe, RunConfig, named_options, read_recipe
from clearhead.training.setup import resolve
from clearhead.training.train import train

pytestmark = pytest.mark.usefixtures("own_models")

FILE = """\
steps = 10
seed = 1

[data]
name = "reverse"
symbols = 5

[model]
name = "gpt"
width = 12
heads = 3

[optim]
lr = 1e-3

[run]
log_every = 1
"""


def write(folder, text):
    path = folder / "recipe.toml"
    path.write_text(text)
    return path


def model_config(recipe):
    """The config of a recipe's model, with the sizes that its data gives."""
    name, options = named_options(recipe.data, "data")
    data = make_data(name, config.dump(options), seed=0)
    return resolve(recipe, data, {}).players["model"].config


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("seed = 1", "sead = 1", 2, r"unknown key sead; the nearest (is|are) .*seed"),
        ("lr = 1e-3", "learning = 1e-3", 14, r"unknown key optim\.learning"),
        ("log_every = 1", "log_evry = 1", 17, r"unknown key run\.log_evry; the nearest is log_every"),
        ("symbols = 5", "symbol = 5", 6, r"unknown key data\.symbol; the nearest is symbols"),
        ("width = 12", "widht = 12", 10, r"unknown key model\.widht; the nearest is width"),
        ("lr = 1e-3", "heads = 3", 14, r"unknown key optim\.heads"),
        ("steps = 10", 'steps = "ten"', 1, r"steps = 'ten': expected a whole number, got text"),
        ("steps = 10", "steps = 1.5", 1, r"steps = 1\.5: expected a whole number, got 1\.5$"),
        ("steps = 10", "steps = true", 1, r"steps = True: expected a whole number, got true$"),
        ("lr = 1e-3", 'lr = "fast"', 14, r"optim\.lr = 'fast': expected a number, got text"),
        ("width = 12", "width = [12]", 10, r"model\.width = \[12\]: expected a whole number"),
        ("symbols = 5", "symbols = 0", 6, r"data: symbols=0: expected 1 or more"),
        ("heads = 3", "heads = 5", 10, r"model: width=12 does not divide into heads=5"),
        ("steps = 10", "steps = 0", 1, r"steps=0: expected 1 or more"),
        ("lr = 1e-3", "lr = 0.0", 14, r"optim: lr=0\.0: expected a number above 0"),
        ("lr = 1e-3", 'name = "adam"', 14, r"optim: name='adam': expected one of adamw, sgd, muon"),
        ("seed = 1", "smoothing = 0.1", 2, r"unknown key smoothing: it is an option of the objective; write it below"),
        ("seed = 1", "accumulate = 0", 2, r"accumulate=0: expected 1 or more"),
        ("seed = 1", 'precision = "float16"', 2, r"precision='float16': expected one of float32, tf32, bfloat16"),
        ("seed = 1", 'initial = "zeros"', 2, r"initial='zeros': expected one of default, xavier, kaiming, normal"),
        ("seed = 1", 'spread = "dpp"', 2, r"spread='dpp': expected one of ddp, fsdp"),
        ("log_every = 1", "patience = 2", 17, r"run: patience counts validations: expected valid_every"),
        ("log_every = 1", "keep = 0", 17, r"run: keep=0: expected 1 or more"),
        ("log_every = 1", "save_every = -1", 17, r"run: save_every=-1: expected 0 or more"),
        ('"reverse"', '"revers"', 5, r"data\.name = 'revers': expected one of .*; the nearest (is|are) reverse"),
        ('"gpt"', '"gtp"', 9, r"model\.name = 'gtp': expected one of .*; the nearest is gpt"),
        ('name = "gpt"\n', "", 8, r"model has no name: expected one of gpt"),
        ('name = "gpt"', "name = 3", 9, r"model\.name = 3: expected one of gpt"),
        ("[optim]", "[optimiser]", 13, r"unknown key optimiser"),
        ("steps = 10\n", "", 1, r"missing steps \(a whole number\)"),
        ("steps = 10", "steps = = 10", 1, r"Invalid value"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_with_file_and_line(tmp_path, old, new, line, message):
    assert FILE.count(old) == 1
    path = write(tmp_path, FILE.replace(old, new))
    with pytest.raises(ConfigError, match=message) as error:
        read_recipe(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optim.lrr=1", r"unknown key optim\.lrr; the nearest is lr"),
        ("model.positions=rotery", r"model\.positions = 'rotery': expected one of .*; the nearest is rotary"),
        ("data.length=many", r"data\.length = 'many': expected a whole number or a list"),
        ("data.name=nothing", r"data\.name = 'nothing': expected one of"),
        ("run.keep=0", r"run: keep=0"),
        ("steps=ten", r"steps = 'ten': expected a whole number"),
        ("steps", r"'steps': expected name=value"),
        ("seed.x=1", r"seed\.x=1: seed = 1 is not a table"),
        ("players.modl.optim.lr=1", r"players\.modl: a recipe without objective\.name has model; .* model"),
        ("players.modl.foo=1", r"unknown key players\.modl\.foo; the known keys are model, pretrained, optim, sched"),
        ("players.model.optim.lrr=1", r"unknown key players\.model\.optim\.lrr; the nearest is lr"),
        ("players.model.schedule.warmup=-1", r"players\.model\.schedule: warmup=-1: expected 0 or more"),
    ],
)
def test_mistakes_in_overrides_are_reported_as_on_the_command_line(tmp_path, word, message):
    path = write(tmp_path, FILE)
    for source in (path, dict(config.load(path))):
        with pytest.raises(ConfigError, match=f"^on the command line: {message}"):
            read_recipe(source, word)


def test_mistakes_in_the_sections_of_a_player_are_reported_with_file_and_line(tmp_path):
    text = FILE + "\n[players.model]\nschedule = {final = 0.5}\noptim = {lrr = 1e-3}\n"
    with pytest.raises(ConfigError) as error:
        read_recipe(write(tmp_path, text))
    assert str(error.value).endswith("recipe.toml:21: unknown key players.model.optim.lrr; the nearest is lr")
    with pytest.raises(ConfigError, match=r"recipe\.toml:20: players\.model\.schedule: final=2\.0: expected a share"):
        read_recipe(write(tmp_path, text.replace("0.5", "2.0").replace("lrr", "lr")))


# Objectives with several players

PLAYERS = """\
steps = 3

[data]
name = "gaussians"

[objective]
name = "gan"

[players.generator]
model = {name = "mlp", hidden = 8}

"""
DISCRIMINATOR = """\
[players.discriminator]
model = {name = "mlp", hidden = 8}
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (DISCRIMINATOR, "", 9, r"players\.discriminator\.model is missing: expected a name, one of gpt"),
        (DISCRIMINATOR, "[players.discriminator]\noptim = {lr = 1.0}\n", 12,
         r"players\.discriminator\.model is missing: expected a name, one of gpt"),
        ("[data]", "[model]\nname = \"mlp\"\n[data]", 3, r"model: the players of this objective are generator, "
         r"discriminator: expected only players\.generator\.model, players\.discriminator\.model$"),
        ("steps = 3", "steps = 3\npretrained = \"runs/a\"", 2, r"pretrained: the players .* expected only "
         r"players\.generator\.pretrained, players\.discriminator\.pretrained$"),
    ],
)  # fmt: skip
def test_sections_that_no_player_or_every_player_would_use_are_refused(tmp_path, old, new, line, message):
    text = PLAYERS + DISCRIMINATOR
    assert text.count(old) == 1
    read_recipe(write(tmp_path, text))
    path = write(tmp_path, text.replace(old, new))
    with pytest.raises(ConfigError, match=message) as error:
        read_recipe(path)
    assert str(error.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("word", ["model.hidden=32", "optim.lr=3", "pretrained=runs/a"])
def test_a_section_for_an_averaged_player_is_refused(word):
    message = (
        r"^on the command line: players\.teacher: the teacher is a moving average of the student, and has its model"
    )
    with pytest.raises(ConfigError, match=message):
        read_recipe(STUDENT, f"players.teacher.{word}")


def test_a_model_that_is_given_twice_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model: it is given twice: expected only players\.model\.model$"):
        read_recipe(write(tmp_path, FILE), "players.model.model.name=gpt")


def test_a_player_may_start_from_pretrained_weights_and_learn_its_head():
    words = ["players.generator.pretrained=runs/a", "players.discriminator.pretrained=runs/b"]
    assert read_recipe(GAN, "learn=head", *words).learn == "head"


def test_overrides_replace_the_values_of_the_file(tmp_path):
    changed = read_recipe(
        write(tmp_path, FILE), "optim.lr=1e-2", "steps=3", "model.width=24", "schedule.warmup=2", "seed=7"
    )
    assert (changed.optim.lr, changed.steps, changed.seed, changed.schedule.warmup) == (1e-2, 3, 7, 2)
    assert model_config(changed).width == 24
    assert model_config(changed).heads == 3


def test_sizes_come_from_the_data_and_may_not_contradict_it(tmp_path):
    assert model_config(read_recipe(write(tmp_path, FILE))).vocab == 6
    path = write(tmp_path, FILE.replace("width = 12", "width = 12\nvocab = 9"))
    with pytest.raises(ConfigError) as error:
        train(path, out=tmp_path / "run", device="cpu")
    assert str(error.value) == f"{path}:11: model.vocab = 9: the data has 6"
    with pytest.raises(ConfigError, match=r"^on the command line: model\.vocab = 5: the data has 6"):
        train(write(tmp_path, FILE), "model.vocab=5", out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    agreed = FILE.replace("width = 12", "width = 12\nvocab = 6\ncontext = 20")
    assert go(write(tmp_path, agreed), tmp_path / "run", "steps=1").finished


def test_a_data_folder_that_does_not_exist_is_refused(tmp_path):
    for table in (recipe(), recipe(data={"name": "shakespeare"})):
        with pytest.raises(FileNotFoundError, match=r"data='.*nope': there is no such folder"):
            train(table, out=tmp_path / "run", data=tmp_path / "nope", device="cpu")


def test_a_written_recipe_is_read_back_the_same(tmp_path):
    original = read_recipe(recipe(optim__clip=0.0, run__patience=1, run__valid_every=2, data__valid_length=3))
    for name in ("a.toml", "a.json"):
        config.write(original, tmp_path / name)
        again = read_recipe(tmp_path / name)
        assert config.dump(again) == config.dump(original)
    assert config.dump(read_recipe(original)) == config.dump(original)
    assert config.dump(read_recipe(config.load(tmp_path / "a.toml"))) == config.dump(original)


def test_a_loaded_table_keeps_its_line_numbers(tmp_path):
    path = write(tmp_path, FILE.replace("lr = 1e-3", "rate = 1e-3"))
    with pytest.raises(ConfigError, match=rf"^{path}:14: unknown key optim\.rate"):
        read_recipe(config.load(path))


def test_reading_a_recipe_does_not_change_its_table():
    table = recipe()
    read_recipe(table, "optim.lr=1", "model.width=24")
    assert table == recipe()


def test_every_key_that_may_change_is_a_key_of_recipes():
    sections = {"schedule": ScheduleConfig, "optim": OptimConfig}
    for word in MAY_CHANGE:
        section, _, key = word.rpartition(".")
        assert key in sections.get(section, Recipe).__dataclass_fields__
    assert RunConfig() == RunConfig(log_every=10)


def test_a_missing_file_is_reported_with_the_nearest_name(tmp_path):
    write(tmp_path, FILE)
    with pytest.raises(ConfigError, match=r"recipes\.toml: there is no such file; the nearest is .*recipe\.toml"):
        read_recipe(tmp_path / "recipes.toml")
