"""The report in a real browser: Debian's headless chromium, driven by playwright.

Every number that the page shows is compared with the report's own data, and the console
stays silent. Skipped where chromium or playwright is missing.
"""

import importlib
import re
import shutil

import numpy as np
import pytest

import tinygrad_helix as th
from tinygrad_helix import language
from tinygrad_helix.fused.policy import KEEPABLE, WEIGHTS, Call, extra_flops, kept
from tinygrad_helix.viz.dial import set_of
from tinygrad_helix.viz.report import page as report_page
from tinygrad_helix.viz.trace import LIVE, NODE, PHASE, TAPE

CHROMIUM = shutil.which("chromium")
playwright = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright (python -m pip install playwright)"
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium (on Debian: apt-get install chromium)"
)
compare = importlib.import_module("tinygrad_helix.compare")
NASTY = "</script><b>&\"'"


@pytest.fixture(scope="module")
def report():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "PAUSE", 0)
        patch.setattr(language, "PAUSE", 0)
        return language.compare_language_model(
            dim=8,
            layers=2,
            batch=2,
            seq=6,
            steps=1,
            warmup=0,
            policies=("keep9", "keep6", "keep1"),
        )


@pytest.fixture(scope="module")
def file(report, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    text = report_page(report.to_json(), report.traces, report.dial, report.check())
    path.write_text(text, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        # As root, as in a container, chromium runs without its sandbox only.
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser):
    """Opens pages; at the end nothing may have been said on their consoles or asked of
    anybody but the file."""
    contexts, said, asked = [], [], []

    def visit(address, **options):
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert said == []
    assert all(url.startswith(("file://", "data:")) for url in asked), asked


def card(page, name, scene="rows"):
    return page.locator(f'#walk [data-scene="{scene}"] .card[data-variant="{name}"]')


def lengths(traces):
    forward = max(t["forward"] for t in traces.values())
    return forward, max(len(t["events"]) - t["forward"] for t in traces.values())


def ended(found, step, traces):
    """How many events have ended, by another formula than the page's."""
    forward, backward = lengths(traces)
    own = len(found["events"]) - found["forward"]
    if step <= forward:
        return step * found["forward"] // forward
    return found["forward"] + (step - forward) * own // backward


def slide(page, step):
    page.locator("#step").evaluate(
        """(slider, step) => {
            slider.value = step;
            slider.dispatchEvent(new Event('input', { bubbles: true }));
        }""",
        step,
    )


# What each card of the first scene shows.
SHOWN = """() => Object.fromEntries(
    [...document.querySelectorAll('#walk [data-scene=rows] .card')].map(card => {
        const text = what => card.querySelector(`[data-now=${what}]`).textContent;
        const all = (selector, key) => [...new Set(
            [...card.querySelectorAll(selector)].map(e => e.dataset[key]))].sort();
        return [card.dataset.variant, {
            tape: text('tape'), live: text('live'), event: text('event'),
            now: all('.node.now', 'node'),
            done: all('.node.done', 'node'),
            swept: all('.node.swept', 'node'),
            held: all('.kept.held', 'storage'),
            bands: all('.band.held', 'storage'),
            landed: all('.leaf.landed', 'leaf'),
            leaves: all('.leaf', 'leaf'),
            flow: all('.edge.flow', 'from'),
        }];
    }))"""


def test_the_slider_shows_every_event_of_every_variant(visit, file, report):
    page = visit(file)
    traces = report.traces["rows"]
    forward, backward = lengths(traces)
    assert page.locator("#step").get_attribute("max") == str(forward + backward)
    for step in range(forward + backward + 1):
        slide(page, step)
        cards = page.evaluate(SHOWN)
        for name, found in traces.items():
            check_card(cards[name], found, ended(found, step, traces))
    assert all(c["held"] == [] for c in cards.values())
    assert all(c["event"].startswith("backward") for c in cards.values())
    # backwards again: what was freed is there again
    slide(page, forward)
    cards = page.evaluate(SHOWN)
    for name, found in traces.items():
        assert cards[name]["tape"] == f"{found['graph']['saved_bytes']:,}"
    assert page.locator("#place").inner_text() == f"forward, step {forward} of {forward}"


def check_card(shown, found, events):
    """What a card shows after `events` events, against the trace."""
    past = found["events"][:events]
    tape = past[-1][TAPE] if past else 0
    assert shown["tape"] == f"{tape:,}"
    assert shown["live"] == f"{max(0, past[-1][LIVE]) if past else 0:,}"
    here = past[-1][NODE] if past else None
    assert shown["now"] == ([here] if past else [])
    swept = {e[NODE] for e in past if e[PHASE]}
    assert set(shown["swept"]) == swept
    assert set(shown["done"]) == {e[NODE] for e in past if not e[PHASE]} - swept
    sizes = {s["id"]: s["nbytes"] for s in found["graph"]["storages"]}
    assert shown["held"] == shown["bands"]
    assert sum(sizes[s] for s in shown["held"]) == tape
    edges = found["graph"]["edges"]
    inputs = {x["id"] for x in found["graph"]["leaves"] if x["kind"] == "input"}
    nodes = {n["id"] for n in found["graph"]["nodes"]}
    lanes = {e["source"] for e in edges if e["target"] == here}
    assert set(shown["flow"]) == lanes & (nodes | inputs)
    reached = {e["source"] for e in edges if e["target"] in swept}
    assert set(shown["landed"]) == reached & set(shown["leaves"])  # some have no room


def test_keys_move_and_the_address_keeps_the_place(visit, file, report):
    page = visit(file)
    forward, backward = lengths(report.traces["rows"])
    page.keyboard.press("End")
    assert page.locator("#step").input_value() == str(forward + backward)
    page.keyboard.press("ArrowLeft")
    assert page.url.endswith(f"#step={forward + backward - 1}")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.locator("#step").input_value() == "2"
    page.locator("#step").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#step").input_value() == "3", "once, not twice"
    page.keyboard.press(" ")
    play = page.locator('[data-go="play"]')
    assert play.get_attribute("aria-pressed") == "true"
    page.locator("#place", has_text="step 4 of").wait_for()
    page.keyboard.press(" ")
    assert play.get_attribute("aria-pressed") == "false"

    again = visit(page.url)
    assert again.locator("#step").input_value() == page.locator("#step").input_value()
    assert again.locator("#place").inner_text() == page.locator("#place").inner_text()


def test_a_chosen_node_tells_what_it_keeps_and_why(visit, file, report):
    page = visit(file)
    found = report.traces["rows"]["composed"]
    forward = lengths(report.traces["rows"])[0]
    storages = {s["id"]: s for s in found["graph"]["storages"]}
    slide(page, forward)
    for node in found["graph"]["nodes"]:
        row = card(page, "composed").locator(f'[data-node="{node["id"]}"]')
        row.dispatch_event("click")
        details = page.locator("#details")
        words = details.inner_text()
        assert words.startswith(f"{node['op']} {node['id']} composed")
        assert details.locator(".formula").text_content() == node["formula"]
        assert node["place"] in words
        assert " ".join(node["source"].split()) in " ".join(words.split())
        for value in node["outputs"]:
            assert "×".join(map(str, value["shape"])) in words
        items = details.locator(".keeps li")
        assert items.count() == len(node["saved"])
        for i, s in enumerate(node["saved"]):
            text = items.nth(i).inner_text()
            assert text.startswith(s["label"])
            if s["storage"]:
                assert f"{storages[s['storage']]['nbytes']:,} B" in text
                parameter = storages[s["storage"]]["parameter"]
                why = "not counted" if parameter else f"{node['op']} {node['id']} keeps it"
                assert why in text
        assert f"node={node['id']}+composed" in page.url
        row.dispatch_event("click")
        assert "node=" not in page.url


def test_an_array_says_when_it_is_made_and_when_it_is_freed(visit, file, report):
    found = report.traces["rows"]["composed"]
    two = next(
        s
        for s in found["graph"]["storages"]
        if len(s["holders"]) > 1 and not s["parameter"]
    )
    first, last = (h["node"] for h in (two["holders"][0], two["holders"][-1]))
    hide = '["primitive","fused keep9","fused keep6","fused keep1"]'
    born, gone = found["held"][two["id"]]
    at = file + f"#step={{}}&node={first}+composed&hide={hide}"

    def words(step):
        return visit(at.format(step)).locator("#details .keeps").inner_text()

    assert "not made yet" in words(born)
    here = words(gone)
    assert "alive, for " in here
    assert f"{first} keeps it as {two['holders'][0]['label']}" in here
    assert last != first
    assert "freed after the vjp of" in words(gone + 1)


def test_nodes_are_reached_by_the_keyboard(visit, file, report):
    page = visit(file)
    ids = [n["id"] for n in report.traces["rows"]["composed"]["graph"]["nodes"]]
    nodes = card(page, "composed").locator(".node")
    assert nodes.evaluate_all("all => all.filter(e => e.tabIndex === 0).length") == 1
    nodes.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    focused = "document.activeElement.dataset.node"
    assert page.evaluate(focused) == ids[2]
    page.keyboard.press("Enter")
    assert f"node={ids[2]}+composed" in page.url
    outline = nodes.nth(2).locator(".hit").evaluate("e => getComputedStyle(e).strokeWidth")
    assert outline.startswith("2"), "the focus can be seen"
    page.keyboard.press("Escape")
    assert "node=" not in page.url
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == ids[1]


def test_the_dial_shows_the_numbers_of_all_128_sets(visit, file, report):
    page = visit(file)
    call = Call((2, 6, 8), 4, frozenset(("x", *WEIGHTS)))
    runs = {report.dial["measured"][r.variant]: r for r in report.rows if r.policy}
    state = """() => Object.fromEntries(
        [...document.querySelectorAll('#dial-now [data-now]')]
            .map(e => [e.dataset.now, e.textContent]))"""
    boxes = page.locator("#dial-form input")
    for n in range(128):
        # tick what is to be ticked, as a reader would, one box after the other
        boxes.evaluate_all(
            """(all, names) => all.forEach(box => {
                const name = box.parentElement.querySelector('b').textContent;
                if (!box.disabled && box.checked !== names.includes(name)) box.click();
            })""",
            list(set_of(n)),
        )
        shown = page.evaluate(state)
        size, flops = sum(kept(call, set_of(n)).values()), extra_flops(call, set_of(n))
        assert shown["bytes"] == f"{size:,}"
        assert shown["flops"] == f"{flops:,}"
        assert f"keep({','.join(set_of(n))})" in shown["set"]
        if n in runs:
            assert shown["peak"] == f"{runs[n].peak_bytes:,} B"
            assert shown["time"].startswith(f"{runs[n].step_ms['median']:.2f} ms")
        else:
            assert shown["peak"].startswith("not run")
            assert shown["time"] == "not run"
    page.click('#dial [data-set="0"]')
    assert page.evaluate(state)["bytes"] == f"{report.dial['bytes'][0]:,}"
    assert boxes.evaluate_all("all => all.filter(b => b.checked).length") == 1
    assert boxes.count() == len(KEEPABLE)
    point = page.locator('.plane circle[data-set="0"]')
    for at in ("cx", "cy"):
        here = page.locator("#dial-here").get_attribute(at)
        assert here == point.get_attribute(at)


def numbers_in(text):
    return [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d|\d", text)]


@pytest.mark.parametrize("scene", ["rows", "model"])
def test_the_tables_show_the_numbers_of_the_json(visit, file, report, scene):
    page = visit(file + f"#scene={scene}&step=0")
    rows = report.to_json()[scene]
    sizes = page.locator(f'#table [data-scene="{scene}"] table').nth(0)
    assert sizes.is_visible()
    heights = page.locator(f'#table [data-scene="{scene}"] table').nth(1)
    lines = sizes.locator("tbody tr")
    assert lines.count() == len(rows)
    for i, r in enumerate(rows):
        cells = lines.nth(i).locator("td").all_inner_texts()
        saved = r["saved_bytes"]
        assert [int(c.replace(",", "")) for c in cells] == [
            r["ops"], r["nodes"], r["saved_tensors"], r["storages"],
            saved["predicted"], saved["counted"], saved["measured"],
        ]  # fmt: skip
        cells = heights.locator("tbody tr").nth(i).locator("td").all_inner_texts()
        assert [int(c.replace(",", "")) for c in cells] == [
            r["peak_bytes"], r["transient_bytes"], r["workspace_bytes"],
            r["no_grad_peak_bytes"],
        ]  # fmt: skip
    errors = page.locator(f'#gradients [data-scene="{scene}"] tbody tr')
    assert errors.count() == len(rows[0]["grads"])
    for i, name in enumerate(rows[0]["grads"]):
        assert errors.nth(i).locator("th").inner_text() == name
        cells = errors.nth(i).locator("td").all_inner_texts()
        for cell, r in zip(cells, rows, strict=True):
            shown = float(cell.replace("▲", ""))
            assert shown == pytest.approx(r["grads"][name], rel=0.06, abs=1e-30)
    glance = page.locator(f'#glance [data-scene="{scene}"] table').first
    for i, r in enumerate(rows):
        text = " ".join(glance.locator("tbody tr").nth(i).locator(".n").all_inner_texts())
        assert numbers_in(text) == [r["saved_bytes"]["counted"], r["peak_bytes"]]


def test_any_two_variants_can_be_set_against_one_another(visit, file, report):
    page = visit(file)
    rows = {r.variant: r for r in report.rows}
    scene = page.locator('#glance [data-scene="rows"]')
    for a, b in (("fused keep1", "composed"), ("primitive", "fused keep9")):
        scene.locator('[data-pair="a"]').select_option(a)
        scene.locator('[data-pair="b"]').select_option(b)
        first = scene.locator(".trade tbody tr").first.locator("td").all_inner_texts()
        x, y = (rows[k].saved_bytes["counted"] for k in (a, b))
        sign = "+" if x > y else "−"
        assert first[:2] == [f"{x:,} B", f"{y:,} B"]
        assert first[2].startswith(f"{sign}{abs(x - y):,} B")
    scene.locator('[data-pair="a"]').select_option("fused keep9")
    assert "nothing against itself" in scene.locator(".trade").inner_text()


def test_hidden_variants_and_scenes_are_in_the_address(visit, file, report):
    page = visit(file)
    page.locator('[data-scene="rows"] [data-show="primitive"]').uncheck()
    assert card(page, "primitive").is_hidden()
    longest = len(report.traces["rows"]["composed"]["events"])
    assert page.locator("#step").get_attribute("max") == str(longest)
    page.locator('[data-choose="model"]').click()
    assert card(page, "composed", "model").is_visible()
    assert card(page, "composed").is_hidden()
    again = visit(page.url)
    assert card(again, "composed", "model").is_visible()
    assert card(again, "primitive", "model").is_hidden()


CONTRASTS = """() => {
    const parts = text => text.match(/[\\d.]+/g).map(Number);
    const light = c => {
        const [r, g, b] = parts(c).slice(0, 3).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = e => {
        for (; e; e = e.parentElement) {
            const c = getComputedStyle(e).backgroundColor, p = parts(c);
            if (p.length < 4 || p[3] > 0) return c;
        }
        return 'rgb(255, 255, 255)';
    };
    const found = [];
    for (const e of document.querySelectorAll('body *')) {
        const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
        if (!own || !e.checkVisibility() || e.closest('option, script, title')) continue;
        const style = getComputedStyle(e);
        let ground = behind(e), colour = e.closest('svg') ? style.fill : style.color;
        const row = e.closest('.node.now');
        if (row) ground = getComputedStyle(row.querySelector('.hit')).fill;
        const [a, b] = [light(colour), light(ground)].sort((x, y) => y - x);
        const name = `${e.tagName}.${e.getAttribute('class') || ''}`;
        const words = e.textContent.trim().slice(0, 30);
        found.push([(a + 0.05) / (b + 0.05), name, colour, ground, words]);
    }
    return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("mode", "least"), [("", 4.5), ("projector", 7.0)])
def test_text_stands_out_from_its_ground(visit, file, scheme, mode, least):
    page = visit(
        f"{file}#step=20{'&projector=glance' if mode else ''}", color_scheme=scheme
    )
    for _ in range(20 if mode else 1):
        found = page.evaluate(CONTRASTS)
        assert len(found) > 10
        low = [entry for entry in found if entry[0] < least]
        assert low == [], low[:5]
        page.keyboard.press("PageDown")


SIZE = "parseFloat(getComputedStyle(document.body).fontSize)"
PANELS = """[...document.querySelectorAll('.panel')]
    .filter(e => e.checkVisibility()).map(e => e.id)"""


def test_projector_mode_shows_one_panel_in_large_type(visit, file):
    page = visit(file)
    small = page.evaluate(SIZE)
    page.keyboard.press("p")
    assert page.evaluate(SIZE) >= 1.25 * small
    assert page.evaluate(PANELS) == ["glance"]
    page.locator('nav a[href="#walk"]').click()
    assert page.evaluate(PANELS) == ["walk"]
    assert "projector=walk" in page.url
    assert visit(page.url).evaluate(PANELS) == ["walk"]
    page.keyboard.press("PageUp")
    assert page.evaluate(PANELS) == ["glance"]
    page.keyboard.press("P")
    assert len(page.evaluate(PANELS)) == 7


ANSWERS = """[...document.querySelectorAll('.answer h3')]
    .filter(e => e.checkVisibility()).map(e => e.textContent)"""


def test_a_projector_shows_every_question_by_itself(visit, file):
    page = visit(file)
    questions = page.evaluate(ANSWERS)
    assert len(questions) == 6
    page.set_viewport_size({"width": 1280, "height": 720})
    page.keyboard.press("p")
    seen = []
    for _ in range(40):
        if page.evaluate(PANELS) != ["glance"]:
            break
        (here,) = page.evaluate(ANSWERS)
        seen.append(here)
        last = page.url
        page.keyboard.press("PageDown")
    assert list(dict.fromkeys(seen)) == questions
    assert page.evaluate(PANELS) == ["walk"]
    assert visit(last).evaluate(ANSWERS) == questions[-1:]
    page.keyboard.press("PageUp")
    assert page.evaluate(ANSWERS) == questions[-1:]


def test_arrows_step_after_the_scene_was_chosen(visit, file):
    page = visit(file)
    page.locator('[data-choose="model"]').click()
    page.keyboard.press("ArrowRight")
    assert page.locator("#step").input_value() == "1"
    assert page.locator('[data-choose="model"]').get_attribute("aria-pressed") == "true"


FITS = """() => {
    const card = document.querySelector('#walk [data-scene=rows] .card');
    card.scrollIntoView();
    const box = e => e.getBoundingClientRect();
    const pane = box(card.querySelector(".scroll"));
    const row = box(card.querySelector(".now .hit"));
    const tools = box(document.querySelector('.tools'));
    return [tools.top >= 0, tools.bottom <= box(card.querySelector('.bands')).top + 1,
        row.top >= pane.top - 1, row.bottom <= pane.bottom + 1, pane.bottom <= innerHeight];
}"""


@pytest.mark.parametrize("step", [3, 12, 20, 30])
def test_slider_chart_and_the_row_of_now_are_on_one_screen(visit, file, step):
    page = visit(f"{file}#step={step}", reduced_motion="reduce")
    assert page.evaluate(FITS) == [True] * 5


def test_the_way_to_a_peak(visit, file, report):
    page = visit(file)
    page.locator('#details [data-peak="fused keep1"]').click()
    found = report.traces["rows"]["fused keep1"]
    words = card(page, "fused keep1").locator('[data-now="event"]').inner_text()
    assert words.endswith(f"fused_helix {found['graph']['nodes'][0]['id']}")
    assert words.startswith("backward")


CUT = """() => [...document.querySelectorAll('.wide')]
    .filter(e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1)
    .map(e => e.getAttribute('aria-label'))"""


@pytest.mark.parametrize("mode", ["", "&projector=table"])
def test_no_table_is_cut_at_a_laptops_width(visit, file, mode):
    assert visit(f"{file}#step=9{mode}").evaluate(CUT) == []


def test_long_graphs_are_printed_in_pieces(visit, file):
    page = visit(file)
    page.emulate_media(media="print")
    tall = card(page, "primitive")
    assert not tall.locator("svg.lanes").is_visible()
    assert tall.locator("svg.paper").count() > 1
    assert all(piece.is_visible() for piece in tall.locator("svg.paper").all())
    page.emulate_media(media="screen")
    assert not tall.locator("svg.paper").first.is_visible()


OVERFLOWS = """() => {
    const wide = document.documentElement.clientWidth;
    return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility()
        && !e.closest('.wide, svg, .projector .cards')
        && e.getBoundingClientRect().right > wide + 1)
        .map(e => e.tagName + '.' + e.className).slice(0, 5);
}"""


@pytest.mark.parametrize("width", [400, 800, 1280, 1920])
@pytest.mark.parametrize("mode", ["", "&projector=walk"])
def test_nothing_sticks_out_of_the_page(visit, file, width, mode):
    page = visit(file + f"#step=9{mode}")
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate(OVERFLOWS) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


TOUCHING = """() => {
    const found = [];
    for (const svg of document.querySelectorAll('svg.lanes, svg.plane')) {
        if (!svg.checkVisibility()) continue;
        const boxes = [...svg.querySelectorAll('text')]
            .map(t => [t.getBoundingClientRect(), t.textContent]);
        boxes.forEach(([a, s], i) => boxes.slice(i + 1).forEach(([b, t]) => {
            const beside = a.left >= b.right - 1 || b.left >= a.right - 1;
            const above = a.top >= b.bottom - 3 || b.top >= a.bottom - 3;
            if (!beside && !above) found.push([s, t]);
        }));
    }
    return found.slice(0, 5);
}"""


@pytest.mark.parametrize("scene", ["rows", "model"])
def test_labels_of_graphs_and_plane_do_not_overlap(visit, file, scene):
    assert visit(file + f"#scene={scene}&step=3").evaluate(TOUCHING) == []


def test_without_scripts_it_can_still_be_read(browser, file, report):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(file)
    assert page.locator("svg.lanes").first.is_visible()
    assert page.locator("#step").is_hidden()
    assert page.locator("noscript").count() == 1
    assert page.locator(".card").count() == 2 * len(report.rows)
    assert all(c.is_visible() for c in page.locator(".card").all())
    context.close()


def test_motion_is_left_out_where_the_reader_wants_none(visit, file):
    duration = (
        "getComputedStyle(document.querySelector('.walking .dot')).transitionDuration"
    )
    assert visit(file).evaluate(duration) != "0s"
    assert visit(file, reduced_motion="reduce").evaluate(duration) == "0s"


def test_on_paper_controls_are_gone_and_all_variants_are_there(visit, file):
    page = visit(file + "#step=5&projector=dial", color_scheme="dark")
    page.emulate_media(media="print")
    shown = "[...document.querySelectorAll('{}')].filter(e => e.checkVisibility()).length"
    assert page.evaluate(shown.format(".js")) == 0
    assert page.evaluate(shown.format(".panel")) == 7
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    fill = "getComputedStyle(document.querySelector('.kept .swatch')).fill"
    assert "fill-" in page.evaluate(fill), "what is kept is shown whatever the slider says"


def test_names_of_users_do_no_harm(visit, tmp_path):
    """Variants, inputs, ops and labels called like the end of a script."""

    class Nasty(th.Op):
        """</script><b>y = x</b>"""

        name = NASTY
        saves = {NASTY: th.Input(0)}

        @staticmethod
        def forward(xp, x, *, needs):
            return x * 2, {NASTY: x}

        @staticmethod
        def vjp(dy, saved, *, needs, inputs):
            return (dy * 2,)

    x = th.Tensor(np.ones(3), requires_grad=True)
    names = (NASTY, "b", "__proto__")
    fns = {name: lambda **k: th.apply(Nasty, k[NASTY]) for name in names}
    th.compare(fns, {NASTY: x}, repeats=1, out=tmp_path)
    page = visit((tmp_path / "report.html").as_uri() + "#step=1")
    assert page.locator("#details h3").inner_text() == f"{NASTY} n0 {NASTY}"
    assert page.locator("#details .formula").text_content() == Nasty.__doc__
    scene = page.locator('#glance [data-scene="rows"]')
    scene.locator('[data-pair="a"]').select_option("__proto__")
    scene.locator('[data-pair="b"]').select_option(NASTY)
    assert scene.locator(".trade caption").inner_text() == f"__proto__ against {NASTY}"
    page.locator(".node").first.dispatch_event("click")
    again = visit(page.url)
    assert again.locator(".node.chosen").count() == 1
    assert page.locator("#glance b, svg b").count() == 0


ODD = ("#", "#step=99999", "#step=x&node=n1", "#node=%00+composed", "#hide=[1", "#dial",
       "#projector=nowhere")  # fmt: skip


@pytest.mark.parametrize("address", ODD)
def test_addresses_that_mean_nothing(visit, file, address):
    page = visit(file + address)
    assert page.locator("#place").inner_text()
