"""The service's pages: what they show to whom, that they run nothing foreign, and the whole story in a real browser."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from test_service import SAID, SPEC, Place, Served, environment, here, played, report, settled
from verax.keys import Key
from verax.service.gate import Limits

__all__ = ["here"]
CHROMIUM = "/usr/bin/chromium"
SHOTS = Path(os.environ.get("VERAX_SHOTS") or tempfile.mkdtemp(prefix="verax-shots-"))  # those in docs are these
EVERY = ("/rounds", "/rounds/r", "/rounds/r/agents/ann", "/journal", "/verify", "/desk")


def text_of(place: Place, path: str, status: int = 200) -> str:
    found = place.http.get(path, headers={"Accept": "text/html"})
    assert found.status_code == status, found.text
    assert found.headers["content-type"].startswith("text/html")
    return found.text


def browsing(place: Place) -> httpx.Client:
    headers = {"Origin": place.address, "Accept": "text/html"}
    return httpx.Client(base_url=place.address, headers=headers, verify=False)


def at_the_desk(place: Place) -> httpx.Client:
    token = Path(place.service.token_file).read_text().strip()
    client = httpx.Client(
        verify=False, base_url=place.address, headers={"Origin": place.address, "Accept": "text/html"}
    )
    assert client.post("/desk/session", data={"token": token}).status_code == 303
    return client


def test_a_round_shows_commitments_first_and_then_scores_and_payments(here):
    played(here)
    before = text_of(here, "/rounds/r")
    assert "What is seen here is commitments only" in before and "<h2>Scores</h2>" not in before
    found = settled(here)
    after = text_of(here, "/rounds/r")
    assert "<h2>Scores</h2>" in after and "<h2>Payments</h2>" in after
    assert f"{found.amounts['ann'] / 100:.2f}" in after and found.secret not in before
    assert "Its score earned" in text_of(here, "/rounds/r/agents/ann")
    assert "settled" in text_of(here, "/rounds") and "report handed in" in text_of(here, "/journal?round=r")


def test_a_settled_market_shows_its_path(here):
    operator = here.operator
    operator.open(dataclasses.replace(SPEC, kind="market", truth=(0, 1, 1, 0, 1, 0)))
    operator.fund("r")
    for agent in ("ann", "bob"):
        operator.fund("r", 50_000, agent=agent)
        here.remote().submit("r", agent, report(SAID[agent]), signer=Key.new())
    settled(here)
    text = text_of(here, "/rounds/r")
    assert "Price path" in text and "<h2>Steps</h2>" in text and "One unit of score earns" in text


def test_what_users_name_is_text_and_never_markup(here):
    name = '<img src=x onerror="alert(1)">'
    spec = dataclasses.replace(SPEC, round=name, classes=("<b>no</b>", "yes"))
    here.operator.open(spec)
    said = type(report(SAID["ann"])).of([list(SAID["ann"])], tasks=SPEC.tasks, classes=spec.classes)
    here.remote().submit(name, name, said, signer=Key.new())
    from verax.service.views import address

    for path in ("/rounds", address(name), address(name, name), "/journal"):
        text = text_of(here, path)
        assert "<img src=x" not in text and "<b>no</b>" not in text and "&lt;" in text


def test_no_page_runs_or_loads_what_is_not_its_own(here):
    played(here)
    for path in EVERY:
        text, found = text_of(here, path), here.http.get(path)
        policy = found.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert not re.search(r"<script(?![^>]*\bsrc=\"/static/)", text) and " style=" not in text
        assert not re.search(r"\son\w+=", text) and not re.search(r'(?:src|href)="(?:https?:)?//', text)
        for asset in re.findall(r'(?:src|href)="(/static/[^"]+)"', text):
            assert here.http.get(asset).status_code == 200
        assert found.headers["x-content-type-options"] == "nosniff"
    assert here.http.get("/static/../app.py").status_code == 404 and here.http.get("/static/app.py").status_code == 422


def test_a_refusal_is_a_page_for_who_looks_and_a_document_for_who_asks(here):
    assert "no round is called" in text_of(here, "/rounds/none", 404)
    assert here.http.get("/rounds/none.json", headers={"Accept": "text/html"}).json()["status"] == 404


def test_the_operator_runs_a_round_at_the_desk(here):
    desk = at_the_desk(here)
    tasks = "task\n" + "".join(f"{task}\n" for task in SPEC.tasks)
    fields = {"round": "r", "classes": "no,yes", "budget": "100.00", "min_tasks": "2", "invited": "yes"}
    opened = desk.post("/desk/open", data=fields, files={"tasks": ("tasks.csv", tasks)})
    assert opened.status_code == 303, opened.text
    invited = desk.post("/desk/rounds/r/invite", data={"count": "3"}).text
    tokens = re.findall(r"[\w-]{40,}", re.search(r"<pre tabindex=\"0\"><code>([\w\s-]+)</code>", invited)[1])
    assert len(tokens) == 3
    from verax.rounds import Admission

    for (agent, labels), token in zip(SAID.items(), tokens, strict=True):
        key = Key.new()
        here.remote().admit(Admission.of(here.remote().public_record("r"), agent, key, token))
        here.remote().submit("r", agent, report(labels), signer=key)
    early = desk.post("/desk/rounds/r/seal")
    assert early.status_code == 409 and "fund it first" in early.text
    for step in ("fund", "seal", "settle"):
        assert desk.post(f"/desk/rounds/r/{step}").status_code == 303
    here.work()
    paid = desk.get("/desk/rounds/r/payouts.csv")
    assert paid.text.startswith("agent,amount,currency") and paid.headers["cache-control"] == "no-store"
    assert desk.post("/desk/rounds/r/shred").status_code == 409
    desk.post("/desk/end")
    assert "The operator&#39;s token" in desk.get("/desk").text or "operator's token" in desk.get("/desk").text
    assert desk.get("/desk/rounds/r/payouts.csv").status_code == 401
    desk.close()


@pytest.mark.parametrize("origin", ["https://evil.test", "null", ""])
def test_a_form_from_elsewhere_does_nothing(here, origin):
    played(here)
    desk = at_the_desk(here)
    assert desk.post("/desk/rounds/r/void", headers={"Origin": origin}).status_code == 403
    assert here.service.rounds.state("r") == "open"
    desk.close()


def test_without_the_token_the_desk_is_closed(here):
    played(here)
    stranger = httpx.Client(
        verify=False, base_url=here.address, headers={"Origin": here.address, "Accept": "text/html"}
    )
    assert stranger.post("/desk/session", data={"token": "guess"}).status_code == 401
    for cookie in ("", "guess"):
        stranger.cookies.set("verax", cookie)
        assert stranger.post("/desk/rounds/r/void").status_code == 401
        assert stranger.get("/desk/rounds/r/payouts.csv").status_code == 401
    assert here.service.rounds.state("r") == "open"
    assert here.http.post("/desk/session", data={"token": "guess"}).status_code == 403  # no origin: no browser of ours
    stranger.close()


def test_guessing_the_token_is_slowed_down(limited):
    place = limited(Limits(rate=2.0))
    answers = [
        place.http.post("/desk/session", data={"token": str(n)}, headers={"Origin": place.address}) for n in range(5)
    ]
    assert 429 in {answer.status_code for answer in answers}


@pytest.fixture
def limited(tmp_path):
    found = []

    def make(limits: Limits) -> Place:
        found.append(Place(str(tmp_path / "verax.db"), tmp_path, limits))
        return found[-1]

    yield make
    for place in found:
        place.close()


def test_events_tell_how_far_a_round_is(here):
    here.operator.open(SPEC)
    with here.http.stream("GET", "/rounds/r/events") as answer:
        lines = answer.iter_lines()
        first = [next(lines) for _ in range(3)]
        here.operator.fund("r")
        found = next(line for line in lines if line.startswith("data:") and line != first[2])
    assert first[1] == "event: progress" and '"state":"open"' in first[2] and '"entry":2' in found
    assert here.http.get("/rounds/none/events").status_code == 404


# a real browser


@contextmanager
def browser() -> Iterator[Any]:
    if not Path(CHROMIUM).exists():
        pytest.skip(f"{CHROMIUM} is not here")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def command(folder: Path, address: str, *words: str) -> str:
    said = environment() | {"VERAX_SERVER": address}
    done = subprocess.run([shutil.which("verax", path=said["PATH"]) or "verax", *words], cwd=folder, env=said,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_files(folder: Path) -> None:
    (folder / "tasks.csv").write_text("task\n" + "".join(f"{task}\n" for task in SPEC.tasks))
    for agent, labels in SAID.items():
        rows = "".join(f"{task},{SPEC.classes[label]}\n" for task, label in zip(SPEC.tasks, labels, strict=True))
        (folder / f"{agent}.csv").write_text("task,label\n" + rows)


@pytest.mark.slow
def test_the_whole_story_in_a_browser(tmp_path):
    """The operator at the desk, three agents at their command lines, and whoever likes at the pages."""
    served = Served(tmp_path)
    write_files(tmp_path)
    try:
        with browser() as chromium:
            page = chromium.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light").new_page()
            troubles: list[str] = []
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("request", lambda asked: troubles.append(asked.url) if not own(asked.url, served) else None)
            play(page, served, tmp_path)
            assert troubles == []
    finally:
        assert served.end() == 0


def own(address: str, served: Served) -> bool:
    return address.startswith((served.address, "data:"))


def play(page: Any, served: Served, folder: Path) -> None:
    open_at_the_desk(page, served, folder)
    page.goto(f"{served.address}/rounds/spring")
    assert "Nobody yet" in page.inner_text("#live")
    for agent in SAID:
        command(folder, served.address, "key", "new", f"{agent}.pem")
        words = "remote", "submit", "spring", f"{agent}.csv", "--agent", agent, "--sign", f"{agent}.pem"
        command(folder, served.address, *words, "--receipt", f"{agent}.receipt")
    page.wait_for_selector("text=3 agents have handed in 3 reports")  # by events, without a reload
    assert "commitments only" in page.inner_text("#live") and page.locator("text=Scores").count() == 0
    page.screenshot(path=SHOTS / "service-round-open.png", full_page=True)
    page.goto(f"{served.address}/desk")
    page.click("button[aria-label='Seal spring']")
    page.click("button[aria-label='Settle spring']")
    page.goto(f"{served.address}/rounds/spring")
    page.wait_for_selector("h2:has-text('Payments')", timeout=30_000)
    page.screenshot(path=SHOTS / "service-round-settled.png", full_page=True)
    verify_receipts(page, served, folder)
    page.goto(f"{served.address}/desk")
    page.screenshot(path=SHOTS / "service-desk.png")
    with page.expect_download() as download:
        page.click("text=Payouts, CSV")
    assert Path(download.value.path()).read_text().startswith("agent,amount,currency")


def open_at_the_desk(page: Any, served: Served, folder: Path) -> None:
    page.goto(f"{served.address}/desk")
    page.fill("#token", (folder / "verax.db.keys" / "token.key").read_text().strip())
    page.click("text=Enter")
    page.fill("#round", "spring")
    page.set_input_files("#tasks", folder / "tasks.csv")
    page.fill("#classes", "no,yes")
    page.fill("#budget", "100.00")
    page.click("summary:has-text('More')")
    page.fill("#min_tasks", "2")
    page.click("form[action='/desk/open'] > button")
    page.wait_for_selector("text=The round is open.")
    page.click("button[aria-label='Fund spring']")
    page.wait_for_selector("text=The budget is set aside.")


def verify_receipts(page: Any, served: Served, folder: Path) -> None:
    whole = (folder / "ann.receipt").read_text()
    head, extra, index, *rest = whole.split("\n")
    (folder / "index.receipt").write_text("\n".join([head, extra, f"index {int(index[6:]) - 1}", *rest]))
    flipped = whole[:-10] + ("A" if whole[-10] != "A" else "B") + whole[-9:]
    (folder / "signature.receipt").write_text(flipped)
    key = command(folder, served.address, "remote", "show", "spring")
    operator = re.search(r'"operator": "([0-9a-f]{64})"', key) or re.search(
        r'"operator":"([0-9a-f]{64})"', httpx.get(f"{served.address}/rounds/spring/opening.json").text
    )
    cases = [
        ("ann.receipt", "ann.csv", operator[1], "holds"), ("ann.receipt", "bob.csv", "", "fails"),
        ("tasks.csv", "ann.csv", "", "fails"), ("index.receipt", "ann.csv", "", "fails"),
        ("ann.receipt", "ann.csv", "ab" * 32, "fails"), ("signature.receipt", "ann.csv", "", "fails"),
    ]  # fmt: skip
    for receipt, labels, by, verdict in cases:
        page.goto(f"{served.address}/verify")
        page.set_input_files("#receipt", folder / receipt)
        page.set_input_files("#report", folder / labels)
        page.fill("#operator", by)
        page.click("#check button")
        page.wait_for_selector(f"#verdict[data-verdict={verdict}]")
        if (receipt, labels) == ("ann.receipt", "ann.csv") and verdict == "holds":
            assert page.locator("#list .badge.holds").count() == 4
            page.screenshot(path=SHOTS / "service-receipt.png", full_page=True)
    page.screenshot(path=SHOTS / "service-receipt-forged.png", full_page=True)


@pytest.mark.slow
def test_axe_finds_nothing_on_any_page_on_a_phone_or_a_desk_in_light_or_dark(here):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    played(here)
    settled(here)
    played(here, dataclasses.replace(SPEC, round="r2"))
    with browser() as chromium:
        for width in (360, 1280):
            for scheme in ("light", "dark"):
                page = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme).new_page()
                page.goto(f"{here.address}/desk")
                found = {"login": axe.run(page)}
                page.fill("#token", Path(here.service.token_file).read_text().strip())
                page.click("text=Enter")
                for path in (*EVERY, "/rounds/r2", "/rounds/none"):
                    page.goto(f"{here.address}{path}")
                    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
                    found[path] = axe.run(page)
                    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
                wrong = {at: each.generate_report() for at, each in found.items() if each.violations_count}
                assert wrong == {}, "\n".join(wrong.values())


@pytest.mark.slow
def test_the_desk_can_be_walked_by_keys_alone(here):
    here.operator.open(SPEC)
    with browser() as chromium:
        page = chromium.new_page()
        page.goto(f"{here.address}/desk")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type(Path(here.service.token_file).read_text().strip())
        page.keyboard.press("Enter")
        page.wait_for_selector("button[aria-label='Fund r']")
        page.focus("button[aria-label='Fund r']")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=The budget is set aside.")
