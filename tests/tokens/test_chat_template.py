"""Chat templates come with a checkpoint, so none may hang, exhaust memory or reach outside its sandbox."""

import time

import pytest

from clearhead.tokens import Words, chat_template
from clearhead.tokens.chat_template import render, token_names

MESSAGES = [{"role": "user", "content": "hello"}]
HOSTILE = {
    "a huge repetition": "{{ 'a' * 10**10 }}",
    "a huge repetition, in steps": "{% set x = 'a' * 60000 %}{{ x * 60000 }}",
    "a huge power": "{{ 9 ** 9 ** 9 }}",
    "a huge power that is not shown": "{% set x = 10 ** 100000000 %}",
    "padding": "{{ 'a'.center(10**10) }}",
    "padding, by a filter": "{{ 'a' | center(10000000000) }}",
    "padding, by a format": "{{ '%10000000000s' % 'a' }}",
    "padding, by the format method": "{{ '{:10000000000}'.format('a') }}",
    "padding, by the format filter": "{{ '%10000000000s' | format('a') }}",
    "a long loop": "{% for i in range(10**10) %}a{% endfor %}",
    "loops in loops": "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'a' * 999 }}{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "Python's insides": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "a number that is no number": "{{ 1 / 0 }}",
    "a missing message": "{{ messages[7].content }}{{ messages[7]['content'] }}",
    "no template at all": "{% for %}",
    "an overflow": "{{ 2.0 ** 100000 }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_quickly(name):
    start = time.monotonic()
    with pytest.raises(ValueError, match="the chat template cannot render this conversation"):
        render(HOSTILE[name], MESSAGES, {})
    assert time.monotonic() - start < 10


def test_a_template_that_writes_too_much_is_stopped_while_it_writes(monkeypatch):
    monkeypatch.setattr(chat_template, "LONGEST", 100)
    with pytest.raises(ValueError, match="it writes more than 100 characters"):
        render("{% for i in range(99) %}aaaa{% endfor %}", MESSAGES, {})


def test_usual_templates_render():
    template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' }}\n{{ m['content'] | trim }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}{{ '-' * 3 }}{{ 7 % 4 }}"
    )
    assert render(template, MESSAGES, {"eos_token": "</s>"}) == "<|user|>\nhello</s>\n<|assistant|>---3"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if tools is not none %}tools{% endif %}{{ tools is defined }}", "True"),
        ("{% if documents is none %}none{% endif %}", "none"),
        ("{{ messages[0].content | tojson }}", '"a<b> é &"'),
        ("{{ messages[0] | tojson(indent=1) }}", '{\n "role": "user",\n "content": "a<b> é &"\n}'),
    ],
)
def test_templates_find_what_they_find_in_transformers(template, expected):
    messages = [{"role": "user", "content": "a<b> é &"}]
    assert render(template, messages, {}) == expected
    rendered = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    assert rendered(conversations=[messages], chat_template=template)[0] == [expected]


def test_the_name_of_the_unknown_token_is_given():
    assert token_names(None, Words(["a"]))["unk_token"] == "<unk>"
