"""Chat templates come with a checkpoint, so none may hang, exhaust memory or reach outside its sandbox."""

import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from clearhead.errors import TextError
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
    "a wrong type": "{{ 5 | wordwrap }}",
}
LONG = "{% set b = 'a' * 60000 %}"


def repeated(step: str, start: str = "'a' * 1000") -> str:
    """A template that changes a value 60 times."""
    return f"{{% set ns = namespace(s={start}) %}}{{% for i in range(60) %}}{{% set ns.s = {step} %}}{{% endfor %}}ok"


LARGE = {  # what a template may build, and the reason for which it is refused
    "texts added": (repeated("ns.s + ns.s"), "a text of more than"),
    "texts joined": (repeated("ns.s ~ ns.s"), "texts of more than"),
    "replacements": (repeated("ns.s | replace('a', 'a' * 50)"), "a text of more than"),
    "one replacement": (LONG + "{{ b.replace('', b) | length }}", "a text of more than"),
    "replacements of items": (LONG + "{{ b | map('replace', 'a', b) | list | length }}", "texts of more than"),
    "a join": (LONG + "{{ b | list | join(b) | length }}", "a text of more than"),
    "a join of a generator": (LONG + "{{ b | map('upper') | join(b) | length }}", "a text of more than"),
    "a join by a method": (LONG + "{{ b.join(b) | length }}", "a text of more than"),
    "tabs": ("{{ ('\t' * 60000).expandtabs(60000) | length }}", "a text of more than"),
    "a translation": (LONG + "{{ b.translate({97: b}) | length }}", "a text of more than"),
    "indents": ("{{ ('a\n' * 60000) | indent(60000) | length }}", "a text of more than"),
    "indents by a text": (LONG + "{{ ('a\n' * 60000) | indent(b) | length }}", "a text of more than"),
    "wraps": (LONG + "{{ b | wordwrap(1, true, b) | length }}", "a text of more than"),
    "indents of JSON": ("{{ ([1] * 60000) | tojson(indent=60000) | length }}", "a text of more than"),
    "separators of JSON": (LONG + "{{ ([1] * 600) | tojson(separators=(b, b)) | length }}", "a text of more than"),
    "a list of texts": (LONG + "{{ ([b] * 60000) | string | length }}", "too many steps|texts of more than"),
    "a call block": (
        "{% macro f() %}{{ caller() }}{{ caller() }}{% endmacro %}"
        + "{% call f() %}" * 30 + "a" * 1000 + "{% endcall %}" * 30, "texts of more than",
    ),
    "a macro": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% else %}{{ 'a' * 9000 }}{% endif %}{% endmacro %}"
        "{{ f(60) }}", "a text of more than|texts of more than",
    ),
    "a block of set": (
        "{% set x %}{% for i in range(9000) %}" + "a" * 60000 + "{% endfor %}{% endset %}ok", "texts of more than"
    ),
    "a number": (repeated("ns.s * ns.s", "3"), "a number of more than"),
    "a power": ("{% set x = 65535 ** 30000 %}{% set y = x // (x // 7) %}", "a number of more than"),
    "lists in lists": (repeated("[ns.s, ns.s]", "1"), "too many steps"),
    "dicts in dicts": (repeated("dict(a=ns.s, b=ns.s)"), "too many steps"),
    "namespaces in namespaces": (repeated("namespace(a=ns.s, b=ns.s)") + "{{ ns.s }}", "too many steps"),
    "lists added": (repeated("ns.s + ns.s", "[1]"), "too many steps"),
    "a sum of lists": ("{{ ([[1]] * 60000) | sum(start=[]) | length }}", "adds up what is no number"),
    "loops in loops": ("{% for a in range(999) %}{% for b in range(999) %}{% endfor %}{% endfor %}", "too many steps"),
    "loops without iterations": (
        "{% for a in range(9999) %}{% for b in range(9999) if false %}{% endfor %}{% endfor %}", "too many steps"
    ),
    "a tree of loops": (
        "{% for x in [1, 1] recursive %}{% if loop.depth < 60 %}{{ loop([1, 1]) }}{% endif %}{% endfor %}",
        "too many steps",
    ),
    "a tree of macros": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}", "too many steps"
    ),
    "searches": (LONG + "{% for i in range(60000) %}{% if 'aab' in b %}{% endif %}{% endfor %}", "too many steps"),
    "selections": (
        "{% for i in range(9999) %}{% set x = range(9999) | select('none') | list %}{% endfor %}", "too many steps"
    ),
    "slices": (
        "{% set l = [1] * 9999 %}{% for i in range(9999) %}{% set x = l[1:] %}{% endfor %}", "too many steps"
    ),
    "a cycler": (
        "{% set c = cycler(1, 2) %}{% for i in range(9999) %}{% for j in range(9999) %}{{ c.next() }}{% endfor %}"
        "{% endfor %}", "too many steps",
    ),
    "a path": ("{{ [1] | map(attribute='a.' * 9999) | list }}", "too many parts"),
    "a slow filter": (LONG + "{% for i in range(9999) %}{% set x = b | wordwrap(9) %}{% endfor %}", "too many steps"),
    "an encoding": ("{{ ('a' * 60000).encode('punycode') }}", "encode is not allowed"),
    "printing": ("{{ ([1] * 60000) | pprint | length }}", "pprint is not allowed"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_quickly(name):
    start = time.monotonic()
    with pytest.raises(ValueError, match="the chat template cannot render this conversation"):
        render(HOSTILE[name], MESSAGES, {})
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("name", LARGE)
def test_what_a_template_builds_is_bounded(name, monkeypatch):
    template, reason = LARGE[name]
    if reason == "too many steps":
        monkeypatch.setattr(chat_template, "STEPS", 1 << 15)
    with pytest.raises(TextError, match=reason):
        render(template, MESSAGES, {})


def test_a_template_that_would_take_long_to_compile_is_refused():
    most = chat_template.SOURCE
    assert render("a" * most, MESSAGES, {}) == "a" * most
    with pytest.raises(TextError, match=f"it has {most + 1:,} characters: expected at most {most:,}"):
        render("a" * (most + 1), MESSAGES, {})


def test_a_refused_template_has_held_little_memory():
    tracemalloc.start()
    for name in ("texts joined", "indents"):
        with pytest.raises(TextError):
            render(LARGE[name][0], MESSAGES, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 << 20


def test_a_long_conversation_is_no_hostile_template():
    messages = [{"role": "user", "content": "a b " * 500} for _ in range(200)]
    template = (
        "{% set ns = namespace(out='') %}{% for m in messages %}{% if m['role'] == messages[1:][0]['role'] %}"
        "{% set ns.out = ns.out + m['content'] | trim %}{% endif %}{% endfor %}{{ ns.out }}"
    )
    assert render(template, messages, {}) == ("a b " * 500).strip() * 200


def test_templates_in_threads_count_for_themselves(monkeypatch):
    template = "{% for i in range(99) %}{% for j in range(40) %}{% endfor %}{% endfor %}ok"
    monkeypatch.setattr(chat_template, "STEPS", 12000)
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(lambda _: render(template, MESSAGES, {}), range(8))] == ["ok"] * 8


def test_a_long_message_of_a_template_is_cut():
    with pytest.raises(TextError) as caught:
        render("{{ raise_exception('a' * 60000) }}", MESSAGES, {})
    assert len(str(caught.value)) < 2000


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


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + message['role'] + '\n' +"
    " message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA_2 = (
    "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = "
    "messages[0]['content'] %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
    "{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}{% if loop.index0 == 0 and system_message != false %}"
    "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}"
    "{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
QWEN_3 = (
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}"
    "{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if ns.multi_step_tool and message.role == 'user' and message.content is string and not("
    "message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}"
    "{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- set content = message.content if message.content is string else '' %}"
    "{%- if message.role == 'assistant' %}{%- set reasoning = '' %}{%- if '</think>' in content %}"
    "{%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning)) %}"
    "{{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' ~ message.role ~ '\n' ~ content ~ '<|im_end|>' + '\n' }}{%- endif %}{%- endfor %}"
)
WORDS_OF_MANY = (  # macros, filters and blocks as templates with tools have them
    "{%- macro show(value, level=0) -%}{%- if value is mapping -%}{{ '{' }}{%- for key, x in value | dictsort -%}"
    "{{ key }}:{{ show(x, level + 1) }}{%- if not loop.last %}, {% endif -%}{%- endfor -%}{{ '}' }}"
    "{%- else -%}{{ value | tojson }}{%- endif -%}{%- endmacro -%}"
    "{%- for m in messages if m.role != 'system' -%}{{ show(m) }}{% endfor %}|"
    "{{ messages | map(attribute='role') | unique | join(', ') }}|{{ messages | selectattr('role', 'eq', 'user') | list"
    " | length }}|{% filter upper %}a{{ messages[0].content | replace('e', '3') | indent(2) }}{% endfilter %}|"
    "{% set x %}{{ [1, 2.5, none] + [true] }}{% endset %}{{ x }}|{{ messages[0].items() | list }}|{{ (1, 'a') }}|"
    "{{ messages | groupby('role') | map('first') | join('/') }}|{{ 'a' ~ 1 ~ none ~ undefined_name }}|"
    "{% for k in 'ab' recursive %}{{ loop.index }}{{ loop('c') if k == 'a' }}{% endfor %}|{{ 7 // 2 ** 2 - 3 / 4 }}|"
    "{{ messages[0].content.replace('h', 'j', 1).title() }}|{{ ', '.join(['a', 'b']) }}|{{ [3, 1] | sort | sum }}"
)


@pytest.mark.parametrize("template", [CHATML, LLAMA_2, QWEN_3, WORDS_OF_MANY])
def test_templates_of_checkpoints_render_as_in_transformers(template):
    messages = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello\nthere "},
        {"role": "assistant", "content": "<think>\nwell\n</think>\n\nHi!"}, {"role": "user", "content": "<b> é"},
    ]  # fmt: skip
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    rendered = pytest.importorskip("transformers.utils.chat_template_utils").render_jinja_template
    expected = rendered(conversations=[messages], chat_template=template, add_generation_prompt=True, **names)[0]
    assert [render(template, messages, names)] == expected


def test_the_name_of_the_unknown_token_is_given():
    assert token_names(None, Words(["a"]))["unk_token"] == "<unk>"
