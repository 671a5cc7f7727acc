#!/usr/bin/env python3
"""Writes jinja_language.json: small templates and what Jinja2 makes of them, with the settings of Hugging Face transformers.
Needs Python's jinja2 (made with 3.1.6 on Python 3.11):
python3 tests/text/data/make_jinja_language.py > tests/text/data/jinja_language.json"""
import datetime
import json

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

NOW = datetime.datetime(2026, 11, 21, 12, 34, 56)

EXPRESSION_VARIABLES = json.loads(r"""{"s": "Hello World", "u": "Gr\u00fc\u00dfe, \u03a9\u03bc\u03ad\u03b3\u03b1 \u041f\u0440\u0438\u0432\u0435\u0442 \u00dftra\u00dfe \u01c6 \ufb01 \u65e5\u672c e\u0301 \u0130I", "l": [3, 1, 2], "d": {"b": 1, "a": [1, 2.5, null, true, "x'y"], "items": 9}, "n": null, "x": 5, "f": 2.5, "t": true, "ws": " \t\n\u00a0\u3000 abc \u2003", "msgs": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "n": 2}], "big": 18446744073709551615, "e": 1e+20, "sm": 1e-07, "nested": {"a": {"b": [1, {"c": "\u00e9\"\\\n\u0007"}]}}, "words": ["banana", "Apple", "cherry", "apple"], "empty": "", "el": [], "lines": "a\nb\r\nc\n\nd\u2028e\n"}""")
EXPRESSIONS = r"""s|upper
u|upper
u|lower
u|title
u|capitalize
u.title()
u.capitalize()
u.swapcase()
s[::-1]
u[2:5]
u[-3:]
u|length
s[1:8:3]
s[8:1:-2]
s[100:]
s[-100:3]
l[::-1]
l[5:]
l[-1]
l[7]
l[7] is defined
d.items()
d|items|list
d['items']
d.items is callable
d.b
d.zzz
d.zzz.y
zzz
zzz.y
zzz is defined
zzz + 1
zzz ~ 'a'
zzz|default('q')
n|default('q')
n|default('q', true)
''|d('z', boolean=true)
d
l
[1,2.0,1e16,1e15,1.5e-5,1e-4,0.1,123456789.123,1e300]
big
e
sm
-x
+x
-f
x/2
x//2
-x//2
x%3
-x%3
f%2
-f//1
2**10
2**-1
2**0.5
2**3**2
-2**2
10/5
7//2.0
1 + 2 * 3 - 4 / 2
1 ~ 2 ~ 'a'
'a' 'b' "c"
'%s is %d and %5.2f|%-5s|%05d|%x|%r|%%' % ('a', 3, 2.345, 'b', 42, 255, 'q')
'%(a)s' % {'a': 1}
'%s' % [1,2]
'%s' % 'x'
'%d' % 'x'
'%s %s' % ('a',)
'%s' % ('a','b')
'%+d % d %e %g %G' % (5, 5, 12345.678, 0.0001, 1e10)
'%c%c' % (65, 'b')
'{} {}'.format(1, 'b')
'{0} {1} {0}'.format('a','b')
'{a} {b:>5}|{c:<5}|{d:^5}|{e:*^7}'.format(a=1,b=2,c='x',d='y',e='z')
'{:05d} {:+.2f} {:,} {:x} {:#x} {:e} {:%}'.format(42, 3.14159, 1234567, 255, 255, 12345.6, 0.25)
'{0[a]} {0.b}'.format({'a':1,'b':2})
'{!r} {!s}'.format('a', 'b')
'{{}} {}'.format(1)
'{:{w}}'.format('a', w=4)
'{'.format()
'{}'.format()
l|sort
l|sort(reverse=true)
words|sort
words|sort(case_sensitive=true)
words|unique|list
words|unique|join(',')
words|join(', ')
words|map('upper')|list
words|map('replace','a','b')|join(' ')
words|select('in',['Apple'])|list
words|reject('equalto','apple')|list
msgs|map(attribute='role')|list
msgs|map(attribute='n', default=0)|list
msgs|selectattr('role','equalto','user')|list
msgs|selectattr('n')|list
msgs|rejectattr('n','defined')|list
msgs|groupby('role')|list
msgs|groupby('role')|map('first')|list
msgs|selectattr('role','equalto','user')|first
msgs|selectattr('role','==','user')|length
msgs|map(attribute='content')|join('|')
msgs[0].role
msgs[0]['role']
msgs.0.role
msgs|tojson
nested|tojson
nested|tojson(indent=2)
nested|tojson(ensure_ascii=true)
d|tojson(sort_keys=true)
d|tojson(separators=(',',':'))
d|tojson(indent=4, sort_keys=true)
d|tojson(true)
[]|tojson(indent=2)
{}|tojson(indent=2)
[[],{}]|tojson(indent=1)
{1:2, none:3, true:4, 1.5:6}|tojson
(1,2)|tojson
range(3)|tojson
u|tojson(ensure_ascii=True)
zzz|tojson
d.items()|tojson
d.keys()|list
d.values()|list
d.keys()
d.get('b')
d.get('zz')
d.get('zz', 5)
d.pop('b')
d.update({})
l.append(1)
l.index(2)
l.count(1)
l + [4]
l * 2
(1,) + (2,)
l + (1,)
'ab' * 3
'ab' * -1
3 * 'ab'
l|sum
l|min
l|max
[]|min
[]|first
[]|last
l|first
l|last
s|first
s|last
s|list
s|reverse
l|reverse|list
l|batch(2)|list
l|batch(2,'x')|list
range(10)|slice(3)|list
range(10)|slice(3,'z')|list
range(5)|list
range(1,10,3)|list
range(5,0,-2)|list
range(5)
range(1000001)
range(3)|length
dict(a=1,b=2)
dict([('a',1)])
dict({'a':1}, b=2)
{'a':1,'a':2}
{'x': l}.x[0]
1 == 1.0
1 == true
'a' < 'b'
'a' < 1
l < [4]
1 < 2 < 3
1 < 2 > 3
1 in l
'ell' in s
1 in s
'b' in d
'zz' not in d
not true
not l
t and x
n or 'd'
n and 1
x if t else 'no'
x if n
(x if n) is defined
x is number
x is string
d is mapping
l is sequence
s is sequence
d is sequence
range(3) is sequence
d.items() is sequence
l is iterable
x is iterable
x is odd
x is even
x is divisibleby 5
x is divisibleby(2)
x is eq 5
x is sameas 5
n is none
n is not none
t is true
t is false
t is boolean
t is integer
x is integer
f is float
'a' is lower
'A' is upper
x is in [5]
x is in([5])
x is not in [5]
x is gt 3
x is ge(5)
x is callable
range is callable
s.upper is callable
'upper' is filter
'odd' is test
ws.strip()
ws|trim
ws.lstrip()
ws.rstrip()
'xxhixx'.strip('x')
'xxhixx'|trim('x')
'aXbX'.split('X')
' a  b c '.split()
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'a,b'.split('')
'a,b,c'.partition(',')
'a,b,c'.rpartition(',')
'abc'.partition('z')
'abc'.rpartition('z')
lines.splitlines()
lines.splitlines(true)
s.replace('o','0')
s.replace('o','0',1)
'abc'.replace('','-')
'abc'.replace('','-',2)
s|replace('o','0')
s|replace('o','0',1)
123|replace('2','x')
s.find('o')
s.find('o', 5)
s.rfind('o')
s.find('zz')
u.find('м')
s.index('zz')
s.count('l')
s.count('')
s.startswith('He')
s.startswith(('x','H'))
s.endswith('ld')
s.startswith('World', 6)
s.isdigit()
'12'.isdigit()
'ab1'.isalnum()
'日本'.isalpha()
' '.isspace()
''.isascii()
'Ab Cd'.istitle()
'ab'.islower()
'abc'.center(10) ~ '|'
'abc'.center(8) ~ '|'
'abcd'.center(9,'*')
'abc'.ljust(6,'.')
'abc'.rjust(6)
'-42'.zfill(6)
'a\tb'.expandtabs(4)
'abc'.removeprefix('a')
'abc'.removesuffix('c')
','.join(['a','b'])
','.join('abc')
','.join([1])
'a-b c'|title
"it's (a) {b} <c>"|title
'foo bar'|capitalize
'FOO'.capitalize()
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent(2, blank=true)
'a\nb\n'|indent('>> ')
'a b  c'|wordcount
'42'|int
'42.7'|int
'x'|int
'x'|int(default=7)
'0x1f'|int(base=16)
'1_000'|int
' 12 '|int
3.99|int
-3.99|int
'3.5'|float
'x'|float
'inf'|float
5|float
x|string
f|string
n|string
t|string
l|string
2.5|round
3.5|round
2.567|round(2)
2.5|round(method='ceil')
2.567|round(1,'floor')
5|round
15|round(-1)
-5|abs
-2.5|abs
'<a&b>"\''|e
'<a>'|escape|upper
('<a>'|safe) + '<b>'
'<b>' + ('<a>'|safe)
('<a>'|safe) ~ '<b>'
s|length
n|length
x|length
s|count
d|length
'a'|center(5) ~ '|'
d|dictsort
{'b':1,'A':2}|dictsort
{'b':1,'A':2}|dictsort(true)
{'b':1,'A':2}|dictsort(by='value')
{'b':1,'A':2}|dictsort(reverse=true)
d|attr('b')
'%s-%s'|format('a','b')
'%(x)s'|format(x=1)
x|format
strftime_now('%d %b %Y %H:%M:%S %A %j')
raise_exception('boom')
namespace(a=1).a
namespace(a=1).b
s.foo
x.foo
n.foo
l.foo
s.__class__
d.__class__
s['upper']()
'a\x41\u00e9\101\n\q'
"a'b" ~ 'c"d'
["a'b", 'c"d', 'e\'f"g', 'tab\t', '\x00\x7f\xa0\u200b']
(1,)
()
(1,2)
1,2
[1,2,]
{'a':1,}
[none,true,false,1.0]
1_000
0x1F
0b101
0o17
1e3
1.5E-3
1if true else 2
loop
none
None
True
true
TRUE
'a' in ['a','b'] and 'c' not in 'ab'
l|select('odd')|list
l|select|list
n|select|list
n|list
none|map('upper')|list
x(1)
s()
zzz()
d.a[0]
d['a'][1]
d.a.2
d.a[-1]
d[1,2]
{(1,2):3}[1,2]
{[1]:2}
'a'|upper|lower
'a' is string and 'b' is string
not 'a' is string
1 + 1 is number
-1|abs
-l|first
l|map('string')|join
l|map('float')|list
'x'.join(l|map('string'))
foo|bar
x is foo
s|upper()
s|upper(1)
s|replace('a')
s.upper(1)
(l|map('string'))|length
(l|map('string'))[0]
(l|map('string')) is sequence
(l|map('string')) is iterable
l|map('string')|map('upper')|list|length
'abc'[0]
'abc'[5]
'abc'[5] is defined
u[1]
'é'|length
l[0:2] == [3,1]
'a'|d
'1,2'.split(',')|map('int')|sum
[[1,2],[3]]|sum(start=[])
'abc'|batch(2)|list
{'a':{'b':1}}|map('upper')|list
1 is eq 1.0
'a' ~ none ~ true ~ 1.0
'a' + 1
1 + 'a'
1 + none
5 is divisibleby 0
1/0
1//0
1%0
1.0/0
not
1 +
(1
'abc
foo bar
{{
[1,2
{'a'}
{'a':}
|upper
x|
x is
1.foo
1..foo
'a'.upper().lower().title()
words|map('first')|join
words|map('length')|max
words|sort(attribute=0)
msgs|sort(attribute='role')|map(attribute='role')|list
msgs|sort(attribute='role,content')|map(attribute='role')|list
msgs|map('items')|map('list')|list
msgs|map('tojson')|join(' ')
e|tojson
1e400
'nan'|float
[1,'a']|sort
[1,'a']|max
cycler('a','b').next()
cycler('a','b').current
joiner('|')()
9223372036854775807
'a' if false
('a' if false)|default('z')
"abc" | map("upper") | join("-")
'abc'|list|reverse|join
d|list
d|first
d|join
{'a':1} == {'a':1.0}
[1,[2]] == [1,[2]]
(1,2) == [1,2]
'ß'|upper
'ŉ'|upper
'İ'|lower|length
'ǆ'|title
'ﬁx'.title()
'A'.casefold()
'ⅷ'|upper
'abc' % [1,2]
'abc' % (1,2)
'abc' % d
zzz|int
zzz|float
zzz is sequence
[s|e, ('<'|safe)]
l|map('string')|reverse
('ab'|safe)|list
(s|e).partition('q')
words|reverse|first
f[1:]
(s|e)|first"""

