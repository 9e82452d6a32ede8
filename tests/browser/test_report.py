"""report.html in a real browser: it draws, answers mouse and keyboard, fits a phone, follows dark mode, needs no network.

Needs Debian's packages `chromium` and `chromium-driver`, and `pip install selenium`; skipped without them.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner import rundir
from runner.compare.report import write
from runner.compare.session import compare
from runner.compose.app import compose_one
from runner.compose.arguments import parse
from runner.plan import Sizes

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
CHROMIUM, DRIVER = (shutil.which(n) for n in ("chromium", "chromedriver"))
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no chromium here: apt-get install chromium chromium-driver"
)

EVIL = '</script><script>window.evil=1</script><img src=x onerror="window.evil=1"> ä 名前'


def make_run(folder: Path, updates: int, shift: float, *overrides: str, peak_at: int | None = None) -> Path:
    """A run's folder with a smooth curve; `shift` is how far its losses are off, `peak_at` a single high loss."""
    auto = ("batch=auto", "batch.per_device=16")
    plan = compose_one(parse([f"budget.updates={updates}", *auto, *overrides])).with_sizes(
        Sizes(items=1437, parameters=100), "d"
    )
    run = rundir.create(folder, plan, "", "")
    with run.updates.open("w") as rows, run.batches.open("w") as batches:
        for n in range(1, updates + 1):
            loss = (9.0 if n == peak_at else 2.3 / n**0.5) * (1 + shift)
            row = {
                "update": n, "epoch": 1, "loss": loss, "weight": 64.0, "lr": 1e-3, "grad_norm": 1 / n, "seconds": 0.01,
                "items": 64, "digest": f"{n:016x}", "collectives": 1, "bytes": 4096, "skipped": False, "scale": None,
                "peak_memory": 10**7,
            }  # fmt: skip
            rows.write(json.dumps(row) + "\n")
            seconds = 0.01 + n % 7 * 1e-4
            batch = {
                "update": n,
                "micro": 0,
                "rank": 0,
                "epoch": 1,
                "loss": loss,
                "weight": 64.0,
                "seconds": seconds,
                "synced": True,
            }
            batches.write(json.dumps(batch) + "\n")
    run.write_status("finished", started=float(hash(str(folder)) % 1000))
    return folder


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs and more") / "outputs"
    names = ["plain", "ä name with spaces", EVIL.replace("/", "∕")]
    make_run(root / names[0], 40, 0.0)
    make_run(root / names[1], 40, 1e-8, "hardware=2cpu")
    make_run(root / names[2], 40, 0.1, "hardware=4cpu")
    (root / "empty<b>").mkdir()
    found = compare([str(root), str(root / "empty<b>")])
    assert [v.kind.value for v in found.verdicts].count("different") == 2
    write(found, root / "report.html")
    return root / "report.html"


@pytest.fixture
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--window-size=1100,1000",
        "--disable-gpu",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def js(browser: Any, code: str) -> Any:
    return browser.execute_script(f"return {code}")


