"""Equal inputs of a chat template give equal texts in every process, on every day: otherwise those of transformers."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from moerge.documents.chat_templates import DATE, Renderer, TemplateRefusal

TALK: Any = [{"role": "user", "content": " Why? ", "tags": ["a", "b"]}, {"role": "assistant", "content": "So."}]
DATED = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}"
CLOCK = "{{ strftime_now('%Y-%m-%d %H:%M:%S.%f %s %A %j %Z') }}"
CHANCE = (
    "{{ range(9999) | random }}",
    "{{ lipsum() }}",
    "{{ messages | map(attribute='role') | list | random }}{{ 'abcdef' | random }}",
)
ADDRESSES = (
    "{{ lipsum }}",
    "{{ raise_exception }}",
    "{{ dict }}",
    "{{ messages[0].items }}",
    "{{ messages[0]['content'].strip }}",
    "{{ messages[0].content | attr('upper') }}",
    "{{ '{0.items}'.format(messages[0]) }}",
    "{{ messages | map(attribute='role') }}",
    "{{ messages | reverse }}",
    "{{ cycler(1, 2) }}",
    "{{ joiner() }}",
    "{% block a %}{% endblock %}{{ self.a }}",
    "{{ '' ~ range }}",
    "{{ range | string | length }}",
    "{{ [[range]] }}",
    "{{ namespace(a=range) }}",
    "{{ '%s' % [range] }}",
    "{{ '{}'.format(range) }}",
    "{{ range | pprint }}",
    "{{ messages | map('reverse') | list }}",
)
SOUND = (
    "{% for m in messages | reverse %}{{ loop.index }}/{{ loop.length }} {{ m.role | upper }}{{ loop }}{% endfor %}",
    "{{ messages | map(attribute='content') | map('trim') | join(', ') }}{{ messages | tojson(indent=2) }}",
    "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% endfor %}{{ messages[0].keys() }}",
    "{{ messages[0] | items | list }}{{ messages | groupby('role') }}{{ messages[0].values() }}",
    "{% set n = namespace(a=1) %}{% for m in messages %}{% set n.a = n.a + loop.index0 %}{% endfor %}{{ n.a }}{{ n }}",
    "{% macro f(x) %}<{{ x }}{{ caller() if caller }}>{% endmacro %}{{ f }}{{ f(2) }}{% call f(3) %}in{% endcall %}",
    "{% set c = cycler('a', 'b') %}{% set j = joiner('-') %}{% for _ in range(3) %}{{ j() }}{{ c.next() }}{% endfor %}",
    "{{ messages | selectattr('role', 'eq', 'user') | first }}{{ range(3) }}{{ cycler }}",
    "{% if messages | select('none') %}always{% endif %}{{ range is callable }}{{ messages | select is iterable }}",
    "{{ '{0} {1[role]} {x:>3}'.format(1, messages[0], x='é') }}{{ 'a%s' % 2 }}{{ 2 ** 0.5 }}{{ none }}{{ nothing }}",
    "{{ messages[0].content.strip().split('y') }}{{ messages[0]['tags'] | batch(1) | list }}{{ self }}",
    "{% generation %}{{ messages[1].content }}{% endgeneration %}{{ dict(a=1) }}{{ dict.fromkeys(['a'], 1) }}",
)


@pytest.fixture(scope="module")
def renderers() -> list[Renderer]:
    """Two processes with other seeds of hashes and time zones, started one after the other."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        for seed, zone in (("1", "Asia/Tokyo"), ("2", "America/Lima")):
            patch.setenv("PYTHONHASHSEED", seed)
            patch.setenv("TZ", zone)
            made.append(Renderer())
            made[-1].text("", TALK)
    return made


def texts(renderers: list[Renderer], template: str) -> list[str]:
    return [renderer.text(template, TALK) for renderer in renderers for _ in range(2)]


@pytest.mark.parametrize("template", [CLOCK, *CHANCE])
def test_clock_and_chance_are_the_same_in_every_process(renderers: list[Renderer], template: str) -> None:
    assert len(set(texts(renderers, template))) == 1


def test_date_is_the_fixed_one(renderers: list[Renderer]) -> None:
    assert texts(renderers, DATED)[0] == f"{DATE:%d %b %Y}" == "26 Jul 2024"
    assert texts(renderers, CLOCK)[0].startswith("2024-07-26 00:00:00.000000 1721952000 Friday")


@pytest.mark.parametrize("template", ADDRESSES)
def test_an_address_is_an_error_of_the_template(renderers: list[Renderer], template: str) -> None:
    with pytest.raises(TemplateRefusal, match="has an address"):
        renderers[0].text(template, TALK)


@pytest.mark.parametrize("template", SOUND)
def test_other_templates_give_the_text_of_transformers(renderers: list[Renderer], template: str) -> None:
    own: Any = render_jinja_template([TALK], chat_template=template)
    assert set(texts(renderers, template)) == {own[0][0]}


@pytest.mark.parametrize(
    "inner", ["(messages | map('upper')).gi_frame", "lipsum.__globals__", "range._value", "messages[0].get.__self__"]
)
def test_guarded_values_show_nothing_that_the_sandbox_hides(renderers: list[Renderer], inner: str) -> None:
    assert texts(renderers, f"{{{{ {inner} is undefined }}}}")[0] == "True"


@pytest.mark.parametrize(
    "template", ["{{ (messages[0].keys() - ['a']) | list }}", "{{ (messages[0].keys() - []) | first }}"]
)
def test_a_set_is_an_error_of_the_template(renderers: list[Renderer], template: str) -> None:
    """Its order follows the seed of hashes."""
    with pytest.raises(TemplateRefusal, match="another order in each process"):
        renderers[0].text(template, TALK)


def test_an_error_whose_message_is_an_address_leaves_the_process(renderers: list[Renderer]) -> None:
    with pytest.raises(TemplateRefusal, match="TemplateError"):
        renderers[0].text("{{ raise_exception(range) }}", TALK)
    assert renderers[0].text("{{ 3 - 1 }}{{ 2.5 - 1 }}", TALK) == "21.5"
