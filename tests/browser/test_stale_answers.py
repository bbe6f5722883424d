"""Answers, messages and signs on the page belong to what is drawn and chosen."""

import pytest

from .conftest import IDLE, wait_until

PICTURE = "#view canvas"


def find_opacity(page, selector):
    return page.locator(selector).first.evaluate("one => Number(getComputedStyle(one).opacity)")


def is_blank(page):
    """Whether the picture of the result is empty."""
    return page.locator(PICTURE).first.evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
        ".data.every((byte) => byte === 0)"
    )


def read_result(page):
    return page.locator("#result").inner_text()


def is_report_visible(page):
    return page.locator("#report .headline").is_visible()


def record_results(page):
    """Collect every text of the result from now on in `window.results`."""
    page.evaluate(
        "() => { window.results = []; new MutationObserver(() => { window.results.push("
        "document.getElementById('result').textContent); })"
        ".observe(document.getElementById('result'), { childList: true }); }"
    )


@pytest.fixture
def reported(page):
    """A page that has a report and waits for changes."""
    page.locator("#report .headline").wait_for()
    page.locator("#busy").wait_for(state="hidden")
    return page


@pytest.mark.parametrize("change", ["solver", "stroke", "reach"])
def test_a_change_dims_the_answer_at_once(reported, brake, change):
    page = reported
    before = read_result(page)
    brakes = brake()
    if change == "solver":
        page.locator("[name=solver]").select_option("linear")  # its name is in the result
    elif change == "reach":
        page.locator("[name=reach]").fill("15")
    else:
        page.locator("#density-1 > canvas").click(position={"x": 5, "y": 5})
    assert find_opacity(page, "#result") < 0.5 and not is_report_visible(page)
    assert read_result(page) == before
    page.locator("#busy").get_by_text("Solving").wait_for()
    wait_until(page, f"getComputedStyle(document.querySelector('{PICTURE}')).opacity < 0.5")
    brakes.release()
    wait_until(page, IDLE)
    assert find_opacity(page, "#result") == 1 and read_result(page) != before
    page.locator("#report .headline").wait_for()
    page.locator("#busy").wait_for(state="hidden")


def test_the_certificate_of_another_solver_is_never_visible(reported):
    """The answer of the new solver arrives before its report."""
    page = reported
    held = []
    page.route("**/report", lambda route: held.append(route))
    page.locator("[name=solver]").select_option("linear")
    wait_until(page, "document.getElementById('result').textContent.includes('linear')")
    assert find_opacity(page, "#result") == 1 and not is_report_visible(page)
    page.locator("#busy").get_by_text("Computing bounds").wait_for()
    assert not is_report_visible(page)
    for route in held:
        route.continue_()
    page.locator("#report .headline").wait_for()
    page.get_by_text("Full report").click()
    solver = page.get_by_role("row", name="solver").first
    assert "linear" in solver.inner_text()


def test_the_report_replaces_an_uncertain_distance(reported):
    page = reported
    page.locator("[name=solver]").select_option("geonet-2d")
    wait_until(page, "document.getElementById('result').textContent.includes('geonet-2d')")
    page.locator("#report .headline").wait_for()
    assert read_result(page).startswith("W₂ between ") and "geonet-2d" in read_result(page)


def test_the_busy_sign_appears_after_100_milliseconds(reported, brake):
    """Timers of one page run in the order of their times, on a busy machine too."""
    page = reported
    brakes = brake()
    page.evaluate(
        """() => {
          window.hidden = {};
          const look = (delay) => setTimeout(
            () => { window.hidden[delay] = document.getElementById("busy").hidden; }, delay);
          const solver = document.querySelector("[name=solver]");
          solver.value = "midpoint";
          look(90);
          solver.dispatchEvent(new Event("input", { bubbles: true }));
          look(110);
        }"""
    )
    wait_until(page, "110 in window.hidden")
    assert page.evaluate("window.hidden") == {"90": True, "110": False}
    brakes.release()
    wait_until(page, IDLE)
    page.locator("#busy").wait_for(state="hidden")


def test_an_answer_to_earlier_settings_is_not_shown(reported, brake):
    page = reported
    brakes = brake()
    record_results(page)
    page.locator("[name=solver]").select_option("linear")
    assert brakes.waiting.wait(60)
    page.locator("[name=solver]").select_option("midpoint")
    brakes.release()
    wait_until(page, "window.results.length > 0")
    wait_until(page, IDLE)
    assert all("midpoint" in text for text in page.evaluate("window.results"))


def test_a_cleared_drawing_clears_the_path_and_its_report(reported, brake):
    page = reported
    brakes = brake()
    page.locator("#density-1 > canvas").click(position={"x": 5, "y": 5})
    assert brakes.waiting.wait(60)  # this answer arrives after the drawing was cleared
    record_results(page)
    page.locator("#density-1").get_by_role("button", name="Clear").click()
    page.get_by_text("Source is empty; draw something there.").wait_for()
    assert is_blank(page) and read_result(page) == "" and not is_report_visible(page)
    with page.expect_response("**/solve"):
        brakes.release()
    page.wait_for_timeout(300)
    assert is_blank(page) and not any(page.evaluate("window.results"))
    page.locator("#density-1").get_by_role("button", name="Undo").click()
    wait_until(page, IDLE)
    assert not is_blank(page) and page.locator("#message").inner_text() == ""
    page.locator("#report .headline").wait_for()


def test_messages_vanish_with_their_cause(reported):
    page = reported
    page.locator("[name=solver]").select_option("linear")
    page.get_by_label("Potential").check()
    page.get_by_text("provides no potential").wait_for()
    page.locator("[name=solver]").select_option("midpoint")
    assert page.locator("#message").inner_text() == ""
    wait_until(page, IDLE)
    page.locator("[name=cells]").select_option("128")
    wait_until(page, IDLE)
    page.locator("[name=solver]").select_option("geonet-2d")
    page.get_by_text("choose at most 64 cells").wait_for()
    assert is_blank(page) and read_result(page) == "" and not is_report_visible(page)
    page.locator("[name=solver]").select_option("auto")
    wait_until(page, IDLE)
    assert page.locator("#message").inner_text() == "" and "W₂ = " in read_result(page)


def test_a_server_that_stops_is_reported(reported):
    page = reported
    page.route("**/solve", lambda route: route.abort())
    page.locator("#density-1 > canvas").click(position={"x": 5, "y": 5})
    page.get_by_text("The server does not answer").wait_for()
    assert is_blank(page)
    page.unroute("**/solve")
    page.locator("#density-1 > canvas").click(position={"x": 9, "y": 5})
    wait_until(page, IDLE)
    assert not is_blank(page) and page.locator("#message").inner_text() == ""