def open_page(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    assert js(browser, "document.querySelectorAll('#curves .curve').length") > 0


def assert_quiet(browser: Any, page: Path) -> None:
    """No message on the console, and nothing was fetched but the page."""
    assert browser.get_log("browser") == []
    urls = re.findall(
        r'"url":"((?:https?|wss?|file):[^"]*)"', " ".join(e["message"] for e in browser.get_log("performance"))
    )
    assert {u for u in urls if not u.startswith(page.as_uri().split("%")[0])} == set()


def test_axes_and_curves(browser: Any, page: Path) -> None:
    open_page(browser, page)
    assert js(browser, "document.querySelectorAll('#curves .curve').length") == 3
    assert js(browser, "document.querySelectorAll('#differences .curve').length") == 4  # two runs, what each is allowed
    assert js(browser, "document.querySelector('#curves .x-name').textContent") == "updates"
    seen = {}
    for axis in ("update", "items", "tokens"):
        browser.execute_script(f"$('axis').value='{axis}'; $('axis').dispatchEvent(new Event('change'))")
        seen[axis] = js(browser, "[...document.querySelectorAll('#curves .x-tick')].map(t => t.textContent)")
    assert seen["update"][-1] == "40"
    assert seen["items"][-1] == "2500"  # 40 updates of 64 items: the last whole tick below 2560
    assert js(browser, "document.querySelector('#curves .x-name').textContent") == "tokens (weight)"
    browser.find_element("id", "log").click()
    assert js(browser, "charts.curves.log") is True
    for curve in ("batch:loss", "batch:seconds", "update:grad_norm", "update:lr"):
        browser.execute_script(f"$('curve').value='{curve}'; $('curve').dispatchEvent(new Event('change'))")
        assert js(browser, "document.querySelectorAll('#curves .curve').length") == 3
    assert_quiet(browser, page)


def test_hover_and_keyboard_read_values(browser: Any, page: Path) -> None:
    open_page(browser, page)
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    chart = browser.find_element("id", "curves")
    ActionChains(browser).move_to_element(chart).perform()
    hovered = browser.find_element("id", "curves-tip").text
    assert re.match(r"updates \d+: .*plain \d", hovered), hovered
    browser.execute_script("$('curves').focus()")
    chart.send_keys(Keys.HOME)
    first = browser.find_element("id", "curves-tip").text
    assert "updates 1:" in first
    assert "plain 2.3" in first
    chart.send_keys(Keys.ARROW_RIGHT)
    assert "updates 2:" in browser.find_element("id", "curves-tip").text
    assert_quiet(browser, page)


def test_legend_toggles_and_tab_reaches_everything(browser: Any, page: Path) -> None:
    open_page(browser, page)
    from selenium.webdriver.common.keys import Keys

    reached = set()
    for _ in range(20):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        reached.add(
            js(
                browser,
                "document.activeElement.id || document.activeElement.parentElement.id || document.activeElement.tagName",
            )
        )
    assert {"curve", "axis", "log", "png", "legend", "curves", "what", "differences"} <= reached
    button = browser.find_element("css selector", "#legend button")
    button.send_keys(Keys.SPACE)
    assert button.get_attribute("aria-pressed") == "false"
    assert js(browser, "document.querySelectorAll('#curves .curve').length") == 2
    button.send_keys(Keys.ENTER)
    assert js(browser, "document.querySelectorAll('#curves .curve').length") == 3
    assert_quiet(browser, page)


def test_names_stay_text(browser: Any, page: Path) -> None:
    open_page(browser, page)
    assert js(browser, "window.evil === undefined")
    assert js(browser, "document.images.length") == 0
    shown = js(browser, "[...document.querySelectorAll('#legend button')].map(b => b.textContent)")
    assert EVIL.replace("/", "∕") in shown
    assert "left out" in js(browser, "$('remarks').textContent")
    assert_quiet(browser, page)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_and_dark_mode(browser: Any, page: Path, scheme: str) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    )
    open_page(browser, page)
    assert js(browser, "document.documentElement.scrollWidth") <= 360
    back, ink = js(browser, "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]")
    light = [sum(map(int, re.findall(r"\d+", c)[:3])) / 3 for c in (back, ink)]
    assert (light[0] > light[1]) == (scheme == "light")
    assert abs(light[0] - light[1]) > 150
    tick = js(browser, "[...document.querySelectorAll('#curves .x-tick')].map(t => t.getBoundingClientRect().height)")
    assert min(tick) >= 10  # letters are not shrunk with the drawing
    tall = js(browser, "[...document.querySelectorAll('button, select')].map(b => b.getBoundingClientRect().height)")
    assert min(tall) >= 30
    assert_quiet(browser, page)


def test_png(browser: Any, page: Path) -> None:
    open_page(browser, page)
    browser.find_element("id", "png").click()
    deadline = time.monotonic() + 10
    while not (made := js(browser, "document.body.dataset.png")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert int(made) > 5000


def test_a_long_run_is_thinned_out_and_keeps_its_peak(browser: Any, tmp_path: Path) -> None:
    root = tmp_path / "long"
    make_run(root / "a", 50_000, 0.0, peak_at=31_234)
    make_run(root / "b", 50_000, 1e-8, "hardware=2cpu")
    write(compare([str(root)]), root / "report.html")
    size = (root / "report.html").stat().st_size
    assert size < 1_000_000
    open_page(browser, root / "report.html")
    drawn = js(browser, "data.curves[0].per_update.loss")
    assert len(drawn) <= 1500
    assert max(drawn) == 9.0
    assert js(browser, "data.curves[0].recorded") == 50_000
    assert_quiet(browser, root / "report.html")