TEMPLATE_VARIABLES = json.loads(r"""{"l": [3, 1, 2], "d": {"b": 1, "a": 2}, "s": "hey", "n": null, "t": true, "tree": [{"v": 1, "c": [{"v": 2, "c": []}, {"v": 3, "c": [{"v": 4, "c": []}]}]}, {"v": 5, "c": []}], "ctx": "C"}""")
TEMPLATES = r"""{% for x in l %}{{ x }}{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.depth0 }},{% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in d %}{{ k }}{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }} {% else %}zip{% endfor %}
{% for x in l if x > 9 %}{{ x }}{% else %}zip{% endfor %}
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% for x in l %}{{ loop.cycle('a','b') }}{% endfor %}
{% for x in [1,1,2] %}{{ loop.changed(x) }}{% endfor %}
{% for n in tree recursive %}[{{ n.v }}{{ loop.depth }}{{ loop(n.c) }}]{% endfor %}
{% for a in l %}{% for b in l %}{{ a }}{{ b }}{{ loop.index }} {% endfor %}{{ loop.index }}{% endfor %}
{% for c in 'héy' %}{{ c }}.{% endfor %}
{% for a, b in [[1,2],[3,4]] %}{{ a }}{{ b }}{% endfor %}
{% for a, (b, c) in [[1,[2,5]],[3,[4,6]]] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [[1,2,3]] %}{% endfor %}
{% for x in zzz %}a{% else %}empty{% endfor %}
{% for x in n %}a{% endfor %}
{% for x in 5 %}a{% endfor %}
{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a, b = [1, 2] %}{{ b }}{{ a }}
{% set a = 1, 2 %}{{ a }}
{% set x %}a{{ s }}b{% endset %}{{ x }}|{{ x|upper }}
{% set x | upper | replace('H','J') %}a{{ s }}b{% endset %}{{ x }}
{% if t %}{% set y = 1 %}{% endif %}{{ y }}
{% if n %}a{% elif t %}b{% else %}c{% endif %}
{% if n %}a{% elif not t %}b{% else %}c{% endif %}
{% with a = 1, b = s %}{{ a }}{{ b }}{% endwith %}{{ a }}
{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}
{% macro m(a, b=2, c='x') %}({{ a }},{{ b }},{{ c }}){% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='z') }}{{ m() }}{{ m(b=5, a=1) }}
{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}
{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}
{% macro m() %}{{ ctx }}{{ y }}{% endmacro %}{% set y = 7 %}{{ m() }}
{% macro m(n) %}{{ n }}{% if n > 0 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(3) }}
{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ s }}{% endcall %}
{% macro m(l) %}{% for x in l %}<{{ caller(x) }}>{% endfor %}{% endmacro %}{% call(x) m(l) %}{{ x }}!{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}
{% macro m() %}{% set z = 1 %}{% endmacro %}{{ m() }}{{ z }}
{% filter upper %}abc{{ s }}{% endfilter %}
{% filter replace('a','b')|upper %}abc{% endfilter %}
{% raw %}{{ x }}{% if %}{% endraw %}
{% raw -%}  x  {%- endraw %}
{% raw %}
a
{% endraw %}
b
{# comment #}a{#- c -#}  b
{% generation %}{{ s }}{% set g = 1 %}{% endgeneration %}{{ g }}
{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns['a'] }}
{% set d.x = 1 %}
{% set zz.x = 1 %}
{% include 'x' %}
{% extends 'x' %}
{% import 'x' as y %}
{% print 1 %}
{% foo %}
{% if t %}
{% endif %}{% endif %}
{% for x in l %}
{% break %}
{% set x = %}
{% set true = 1 %}
{% macro m(a=1, b) %}{% endmacro %}
{{ 1 }
{% if 1 }
{# foo
{% raw %} foo
{{ "a\nb" }}
{% set x = [1,2,3]|map('string') %}{{ x|list }}{{ x|list }}
{% set x = l|select('odd') %}{{ x|first }}{{ x|list }}
{% set x = l|map('string') %}{% for a in x %}{{ a }}{% endfor %}{% for a in x %}{{ a }}{% else %}gone{% endfor %}
{% if false %}{{ x|nofilter }}{% endif %}ok
{% if true %}{{ x|nofilter }}{% endif %}ok
{{ 'a' if true else (x|nofilter) }}
{{ x|nofilter if false else 'a' }}
{{ (x|nofilter) if false else 'a' }}
{{ [x|nofilter, x is notest] if false else 'a' }}
{{ (x is notest) if false else 'a' }}
{{ x|nofilter if true else 'a' }}
{{ (x is notest) if true else 'a' }}
{{ 'a' if x is notest else 'b' }}
{{ ('a' if true) ~ (x|nofilter) }}
{{ (x|nofilter) ~ ('a' if true) }}
{{ (x|nofilter if false else 'a') ~ (x|nofilter) }}
{{ x|nofilter if false else 'a' if false else 'b' }}
{% set a = x|nofilter if x is string else x %}{{ a }}
{% macro m() %}{{ x|nofilter if false else 'a' }}{% endmacro %}{{ m() }}
{% for y in (x|nofilter if false else l) %}{{ y }}{% endfor %}
{% for x in l %}{% if false %}{{ x|nofilter }}{% endif %}{% endfor %}ok
{% if false %}{% for x in l %}{{ x|nofilter }}{% endfor %}{% endif %}ok
{% set loop = 5 %}{{ loop }}
{% for x in l %}{% macro q() %}{{ x }}{% endmacro %}{{ q() }}{% endfor %}
{% set ns = namespace(f=none) %}{% for x in l %}{% macro q(y) %}{{ y }}{% endmacro %}{% set ns.f = q %}{% endfor %}{{ ns.f(5) }}
{% set ns = namespace(l=none) %}{% for x in l %}{% set ns.l = loop %}{% endfor %}{{ ns.l.index }}
{%- set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}
{% set c = cycler('a','b') %}{% for x in l %}{{ c.next() }}{% endfor %}{{ c.current }}{{ c.reset() }}{{ c.current }}
{% for x in range(3) -%} {{ x }} {%- endfor %}
  {% if t %}
  a
  {%- endif %}
  b
  {%+ if t %}
  a
  {% endif +%}
  b
{{ s }}
{{- s -}}
  x
{% if t %}x{% endif %}  
y
a {% if t %} b {% endif %} c
	{% if t %}tab{% endif %}
{% for x in l %}
    {{ x }}
{% endfor %}
end
{% set x = 1 -%}
   
  y
{%- if t -%}  z  {%- endif -%}  w
{{ '{{' }}{{ "}}" }}{{ '%}' }}
{{ {'a':{'b':1}} }}{{ {} }}
{% if {'a':1} %}x{% endif %}
a{{ "\r\n" }}b
{% for i in range(2) %}
  {# comment #}
  {{ i }}
{% endfor %}
{% for x in l %}{{ x }}{% endfor %}{{ x }}
{% for x in [1] %}{% for y in [] %}{% else %}{% break %}{% endfor %}no{% endfor %}yes
{% set x = 'o' %}{% set y %}{% set x = 'i' %}{{ x }}{% endset %}{{ x }}{{ y }}
{% call foo %}{% endcall %}
{% for x in l %}{{ loop.foo }}{% endfor %}
{% for x in l %}{{ loop }}{% endfor %}
{% macro caller() %}x{% endmacro %}{{ caller() }}
{% for i in l recursive %}{{ i }}{% endfor %}
{% for i in l %}{{ loop(l) }}{% endfor %}
{% set f = range %}{{ f(2)|list }}
{% set f = s.upper %}{{ f() }}
{{ m(1) }}{% macro m(a) %}x{% endmacro %}
{% macro m(a) %}{{ a }}{% endmacro %}{{ [1,2]|map('m')|list }}
{% if t: %}x{% endif %}
{% for x in l: %}{{ x }}{% endfor %}
{% macro a() %}{% macro b() %}in{% endmacro %}{{ b() }}{% endmacro %}{{ a() }}
{% for x in l %}{% with y = x %}{% if y == 1 %}{% break %}{% endif %}{{ y }}{% endwith %}{% endfor %}
{{ s }}{% set s = 'new' %}{{ s }}
{% for x in l %}{{ s }}{% set s = x %}{{ s }}{% endfor %}{{ s }}
{{ l if l else 'x' }} {{ (l if l) }}
{{ "a" if n else "b" if n else "c" }}
{{ [x for x in l] }}
{{ l | tojson | length }}
{%   set   x=1   %}{{x}}
{%if t%}x{%endif%}
{%-if t-%}x{%-endif-%}
{{1}}{{-1}}{{+1}}{{- 1}}{{ -1 -}} x"""
# With newlines inside.
LONG_TEMPLATES = json.loads(r"""["  {% if t %}\n  a\n  {%- endif %}\n  b", "  {%+ if t %}\n  a\n  {% endif +%}\n  b", "{{ s }}\n{{- s -}}\n  x", "{% if t %}x{% endif %}  \ny", "{% for x in l %}\n    {{ x }}\n{% endfor %}\nend\n", "{% set x = 1 -%}\n   \n  y\n", "x\n\n{%- if t -%}\n\n z \n{%- endif -%}\n\nw\n\n", "{% for i in range(2) %}\n  {# comment #}\n  {{ i }}\n{% endfor %}", "{% raw %}\na\n{% endraw %}\nb", "  {% raw %}\n  a\n  {% endraw %}\nb", "{# a\n#}\nb\n  {# c #}  \nd", "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\n", "\n\n{% if t %}x{% endif %}\n\n", "a\n\n", "{{ 'a\r\nb' }}", "\u00a0{% if t %}x{% endif %}", "a\n\u2003 {% if t %}x{% endif %}\n", "{{ s }}\n{% if t %}\n{{ s }}\n{% endif %}\n{{ s }}\n", "{#-#}x", "{#}x#}y", "{# {# #} #}", "  {#- x -#}  y", "  {{- s }}", "  {%- raw -%} a {%- endraw -%} b", "{% raw %}{{ x }}{% endraw %}\n\nx", "{%- raw %}\nx{% endraw -%}\n y", "{%+ raw %}x{%+ endraw +%}\ny", "{{ s }}\r{{ s }}"]""")


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def main():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime

    def case(template, variables):
        try:
            return {"template": template, "expected": env.from_string(template).render(**variables)}
        except Exception as error:  # whatever the reference refuses, we must refuse
            return {"template": template, "error": f"{type(error).__name__}: {error}"}

    expressions = ["{{ " + line + " }}" for line in EXPRESSIONS.split("\n")]
    templates = TEMPLATES.split("\n") + LONG_TEMPLATES
    print("[")
    for variables, sources, end in ((EXPRESSION_VARIABLES, expressions, ","), (TEMPLATE_VARIABLES, templates, "")):
        print('{"variables":', json.dumps(variables) + ', "cases": [')
        print(",\n".join(json.dumps(case(source, variables)) for source in sources))
        print("]}" + end)
    print("]")


main()
